"""An end for work that does not look at the clock itself."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

AGAIN_SECONDS = 0.5
"""Between two reminders: an exception can be lost in a destructor or a callback."""


class OutOfTime(BaseException):
    """Work was not done in its time. No `Exception`, so that nothing on the way takes it for an error it can go on after."""


class limited:
    """Raise `OutOfTime` in the block as soon as `until` (of `time.perf_counter`) is past. In the main thread only.

    It comes by a signal, so waiting is interrupted, and a call into a library when it returns. Blocks may be nested, the
    shorter one inside.
    """

    def __init__(self, until: float) -> None:
        self._until, self._inside, self._ended = until, False, threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._until == float("inf"):
            return
        if time.perf_counter() >= self._until:
            raise OutOfTime
        self._before = signal.signal(signal.SIGUSR1, self._tell)
        self._watcher = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="limit", daemon=True)
        self._watcher.start()
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        if self._watcher is not None:
            self._ended.set()
            self._watcher.join()  # no signal comes after it, so the handler can go
            signal.signal(signal.SIGUSR1, self._before)

    def _tell(self, _: int, frame: FrameType | None) -> None:
        entering_or_leaving = frame is not None and frame.f_code in (
            limited.__enter__.__code__,
            limited.__exit__.__code__,
        )
        if self._inside and not entering_or_leaving:
            raise OutOfTime

    def _watch(self, main: int) -> None:
        seconds = self._until - time.perf_counter()
        while not self._ended.wait(max(0.0, seconds)):
            signal.pthread_kill(main, signal.SIGUSR1)
            seconds = AGAIN_SECONDS
