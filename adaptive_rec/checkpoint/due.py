"""When the next checkpoint is due."""

from __future__ import annotations

import time

from adaptive_rec.config.checkpoint import CheckpointConfig


class Saving:
    """By steps, by the clock, or by both. What is saved, and when, changes nothing of what is trained."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self.begin()

    def begin(self) -> None:
        """Begin to wait anew."""
        self._since = time.monotonic()

    def is_due(self, step: int, busy: bool) -> bool:
        """`busy`: one is being written. It is not waited for but where a certain step's is due."""
        every_steps, every_seconds = self._config.every_steps, self._config.every_seconds
        by_clock = bool(every_seconds) and not busy and time.monotonic() - self._since >= every_seconds
        return by_clock or (bool(every_steps) and step % every_steps == 0)
