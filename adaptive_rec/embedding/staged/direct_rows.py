"""Cold rows that the device reads and writes in host memory by itself, a second way beside copies that the host gathers for it.

Only the numbers of the rows go up; then a kernel on the queue of copies up reads the rows over the bus into the batch's slot, and
after the step one on the queue of copies down writes them back. All else is as where rows are staged: a row that an earlier
flight holds is forwarded over whatever was read, and the thread that brings rows home waits for the write before it ends a
flight. A byte crosses host memory once instead of three times, but each array of a row costs accesses of its own: that pays for
wide rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.staged.in_flight import DirectPool
from adaptive_rec.embedding.staged.shared_tables import SharedTables
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.errors import ConfigError
from adaptive_rec.placement import RowSpace

READ_BYTES, READ_NS, READS_UNDER_WAY = 128, 1200, 256
"""A read over the bus, how long it takes, and how many a device has under way: estimates for PCIe 5.0, not measured."""

STAGED_NS = 0.1
"""Time of a staged byte: it crosses host memory six times at 60 GB/s (`offline/forecast/h200.toml`), an estimate too."""


def pays(weight_bytes: int, state_bytes: int) -> bool:
    """Return whether direct reads of a row, with its optimizer state, take at most half the time of staging it."""
    reads = sum(-(-size // READ_BYTES) for size in (weight_bytes, state_bytes))
    return reads * READ_NS / READS_UNDER_WAY <= STAGED_NS * (weight_bytes + state_bytes) / 2


class DirectRows:
    """Pools whose rows the device reads and writes in host memory, which stays locked until `close`."""

    def __init__(self, streams: Streams, cold: InMemory, pools: list[int]) -> None:
        """Raises ConfigError where the memory cannot be locked."""
        self._streams = streams
        self._cold = cold
        self._last_read: Event | None = None
        self._last_write: Event | None = None
        self._tables = SharedTables(streams, cold, pools)

    def __contains__(self, pool: object) -> bool:
        return pool in self._tables

    def reading(self, pools: list[DirectPool]) -> Callable[[], None]:
        """Return work that reads rows into their slot."""

        def read() -> None:
            for pool, _, numbers_C, rows in pools:
                for table, to in zip(self._tables.of_pool(pool), rows, strict=True):
                    self._streams.kernels.copy_rows(table, numbers_C, to, None)

        return read

    def write(self, pools: list[DirectPool], after: Event) -> Event:
        """Queue the way home of rows in their slot, after the event. Returns its own. A snapshot may copy the rows first, so this
        may take long."""
        for pool, rows_C, *_ in pools:
            self._cold.keep(pool, rows_C)

        def write() -> None:
            for pool, _, numbers_C, rows in pools:
                for table, source in zip(self._tables.of_pool(pool), rows, strict=True):
                    self._streams.kernels.copy_rows(source, None, table, numbers_C)

        self._last_write = self._streams.launch_down(write, after)
        return self._last_write

    def queued(self, event: Event) -> Event:
        """Keep the event of the last read, and return it."""
        self._last_read = event
        return event

    def close(self) -> None:
        """Wait for what is under way, and unlock the memory."""
        for event in (self._last_read, self._last_write):
            if event is not None:
                self._streams.host_waits(event)
        self._tables.close()


def direct_rows(
    wanted: str, space: RowSpace, rule: RowRule, dtype: torch.dtype, streams: Streams, cold: InMemory
) -> tuple[DirectRows | None, str]:
    """Return the pools that a store reads directly, or None, and a complaint. `wanted`: staged, direct, or auto, which has wide
    rows read directly where memory can be locked. Raises ConfigError where direct reads are wanted and it cannot."""
    weights = rule.weight_type(dtype).itemsize
    pools = [
        number
        for number, pool in enumerate(space.pools)
        if wanted == "direct"
        or (wanted == "auto" and pays(pool.dim * weights, rule.state_width(pool.dim) * dtype.itemsize))
    ]
    if not pools:
        return None, ""
    try:
        return DirectRows(streams, cold, pools), ""
    except ConfigError as error:
        if wanted == "direct":
            raise
        return None, f"cold rows are staged: {error}"
