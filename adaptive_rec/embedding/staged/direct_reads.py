"""Cold rows that the device reads in host memory by itself, a second way beside copies that the host gathers for it.

Only the numbers of the rows go up; then a kernel on the queue of copies up reads the rows over the bus into the batch's slot. All
else is as where rows are staged: a row that an earlier flight holds is forwarded over whatever was read, and rows come home by
copies. A byte crosses host memory once instead of three times, but each array of a row costs reads of its own: that pays for wide
rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adaptive_rec.embedding.host import ColdTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.row_types import as_tensor
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.errors import ConfigError
from adaptive_rec.placement import RowSpace

READ_BYTES, READ_NS, READS_UNDER_WAY = 128, 1200, 256
"""A read over the bus, how long it takes, and how many a device has under way: estimates for PCIe 5.0, not measured."""

STAGED_NS = 0.1
"""Time of a staged byte: it crosses host memory six times at 60 GB/s (`offline/simulate/h200.toml`), an estimate too."""


def pays(weight_bytes: int, state_bytes: int) -> bool:
    """Return whether direct reads of a row, with its optimizer state, take at most half the time of staging it."""
    reads = sum(-(-size // READ_BYTES) for size in (weight_bytes, state_bytes))
    return reads * READ_NS / READS_UNDER_WAY <= STAGED_NS * (weight_bytes + state_bytes) / 2


class DirectReads:
    """Pools whose rows the device reads in host memory, which stays locked until `close`."""

    def __init__(self, streams: Streams, host: ColdTier, pools: list[int]) -> None:
        """Raises ConfigError where the memory cannot be locked."""
        self._streams = streams
        self._tables: dict[int, list[Tensor]] = {}
        self._last: Event | None = None
        try:
            for pool in pools:
                self._tables[pool] = []
                for array in host.arrays(pool):
                    table = as_tensor(array)
                    streams.share(table)
                    self._tables[pool].append(table)
        except BaseException:
            self.close()
            raise

    def __contains__(self, pool: object) -> bool:
        return pool in self._tables

    def reading(self, pool: int, numbers_C: Tensor, rows: tuple[Tensor, Tensor]) -> Callable[[], None]:
        """Return work that reads a pool's rows, by their numbers (int64) within it, into weights and optimizer state."""

        def read() -> None:
            for table, to in zip(self._tables[pool], rows, strict=True):
                self._streams.kernels.copy_rows(table, numbers_C, to, None)

        return read

    def queued(self, event: Event) -> Event:
        """Keep the event of the last read, and return it."""
        self._last = event
        return event

    def close(self) -> None:
        """Wait for the reads under way, and unlock the memory."""
        if self._last is not None:
            self._streams.host_waits(self._last)
        tables, self._tables = self._tables, {}
        for of_pool in tables.values():
            for table in of_pool:
                self._streams.unshare(table)


def direct_reads(
    wanted: str, space: RowSpace, rule: RowRule, dtype: torch.dtype, streams: Streams, host: ColdTier
) -> tuple[DirectReads | None, str]:
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
        return DirectReads(streams, host, pools), ""
    except ConfigError as error:
        if wanted == "direct":
            raise
        return None, f"cold rows are staged: {error}"
