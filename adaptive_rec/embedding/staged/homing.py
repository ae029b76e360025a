"""The way home: when a batch's cold rows have come down, they are put in their places in the host tier."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from adaptive_rec.embedding.host import HostTier
from adaptive_rec.embedding.staged.in_flight import Flight, InFlight, Staged
from adaptive_rec.embedding.staged.stager import RowCopier
from adaptive_rec.embedding.staged.streams import Event, Streams

RETURNING_LIMIT = 4
"""Batches whose rows may be on their way. It also bounds how far the training thread is ahead of the device."""


class Homing:
    """One thread, one batch after the other in the order of the steps: the last one to hold a row has the last word."""

    def __init__(self, streams: Streams, host: HostTier, copier: RowCopier, in_flight: InFlight) -> None:
        self._streams = streams
        self._host = host
        self._copier = copier
        self._in_flight = in_flight
        self._thread: ThreadPoolExecutor | None = None
        self._returning: deque[Future[None]] = deque()

    def bring(self, flight: Flight, staged: Staged) -> None:
        """Have a batch's rows come down after the computation queued so far, and land. Ends its flight."""
        event = staged.slot.download(staged.rows_start, staged.stop)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="homing")
        self._returning.append(self._thread.submit(self._land, flight, staged, event))
        if len(self._returning) > RETURNING_LIMIT:
            self._returning.popleft().result()

    def _land(self, flight: Flight, staged: Staged, event: Event) -> None:
        self._streams.host_waits(event)
        for pool, parts in enumerate(staged.pools):
            rows_C, slot = parts.host_rows_C, staged.slot
            self._host.keep(pool, rows_C)
            self._copier.scatter(self._host.weights[pool], rows_C, parts.weights_CD.pinned(slot))
            self._copier.scatter(self._host.state[pool], rows_C, parts.state_CK.pinned(slot))
        self._in_flight.end(flight)
        staged.slot.release(None)  # what came down came after all computation with it

    def settle(self) -> None:
        """Return when all rows are home."""
        while self._returning:
            self._returning.popleft().result()

    def close(self) -> None:
        self.settle()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
