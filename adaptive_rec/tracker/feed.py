"""Figures on their way to trackers. Whoever trains waits for none of them, and fails for the sake of none."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from adaptive_rec.errors import first_line
from adaptive_rec.tracker import Tracker, make_tracker

WAITING_LIMIT = 256
"""Calls that may wait for a tracker. What does not fit is left out and counted."""

CLOSE_SECONDS = 5.0
"""How long all of them together have, at the end, for what still waits."""


class Trackers:
    """Trackers by name. One that fails, or is too slow, concerns no other; what became of it is a complaint, told once."""

    def __init__(self, names: Sequence[str], folder: Path, step: int = 0) -> None:
        """Raises UsageError where one cannot be made. `step`: the one that training begins at."""
        self._feeds: list[_Feed] = []
        for name in dict.fromkeys(names):
            self.add(name, folder, step)

    def add(self, name: str, folder: Path, step: int = 0) -> None:
        """One more. Raises UsageError where it cannot be made."""
        self._feeds.append(_Feed(name, make_tracker(name, folder, step)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of a step. What is no number is left out."""
        kept = {name: float(value) for name, value in values.items() if math.isfinite(value)} if self._feeds else {}
        for feed in self._feeds if kept else ():
            feed.give(lambda tracker: tracker.log(step, kept))

    def event(self, step: int, kind: str, text: str) -> None:
        """Something that happened."""
        for feed in self._feeds:
            feed.give(lambda tracker: tracker.event(step, kind, text))

    def complaints(self) -> list[str]:
        """What somebody is to be told that was not told before."""
        return [text for feed in self._feeds for text in feed.complaints()]

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Have what waits logged, for so long at the most."""
        end = time.monotonic() + seconds
        for feed in self._feeds:
            feed.end()
        for feed in self._feeds:
            feed.wait(max(0.0, end - time.monotonic()))

    def __len__(self) -> int:
        return len(self._feeds)


class _Feed:
    """One tracker, on a thread of its own that does not keep the process alive. It is as nice as the others: it runs Python, and
    a thread that gives way while it holds the interpreter would hold up training."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._calls: deque[Callable[[Tracker], None]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._given = self._left_out = 0
        self._unsaid: deque[str] = deque()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def give(self, call: Callable[[Tracker], None]) -> None:
        """Have a call made. One that is given too late, or to a tracker that is behind, is left out."""
        with self._changed:
            if self._ended:
                return
            self._given += 1
            if len(self._calls) < WAITING_LIMIT:
                self._calls.append(call)
                self._changed.notify()
                return
            self._left_out += 1
            if self._left_out == 1:
                self._unsaid.append(f"tracker {self._name} is too slow: what it has no time for is left out")

    def complaints(self) -> list[str]:
        with self._changed:
            told = list(self._unsaid)
            self._unsaid.clear()
        return told

    def end(self) -> None:
        """Nothing more is given."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Wait for what was given. What is not done by then is left out."""
        self._thread.join(seconds)
        with self._changed:
            self._left_out += len(self._calls)
            self._calls.clear()
            if self._left_out:
                self._unsaid.append(f"tracker {self._name} got all but {self._left_out} of {self._given} reports")
                self._left_out = 0
            elif self._thread.is_alive():
                self._unsaid.append(f"tracker {self._name} was not ready in time: its last report may be missing")

    def _next(self) -> Callable[[Tracker], None] | None:
        """The next call; None where none follows."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._ended)
            return self._calls.popleft() if self._calls else None

    def _work(self) -> None:
        try:
            while call := self._next():
                call(self._tracker)
            self._tracker.close()
        except BaseException as error:  # whatever a user's class raises
            self._switch_off(error)

    def _switch_off(self, error: BaseException) -> None:
        why = f"{type(error).__name__}: {first_line(error)}"
        with self._changed:
            self._ended = True
            self._calls.clear()
            self._left_out = 0
            self._unsaid.append(f"tracker {self._name} failed and is switched off: {why}")
        with suppress(BaseException):
            self._tracker.close()
