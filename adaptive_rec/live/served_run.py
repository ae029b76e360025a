"""What the service needs of a run that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.state_writer import StateWriter


class Publishing(Protocol):
    """Publishes a run in shared memory, from `open` to `close`."""

    def open(self) -> StateWriter: ...

    def close(self) -> None: ...


class Standing(Protocol):
    """The step and phase of a run, and the knobs it trains under."""

    @property
    def step(self) -> int: ...

    @property
    def phase(self) -> str: ...

    @property
    def knobs(self) -> Knobs: ...

    @property
    def knobs_step(self) -> int: ...

    @property
    def knob_changes(self) -> int: ...

    @property
    def rollbacks(self) -> int:
        """Rollbacks of this process so far."""
        ...

    @property
    def hurried(self) -> bool:
        """Whether a signal came."""
        ...


class ServedRun(Protocol):
    """A run that is served while it trains."""

    @property
    def mailbox(self) -> Mailbox: ...

    @property
    def publisher(self) -> Publishing: ...

    @property
    def state(self) -> Standing: ...

    def find_keys(self, table: int, keys: Sequence[int]) -> Mapping[str, Any]:
        """Return where raw keys of a table are. Raises ConfigError."""
        ...
