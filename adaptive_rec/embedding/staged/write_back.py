"""Write-back: a batch's cold rows come from the device and are written to the host tier, or the device writes them itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.cold.home import ColdHome, OfParts
from adaptive_rec.embedding.staged.direct_rows import DirectRows
from adaptive_rec.embedding.staged.in_flight import Flight, InFlight, Staged
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.system.crew import Crew

LEAST_FLAGGED = 1 << 14
"""Smallest number of rows that one thread flags as changed."""

RETURNING_LIMIT = 4
"""Limit of batches whose rows are on their way down. It also limits how far the training thread is ahead of the device."""


class WriteBack:
    """Writes rows back on one thread, in the order of the steps, so the last batch that held a row decides its value."""

    def __init__(
        self, streams: Streams, cold: ColdHome, direct: DirectRows | None, in_flight: InFlight, crew: Crew,
        flagging: Callable[[int, NDArray[np.int64], NDArray[np.bool_] | None], OfParts],
    ) -> None:  # fmt: skip
        """`flagging` returns the work that flags rows of a pool as changed: numbers within the pool, and which of these (None:
        all)."""
        self._streams = streams
        self._flagging = flagging
        self._cold, self._direct, self._crew = cold, direct, crew
        self._in_flight = in_flight
        self._thread: ThreadPoolExecutor | None = None
        self._returning: deque[Future[None]] = deque()

    def bring(self, flight: Flight, staged: Staged, changed: list[NDArray[np.bool_]] | None, computed: Event) -> None:
        """Queue the way home of a batch's rows, after the event `computed`. Ends its flight when they are home. `changed` has for
        each pool which of them its step updates; None: all."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="homing")
        here = computed
        if staged.copied_stop > staged.rows_start:
            # Here and not on that thread, so that rows come down while it writes those of earlier batches.
            here = staged.slot.download(staged.rows_start, staged.copied_stop, computed)
        self._returning.append(self._thread.submit(self._land, flight, staged, changed, here, computed))
        if len(self._returning) > RETURNING_LIMIT:
            self._returning.popleft().result()

    def _land(
        self, flight: Flight, staged: Staged, changed: list[NDArray[np.bool_]] | None, here: Event, computed: Event
    ) -> None:
        direct, written = staged.direct_pools(), computed
        if direct and self._direct is not None:
            written = self._direct.write(direct, computed)
        for event in (here, written):
            self._streams.host_waits(event)
        staged.slot.came_down()
        for pool, parts in enumerate(staged.pools):
            changed_C = None if changed is None else changed[pool]
            flag = self._flagging(pool, parts.host_rows_C, changed_C)
            if parts.direct_C is None:
                self._cold.write(pool, parts.host_rows_C, parts.pinned_rows(staged.slot), changed_C, flag)
            else:
                self._crew.share(flag, len(parts.host_rows_C), LEAST_FLAGGED)
        self._in_flight.end(flight)
        staged.slot.release(None)  # all that was waited for came after all computation with the slot

    def settle(self) -> None:
        """Return when all rows are home."""
        while self._returning:
            self._returning.popleft().result()

    def close(self) -> None:
        self.settle()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
