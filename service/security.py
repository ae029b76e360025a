"""Secrets, allowed hosts and request limits of the sidecar, enforced by `gate` and `protocol`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RequestLimits:
    """Limits on requests. A burst is the number that may come at once after a quiet time."""

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
    """The two tokens, and the names under which the sidecar may be reached."""

    control_token: str = field(repr=False)
    read_token: str = field(repr=False)
    host: str
    port: int
    allow_hosts: tuple[str, ...]
    limits: RequestLimits = field(default_factory=RequestLimits)
