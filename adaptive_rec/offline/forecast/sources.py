"""Sources of a forecast: one that keeps its batches for all who read them, one with smaller tables, and raw traces of keys.

Of a trace, `.bin` and `.xz` files hold big-endian 64-bit keys in the order of arrival; a `.npy` file holds whole numbers, one key
or one line of keys for each sample. Each column is a table, whose rows are numbered in the order in which keys first occur.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, FeatureSpec, Position, SequenceSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.data.source import Source, Wrapped, epoch_batches
from adaptive_rec.errors import DataError
from adaptive_rec.placement import RowSpace

KEPT_LIMIT_BYTES = 1 << 30


@dataclass
class _Stream:
    """A stream from one position on: the batches read so far, and the iterator over the rest."""

    rest: Iterator[Batch]
    batches: list[Batch] = field(default_factory=list)


class KeptSource(Wrapped):
    """A source that keeps its batches and their distinct rows in memory up to a limit, and reads the others again each time.

    The same position always yields the same batches, so the results are equal.
    """

    def __init__(self, source: Source, space: RowSpace, limit_bytes: int = KEPT_LIMIT_BYTES) -> None:
        super().__init__(source)
        self._space, self._left_bytes = space, limit_bytes
        self._streams: dict[tuple[Position, int], _Stream] = {}
        self._works: dict[int, ClassifiedBatch] = {}
        """Distinct rows by the identity of their batch, which is kept as long."""

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        stream = self._streams.get((position, batch_size))
        if stream is None:
            stream = _Stream(self._source.train_batches(position, batch_size))
            self._streams[position, batch_size] = stream
        place = 0
        while True:
            if place == len(stream.batches):
                if self._left_bytes <= 0:
                    yield from self._source.train_batches(position, batch_size)
                    return
                batch = next(stream.rest, None)
                if batch is None:
                    return
                stream.batches.append(batch)
                self._left_bytes -= _bytes(batch)
            yield stream.batches[place]
            position = stream.batches[place].position
            place += 1

    def keep(self, work: ClassifiedBatch) -> None:
        """Keep a batch's distinct rows where there is room."""
        if self._left_bytes > 0 and id(work.batch) not in self._works:
            self._works[id(work.batch)] = work
            self._left_bytes -= work.inverse_N.nbytes * 4 + work.distinct_U.nbytes * 3

    def classified(self, batch: Batch) -> ClassifiedBatch:
        """Return a batch's distinct rows, not yet classified; those that are not kept are found again."""
        work = self._works.get(id(batch))
        return work if work is not None and work.batch is batch else ClassifiedBatch(batch, self._space)


def _bytes(batch: Batch) -> int:
    return batch.dense_BX.nbytes + batch.ids_N.nbytes + batch.offsets.nbytes + batch.labels_B.nbytes


class Folded(Wrapped):
    """A source whose tables are cut to a number of rows, or each to one of its own, with ids folded into them."""

    def __init__(self, source: Source, rows: int | Sequence[int]) -> None:
        super().__init__(source)
        rows_T = [rows] * len(source.tables) if isinstance(rows, int) else rows
        self.tables = tuple(replace(table, rows=min(table.rows, n)) for table, n in zip(source.tables, rows_T, strict=True))
        self._rows_F = np.array([self.tables[feature.table].rows for feature in source.features])

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return map(self._fold, self._source.train_batches(position, batch_size))

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return map(self._fold, self._source.test_batches(batch_size, max_samples, validation))

    def _fold(self, batch: Batch) -> Batch:
        rows_N = np.repeat(np.tile(self._rows_F, batch.size), np.diff(batch.offsets))
        return replace(batch, ids_N=batch.ids_N % rows_N)


# Traces ---------------------------------------------------------------------------------------------------------------


SUFFIXES = (".bin", ".npy", ".xz")
KEY_BYTES = 8


class TraceSource:
    """A trace in memory, read once. It has no labels and no held-out samples."""

    def __init__(self, path: Path, dim: int) -> None:
        """Read a trace; its rows count as vectors of `dim` components. Raises DataError where the file holds no trace."""
        keys_SF = read_keys(path)
        self._ids_SF = np.empty(keys_SF.shape, dtype=np.int64)
        rows = [_number(keys_SF[:, f], self._ids_SF[:, f]) for f in range(keys_SF.shape[1])]
        self.tables = tuple(TableSpec(f"K{f + 1}", n, dim) for f, n in enumerate(rows))
        self.features = tuple(FeatureSpec(f"K{f + 1}", f) for f in range(len(rows)))
        self.dense_features = 0
        self.train_samples, self.validation_samples, self.test_samples = len(keys_SF), 0, 0
        self.epochs = 1
        self.malformed_rows = 0
        self.sequence: SequenceSpec | None = None

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the keys from `position` on."""
        for start, stop, after in epoch_batches(position, 0, self.train_samples, batch_size):
            nothing = np.zeros((stop - start, 0), dtype=np.float32)
            yield Batch.one_hot(nothing, self._ids_SF[start:stop], np.zeros(stop - start, dtype=np.float32), after)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield nothing, as a trace has no held-out samples."""
        yield from ()


def read_keys(path: Path) -> NDArray[np.generic]:
    """Return the keys of a file, a line for each sample. Raises DataError where it cannot be read or holds something else."""
    rule = f"a trace must be a readable {' or '.join(SUFFIXES)} file"
    try:
        keys = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _big_endian(path)
    except ValueError:  # NumPy's words advise to load it without safety
        raise DataError(f"{rule}, got {path}, which holds objects or no array") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{rule}, got {path}: {getattr(error, 'strerror', None) or error}") from None
    if not np.issubdtype(keys.dtype, np.integer) or keys.ndim not in (1, 2) or not keys.size:
        raise DataError(
            f"a trace must hold whole numbers, one for each sample or a line of them for each, "
            f"got {path} of shape {keys.shape} and type {keys.dtype}"
        )
    return keys.reshape(len(keys), -1)


def _big_endian(path: Path) -> NDArray[np.generic]:
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    if len(content) % KEY_BYTES:
        raise DataError(f"a trace must hold whole keys of {KEY_BYTES} bytes, got {path} of {len(content)} bytes")
    return np.frombuffer(content, dtype=">u8").astype(np.uint64)


def _number(keys_S: NDArray[np.generic], ids_S: NDArray[np.int64]) -> int:
    """Number a column's keys in the order of first occurrence. Returns how many distinct keys there are."""
    _, first, inverse = np.unique(keys_S, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    ids_S[:] = number[inverse]
    return len(first)
