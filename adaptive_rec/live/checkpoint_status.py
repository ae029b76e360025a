"""Figures of a run's checkpoints, for clients."""

from __future__ import annotations

import time
from typing import Any

MOST_REMEMBERED = 1024


class CheckpointStatus:
    """Figures of a run's checkpoints, for clients."""

    def __init__(self) -> None:
        self.newest: dict[str, Any] | None = None
        """Name, step and figures of the newest one."""
        self.failed = 0
        """Number of checkpoints that could not be written."""
        self.stall_seconds = 0.0
        """Time that training stood still for all checkpoints."""

        self._newest_at: float | None = None
        """When the newest one was written, on the monotonic clock."""
        self._written: dict[str, tuple[dict[str, Any], float]] = {}
        """The last ones that were written, and when, by name."""
        self.every_steps: int | None = None
        self.every_seconds: float | None = None
        """The present intervals; None where the run writes no checkpoints of its own."""

    def figures(self) -> dict[str, float | None]:
        """Return what clients are shown beside the newest one."""
        return {
            "failed": self.failed,
            "stall_seconds": self.stall_seconds,
            "newest_timestamp_seconds": self.newest_timestamp_seconds,
            "every_steps": self.every_steps,
            "every_seconds": self.every_seconds,
        }

    def expect(self, every_steps: int, every_seconds: float) -> None:
        """Set the present intervals; 0: none by steps, or none by the clock."""
        self.every_steps, self.every_seconds = every_steps, every_seconds

    def add_stall(self, seconds: float) -> None:
        self.stall_seconds += seconds

    def add_failure(self) -> None:
        self.failed += 1

    def set_newest(self, newest: dict[str, Any]) -> None:
        self.newest, self._newest_at = newest, time.monotonic()
        self._written[newest["name"]] = newest, self._newest_at
        if len(self._written) > MOST_REMEMBERED:
            del self._written[next(iter(self._written))]

    def go_on_from(self, before: CheckpointStatus, name: str) -> None:
        """Go on with the figures before a rollback to a checkpoint, which is the newest one now. Where another process has
        written it, there is none."""
        self.failed, self.stall_seconds, self._written = before.failed, before.stall_seconds, before._written
        self.newest, self._newest_at = before._written.get(name, (None, None))

    @property
    def newest_timestamp_seconds(self) -> float | None:
        """When the newest one was written, in seconds since the epoch as the wall clock counts now."""
        return None if self._newest_at is None else round(time.time() - time.monotonic() + self._newest_at, 3)
