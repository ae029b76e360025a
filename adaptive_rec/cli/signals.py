"""Handling of SIGINT, SIGTERM and SIGHUP in commands."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.run.current_run import CurrentRun


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP (a terminal or an ssh that is gone) of a run: the first one stops it after the step,
    the second
    ends the process. SIGHUP stays ignored where it was, under nohup."""

    def __init__(self, screen: Screen, launched: bool = False, goes_on: bool = False) -> None:
        """`launched`: another process of ours has started this one, and passes on what a terminal sends as SIGTERM. `goes_on`:
        this is a program that goes on after the run; SIGINT alone is handled then, in the main thread, and ends no process."""
        self._run: CurrentRun | None = None
        self.exit_code = 0
        self.run_is_over = False
        """Whether the run has ended, so that a signal only ends the waiting after it."""
        self._screen = screen
        self._before: dict[int, Any] = {}
        self._leaving: int | None = None
        self._launched, self._goes_on = launched, goes_on
        if not goes_on:
            atexit.register(self._leave)  # before torch is loaded, so that this runs after all that is registered then

    def leave_at_once(self, code: int) -> None:
        """Let the process end with this code, once the functions registered with atexit have run, but without the interpreter's
        clearing up. Collecting torch's objects takes a second or more; Triton, which torch loads, reports those left as leaks."""
        self._leaving = code  # nothing follows where a program goes on

    def _leave(self) -> None:
        if self._leaving is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(self._leaving)

    def watch(self, run: CurrentRun) -> None:
        """Let signals stop this run from now on; before, they end the process."""
        self._run = run

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let a signal end the waiting after a run, in the body of this `with`; the exit code stays 0 then."""
        self.run_is_over = True
        try:
            yield
        finally:
            self.run_is_over = False

    def __enter__(self) -> StopSignals:
        if self._goes_on:
            in_main_thread = threading.current_thread() is threading.main_thread()
            self._before = {signal.SIGINT: signal.signal(signal.SIGINT, self._handle)} if in_main_thread else {}
            return self
        stopping = [signal.SIGTERM] if self._launched else [signal.SIGINT, signal.SIGTERM]
        if not self._launched and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            stopping.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._handle) for number in stopping}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._run = None  # `atexit` keeps this object, and a program that trains again needs the memory

    def _handle(self, number: int, _frame: object) -> None:
        if self.run_is_over and self.exit_code == 0:
            self.run_is_over = False
            raise KeyboardInterrupt
        second, self.exit_code = self.exit_code != 0, 128 + number
        if self._goes_on and (second or self._run is None):
            raise KeyboardInterrupt
        if second:
            self._screen.abandon()
            os._exit(self.exit_code)
        if self._run is None:
            raise SystemExit(self.exit_code)  # nothing has been trained yet
        self._run.hurry()
        self._screen.stopping()


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process without the interpreter's clearing up, which waits for threads of a run: for work
    that leaves nothing behind."""

    def end(number: int, _frame: object) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h\n")  # a bar has hidden the cursor
            sys.stderr.flush()
        os._exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that it can clean up; further ones are ignored."""

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
