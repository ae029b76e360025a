"""Threads that pass figures to trackers, so that training neither waits for a tracker nor fails with it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from adaptive_rec.errors import UsageError, first_line
from adaptive_rec.tracker import Tracker, make_tracker

WAITING_LIMIT = 256
"""Limit of calls that wait for a tracker. Further ones are left out and counted."""

CLOSE_SECONDS = 5.0
"""Time that all trackers together have at the end for waiting calls."""


class Trackers:
    """All trackers of a run. A tracker that fails or is too slow does not affect the others and is reported as a complaint,
    once."""

    def __init__(self, names: Sequence[str], folder: Path, step: int = 0) -> None:
        """Make trackers by name. `step`: the step that training starts at. Raises UsageError where one cannot be made."""
        self._feeds: list[_Feed] = []
        for name in dict.fromkeys(names):
            self.add(name, folder, step)

    def add(self, name: str, folder: Path, step: int = 0) -> None:
        """Add a tracker. Raises UsageError where it cannot be made."""
        self._feeds.append(_Feed(name, make_tracker(name, folder, step)))

    def restart(self, names: Sequence[str], folder: Path, step: int) -> list[str]:
        """Have trackers begin again at a step, to which the run went back. Returns complaints, where one cannot be made too."""
        self.close()
        complaints, self._feeds = self.complaints(), []
        for name in dict.fromkeys(names):
            try:
                self.add(name, folder, step)
            except UsageError as error:
                complaints.append(f"tracker {name} is switched off: {error}")
        return complaints

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the figures of a step; values that are not finite are left out."""
        kept = {name: float(value) for name, value in values.items() if math.isfinite(value)} if self._feeds else {}
        for feed in self._feeds if kept else ():
            feed.give(lambda tracker: tracker.log(step, kept))

    def event(self, step: int, kind: str, text: str) -> None:
        """Log an event."""
        for feed in self._feeds:
            feed.give(lambda tracker: tracker.event(step, kind, text))

    def complaints(self) -> list[str]:
        """Return complaints about trackers that were not returned before."""
        return [text for feed in self._feeds for text in feed.complaints()]

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let waiting calls finish, within a time limit."""
        end = time.monotonic() + seconds
        for feed in self._feeds:
            feed.end()
        for feed in self._feeds:
            feed.wait(max(0.0, end - time.monotonic()))

    def __len__(self) -> int:
        return len(self._feeds)


class _Feed:
    """One tracker and its thread, which does not keep the process alive. The thread has normal priority: it runs Python, and a
    thread of low priority would hold the interpreter's lock for long and so delay training."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._calls: deque[Callable[[Tracker], None]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._given = self._left_out = 0
        self._complaints: list[str] = []
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def give(self, call: Callable[[Tracker], None]) -> None:
        """Queue a call. It is left out where the feed has ended or the tracker is too far behind."""
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
                self._complaints.append(
                    f"tracker {self._name} is too slow: reports that it has no time for are left out"
                )

    def complaints(self) -> list[str]:
        with self._changed:
            taken, self._complaints = self._complaints, []
        return taken

    def end(self) -> None:
        """Accept no more calls."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Wait until the queued calls are made. Those that are not made in time are left out."""
        self._thread.join(seconds)
        with self._changed:
            self._left_out += len(self._calls)
            self._calls.clear()
            if self._left_out:
                self._complaints.append(f"tracker {self._name} got all but {self._left_out} of {self._given} reports")
                self._left_out = 0
            elif self._thread.is_alive():
                self._complaints.append(f"tracker {self._name} was not ready in time: its last report may be missing")

    def _next(self) -> Callable[[Tracker], None] | None:
        """Return the next call, or None at the end."""
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
            self._complaints.append(f"tracker {self._name} failed and is switched off: {why}")
        with suppress(BaseException):
            self._tracker.close()
