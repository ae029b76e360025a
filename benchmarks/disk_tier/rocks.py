"""Rows in RocksDB, with the same look-ahead as ours."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from benchmarks.disk_tier.rivals import RivalRows

OPEN_FILES = 512
KEY = np.dtype(">u4")
"""Big endian, so that keys have the order of the rows."""


def options(memory_bytes: int) -> rocksdict.Options:
    """Return options for random reads of small values: no compression, a Bloom filter, half of the memory for rows that were read
    lately. Blocks of files have the rest, as page cache."""
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    blocks.set_block_size(4096)
    found = rocksdict.Options(raw_mode=True)
    found.create_if_missing(True)
    found.set_block_based_table_factory(blocks)
    found.set_compression_type(rocksdict.DBCompressionType.none())
    found.set_row_cache(rocksdict.Cache(memory_bytes // 2))
    found.set_max_open_files(OPEN_FILES)
    found.set_write_buffer_size(16 << 20)
    return found


def unlogged() -> rocksdict.WriteOptions:
    """Return options of writes without a log: rows are on the disk when a checkpoint flushes them, as ours."""
    found = rocksdict.WriteOptions()
    found.disable_wal = True
    return found


class RocksRows(RivalRows):
    """A thread reads the distinct rows of coming batches; rows that were written meanwhile are replaced at the step."""

    def __init__(self, config: Config, source: Source, folder: Path, memory_bytes: int) -> None:
        super().__init__(config, source, folder)
        self._store = rocksdict.Rdict(str(folder / "rows"), options(memory_bytes))
        self._unlogged = unlogged()
        self._written: deque[tuple[NDArray[np.int64], NDArray[np.float32]]] = deque(maxlen=config.knobs.prefetch_depth + 2)
        """Rows that the last steps wrote, ascending, and their values."""
        self._steps = 0
        """Steps whose rows are in the store."""
        self.begin(config, source)

    def write_first(self, first: int, weights: NDArray[np.float32]) -> None:
        rows = np.zeros((len(weights), self.dim + 1), np.float32)
        rows[:, :-1] = weights
        self._put(np.arange(first, first + len(weights)), rows)

    def settle(self) -> None:
        self._store.flush()
        super().settle()

    def _put(self, row_U: NDArray[np.int64], rows_UK: NDArray[np.float32]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in zip(keys_of(row_U), values_of(rows_UK), strict=True):
            batch.put(key, value)
        self._store.write(batch, self._unlogged)

    def _get(self, row_U: NDArray[np.int64]) -> NDArray[np.float32]:
        joined = bytearray(b"".join(self._store.get(list(keys_of(row_U)))))
        return np.frombuffer(joined, np.float32).reshape(len(row_U), self.dim + 1)

    def read_ahead(self, work: ClassifiedBatch) -> Any:
        steps = self._steps  # before any row is read
        return steps, self._get(work.distinct_U)

    def read(self, work: ClassifiedBatch, ahead: Any) -> NDArray[np.float32]:
        steps, rows_UK = ahead
        newer = self._steps - steps
        for rows, values in list(self._written)[len(self._written) - newer :]:
            place_U = np.minimum(np.searchsorted(rows, work.distinct_U), len(rows) - 1)
            written_U = rows[place_U] == work.distinct_U
            rows_UK[written_U] = values[place_U[written_U]]
        found: NDArray[np.float32] = rows_UK
        return found

    def write(self, work: ClassifiedBatch, rows_UK: NDArray[np.float32]) -> None:
        order = np.argsort(work.distinct_U)
        self._written.append((work.distinct_U[order], rows_UK[order]))
        self._put(work.distinct_U, rows_UK)
        self._steps += 1

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        return self._get(self.space.table_first_row[table] + ids)[:, :-1]

    def close(self) -> None:
        super().close()
        self._store.close()


def keys_of(row_U: NDArray[np.int64]) -> Iterator[bytes]:
    joined, size = row_U.astype(KEY).tobytes(), KEY.itemsize
    return (joined[place : place + size] for place in range(0, len(joined), size))


def values_of(rows_UK: NDArray[np.float32]) -> Iterator[bytes]:
    joined, size = rows_UK.tobytes(), rows_UK.shape[1] * rows_UK.itemsize
    return (joined[place : place + size] for place in range(0, len(joined), size))
