"""Bags of ids as a module's forward call asks for them, and how those of a step are put together into one batch of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch, TableReads
from adaptive_rec.errors import DataError
from adaptive_rec.kernels.lookups import number_jagged_rows, number_rows
from adaptive_rec.modules.inputs import Keyed
from adaptive_rec.placement import RowSpace


@dataclass(frozen=True)
class Key:
    """By which a forward call finds bags that were made ready for it: who asks, and what its tensors are."""

    signature: tuple[Any, ...]
    tensors: tuple[Tensor | None, ...] = field(compare=False)
    """Held, so that no other tensor comes to lie where one of them does."""

    @staticmethod
    def of(asker: object, *tensors: Tensor | None) -> Key:
        """Of a call with some tensors: the same memory, read in the same way, and not written since."""
        return Key((id(asker), *map(_signature, tensors)), tensors)


def _signature(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, version


NOBODY = Key((), ())


Line = tuple[int, int, int, int]
"""Of a table: its pool, its first row, that row's number within the pool, and how many rows it has."""


@dataclass(frozen=True)
class Bags:
    """L bags with N lookups, all of one pool; the bags of a sample stand together."""

    pool: int
    row_N: NDArray[np.int64]
    """Rows within the pool."""
    offsets: NDArray[np.int64]
    """L + 1 of them, from 0 to N."""
    samples: int
    tables: tuple[int, ...] = ()
    """By their numbers, those that are read."""
    lines: tuple[Line, ...] = ()
    """Where they are."""
    divisor_L1: Tensor | None = None
    """Lookups of each bag, at least 1, where bags are averaged; 1 for those that are not."""
    in_turn: bool = True
    """Whether bag ``i`` is one of table ``i % T``."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Reader:
    """Tables of one pool that are read in turn: bag ``i`` is one of table ``i % T``."""

    pool: int
    tables: tuple[int, ...]
    names: tuple[str, ...]
    first_row_T: NDArray[np.int64]
    """Within the pool."""
    rows_T: NDArray[np.int64]
    mean_T: NDArray[np.bool_]
    lines: tuple[Line, ...] = ()

    @staticmethod
    def of(space: RowSpace, tables: Sequence[int], mean: Sequence[bool]) -> Reader:
        """Of tables by their numbers, which must be of one pool."""
        ranges = [space.table_range(table) for table in tables]
        assert len({pool for pool, _, _ in ranges}) == 1, "a reader's tables are of one pool"
        return Reader(
            ranges[0][0],
            tuple(tables),
            tuple(space.tables[table].name for table in tables),
            np.array([low for _, low, _ in ranges], dtype=np.int64),
            np.array([high - low for _, low, high in ranges], dtype=np.int64),
            np.array(mean, dtype=np.bool_),
            tuple((pool, space.pools[pool].first_row + low, low, high - low) for pool, low, high in ranges),
        )

    @staticmethod
    def alone(rows: int, mean: bool) -> Reader:
        """Of a table that is a pool of its own."""
        return Reader(0, (0,), ("weight",), np.zeros(1, np.int64), np.array([rows]), np.array([mean]))

    def bags(self, ids_N: NDArray[np.int64], offsets: NDArray[np.int64], dtype: torch.dtype) -> Bags:
        """Bags of ids; `offsets` rise from 0 to N. Raises DataError for an id that lies outside its table."""
        row_N = np.empty(len(ids_N), dtype=np.int64)
        wrong = number_rows(ids_N, offsets, self.first_row_T, self.rows_T, row_N)
        if wrong >= 0:
            self._refuse(int(ids_N[wrong]), wrong, offsets)
        return self._bags(row_N, offsets, dtype)

    def keyed_bags(self, given: Keyed, features: NDArray[np.int64], dtype: torch.dtype) -> Bags:
        """Bags of features of a KeyedJaggedTensor, one for each table. Raises DataError for an id that lies outside its table."""
        row_M = np.empty(int((given.first_F1[features + 1] - given.first_F1[features]).sum()), dtype=np.int64)
        offsets = np.empty(given.length_FB.shape[1] * len(features) + 1, dtype=np.int64)
        how = given.ids_N, given.length_FB, given.one_hot, given.first_F1, features, self.first_row_T, self.rows_T
        wrong = number_jagged_rows(*how, row_M, offsets)
        if wrong >= 0:
            self._refuse(int(row_M[wrong]), wrong, offsets)
        return self._bags(row_M, offsets, dtype)

    def _bags(self, row_N: NDArray[np.int64], offsets: NDArray[np.int64], dtype: torch.dtype) -> Bags:
        samples = (len(offsets) - 1) // len(self.names)
        return Bags(self.pool, row_N, offsets, samples, self.tables, self.lines, self._divisor(offsets, dtype))

    def _refuse(self, id_: int, lookup: int, offsets: NDArray[np.int64]) -> NoReturn:
        bag = int(np.searchsorted(offsets, lookup, side="right")) - 1
        t = bag % len(self.names)
        raise DataError(
            f"ids of table {self.names[t]} must lie in [0, {self.rows_T[t]}), got {id_} (lookup {lookup}, bag {bag})"
        )

    def _divisor(self, offsets: NDArray[np.int64], dtype: torch.dtype) -> Tensor | None:
        if not self.mean_T.any():
            return None
        lengths_BT = np.maximum(np.diff(offsets), 1).reshape(-1, len(self.names))
        lengths_BT[:, ~self.mean_T] = 1
        return torch.from_numpy(lengths_BT.reshape(-1, 1)).to(dtype)


@dataclass(frozen=True)
class BagBatch(Batch):
    """A batch whose samples are bags, pool after pool. A sample has a feature for each pool, and a bag in its own pool only."""

    parts: tuple[tuple[Key, Bags, int], ...] = ()
    """The bags it was put together from, for whom they are, and the number of the first of each."""
    item: Any = field(default=None, compare=False)
    """What the loop gets, where the batch was made ready ahead of it."""

    @staticmethod
    def of(space: RowSpace, parts: Sequence[tuple[Key, Bags]], item: Any = None) -> BagBatch:
        """Put bags together. `space` has a feature for each pool."""
        ordered = sorted(parts, key=lambda part: part[1].pool)
        firsts = list(accumulate((len(bags) for _, bags in ordered), initial=0))
        ids_N, offsets = _joined(len(space.pools), [bags for _, bags in ordered], firsts)
        return BagBatch(
            dense_BX=np.empty((firsts[-1], 0), dtype=np.float32),
            ids_N=ids_N,
            offsets=offsets,
            labels_B=np.zeros(firsts[-1], dtype=np.float32),
            parts=tuple((key, bags, first) for (key, bags), first in zip(ordered, firsts, strict=False)),
            item=item,
            reads=_reads(space, [(bags, first) for (_, bags), first in zip(ordered, firsts, strict=False)]),
        )


def _joined(pools: int, parts: list[Bags], firsts: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of all bags, and the ends of a bag in each pool for every one of them."""
    if pools == len(parts) == 1:
        return parts[0].row_N, parts[0].offsets
    offsets = np.zeros(firsts[-1] * pools + 1, dtype=np.int64)
    end_LP, lookups = offsets[1:].reshape(firsts[-1], pools), 0
    for bags, first in zip(parts, firsts, strict=False):
        own = slice(first, first + len(bags))
        end_LP[own, bags.pool :] = bags.offsets[1:, None] + lookups
        if bags.pool:
            end_LP[own, : bags.pool] = bags.offsets[:-1, None] + lookups
        lookups += len(bags.row_N)
    return np.concatenate([np.empty(0, dtype=np.int64), *(bags.row_N for bags in parts)]), offsets


def _reads(space: RowSpace, parts: Sequence[tuple[Bags, int]]) -> TableReads:
    """Which bags read which table, with the number of each part's first. Where tables are not read in turn, those of the pool
    count as one."""
    pools, mixed = len(space.pools), {bags.pool for bags, _ in parts if not bags.in_turn}
    runs: dict[Line, list[tuple[int, int, int]]] = defaultdict(list)
    for bags, first in parts:
        place, count = first * pools + bags.pool, len(bags)
        if bags.pool in mixed:
            pool = space.pools[bags.pool]
            runs[bags.pool, pool.first_row, 0, pool.rows].append((place, pools, count))
            continue
        turns = len(bags.lines)
        for turn, line in enumerate(bags.lines):
            runs[line].append((place + turn * pools, turns * pools, count // turns))
    lines = sorted(runs)
    return TableReads(
        np.array([(*line, len(runs[line])) for line in lines], dtype=np.int64).reshape(-1, 5),
        np.array([run for line in lines for run in runs[line]], dtype=np.int64).reshape(-1, 3),
    )
