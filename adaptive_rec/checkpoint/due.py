"""Schedule of checkpoints, by steps and by time."""

from __future__ import annotations

import time

from adaptive_rec.config.checkpoint import CheckpointConfig


class Saving:
    """Decides when the next checkpoint is due: by steps, by the clock, or by both. This never affects training results."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self.begin()

    def begin(self) -> None:
        """Start the interval again."""
        self._since = time.monotonic()

    def is_due(self, step: int, busy: bool) -> bool:
        """Return whether a checkpoint is due. While one is being written (`busy`), only a step count makes the next one due."""
        every_steps, every_seconds = self._config.every_steps, self._config.every_seconds
        by_clock = bool(every_seconds) and not busy and time.monotonic() - self._since >= every_seconds
        return by_clock or (bool(every_steps) and step % every_steps == 0)
