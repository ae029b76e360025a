"""What guards the sidecar: who is let in, and how much a client may ask for. Enforced by `guard` and `protocol`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RequestLimits:
    """Most that clients may ask for. Rates come with a burst: how many may come at once after a quiet while."""

    body_bytes: int = 65536
    request_seconds: float = 10.0
    connections: int = 64
    streams: int = 16
    reads_per_second: float = 200.0
    reads_burst: float = 400.0
    writes_per_second: float = 50.0
    writes_burst: float = 100.0
    failures_per_second: float = 5.0
    failures_burst: float = 20.0


@dataclass(frozen=True)
class Security:
    """The two secrets, and the names under which the sidecar may be asked for."""

    control_token: str = field(repr=False)
    read_token: str = field(repr=False)
    host: str
    port: int
    allow_hosts: tuple[str, ...]
    limits: RequestLimits = field(default_factory=RequestLimits)
