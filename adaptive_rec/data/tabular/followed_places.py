"""Places in a followed stream at which reading can begin, and how many malformed rows were counted up to there."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace

from adaptive_rec.data.tabular.reader import Mark

MOST_PLACES = 1 << 14
"""Places that are kept between two checkpoints; of more, every second one is dropped."""
MOST_COUNTS = 1 << 14
"""Batches with malformed rows whose count is kept; of more, the oldest are dropped, as what is saved is near the newest."""


@dataclass(frozen=True)
class Place:
    """A place in the stream at which reading can begin."""

    file: str = ""
    """Name of the file; empty: the first one."""
    first_row: int = 0
    """Rows of the stream before this file."""
    mark: Mark = Mark()
    tail: str = ""
    """The last bytes of the file before the mark, in hexadecimal digits; empty: not known."""
    left_out: int = 0
    """Malformed rows before this place that are counted with the next well-formed row."""
    bad_rows: int = 0
    """Malformed rows of the stream before it, from where this process began."""

    @property
    def row(self) -> int:
        """Rows of the stream before this place."""
        return self.first_row + self.mark.rows


class PassedPlaces:
    """The places that were passed, from the last one before the newest saved position. Any thread may call."""

    def __init__(self, stopped: threading.Event) -> None:
        """`stopped`: once it is set, no place is passed any more."""
        self._stopped, self._lock = stopped, threading.Lock()
        self._passed = [Place()]
        self._counts = deque([(0, 0)], MOST_COUNTS)
        """Where batches with malformed rows end, and how many of these were counted up to there."""

    @property
    def newest(self) -> Place:
        return self._passed[-1]

    def begin(self, row: int) -> tuple[Place, int]:
        """Return the place at which reading begins to come to a row, and the malformed rows behind it that were counted."""
        with self._lock:
            at, counted = self._last(row), self._counted(row)
            place = self._passed[at]
            if place.row == row:
                place = self._passed[at] = replace(place, bad_rows=counted + place.left_out)
            self._counts = deque([(row, counted)], MOST_COUNTS)
        return place, max(0, counted - place.bad_rows) if place.row < row else 0

    def go_on_at(self, place: Place) -> None:
        """Make a saved place the only one."""
        self._passed = [place]

    def add(self, place: Place) -> None:
        """Keep a place, unless the stream has ended."""
        with self._lock:
            if not self._stopped.is_set():
                self._passed.append(place)
            if len(self._passed) > MOST_PLACES:
                del self._passed[1:-1:2]

    def count(self, row: int, bad_rows: int) -> None:
        """Keep that a batch which ends at a row counts malformed rows."""
        if bad_rows:
            with self._lock:
                self._counts.append((row, self._counts[-1][1] + bad_rows))

    def end(self, row: int) -> int:
        """End the stream at a row. Returns the malformed rows between the row before it and the place that was read next: no
        batch has counted them."""
        with self._lock:
            self._stopped.set()
            at = self._last(row)
            place = self._passed[at]
            if place.row < row:
                return 0
            self._passed[at] = replace(place, left_out=0)
        return place.left_out

    def forget_before(self, row: int) -> tuple[Place, int]:
        """Return the last place up to a row, and how many malformed rows behind it were counted by then. Those before are
        forgotten."""
        with self._lock:
            self._passed = self._passed[self._last(row) :]
            place = self._passed[0]
            return place, max(0, self._counted(row) - place.bad_rows)

    def _last(self, row: int) -> int:
        """Return the number of the last place that is kept up to a row."""
        return max(n for n, place in enumerate(self._passed) if place.row <= row)

    def _counted(self, row: int) -> int:
        """Return how many malformed rows batches have counted up to a row, from where this process began."""
        return next((count for end, count in reversed(self._counts) if end <= row), self._counts[0][1])
