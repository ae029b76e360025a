"""What SIGINT and SIGTERM do to a run in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.runtime.loop import Runtime


class StopSignals:
    """The first one asks the loop to stop and finish in good order, the second ends the process."""

    def __init__(self, screen: Screen) -> None:
        self.runtime: Runtime | None = None
        self.exit_code = 0
        self.run_is_over = False
        """A signal then ends the waiting for more, and the exit code stays 0."""
        self._screen = screen
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        if self.run_is_over and self.exit_code == 0:
            self.run_is_over = False
            raise KeyboardInterrupt
        second, self.exit_code = self.exit_code != 0, 128 + number
        if second:
            self._screen.abandon()
            os._exit(self.exit_code)
        if self.runtime is None:
            raise SystemExit(self.exit_code)  # nothing has been trained yet
        self.runtime.hurry()
        self._screen.stopping()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does, so that it can clean up; a second one leaves it the time for that."""

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
