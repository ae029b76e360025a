"""Bags of rows that forward calls look up, and the batch that joins all bags of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch, TableReads
from adaptive_rec.errors import DataError
from adaptive_rec.kernels.lookups import number_jagged_rows, number_rows
from adaptive_rec.modules.loop.keyed import Keyed
from adaptive_rec.placement import RowSpace


@dataclass(frozen=True)
class CallKey:
    """Identity of a forward call: what it looks up, and its input tensors. Bags looked up ahead are found by it."""

    signature: tuple[Any, ...]
    tensors: tuple[Tensor | None, ...] = field(compare=False)
    """The tensors themselves: while they are held, no other tensor can get their memory."""

    @staticmethod
    def of(how: Hashable, *tensors: Tensor | None) -> CallKey:
        """Return the key of a call that looks up `how`. Keys are equal for the same memory, read in the same way and not written
        to in between."""
        return CallKey((how, *map(_signature, tensors)), tensors)


def _signature(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    try:
        version = tensor._version
    except RuntimeError:  # tensors of torch.inference_mode have none
        version = None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, version


NO_CALL = CallKey((), ())

TableRange = tuple[int, int, int, int]
"""Rows of a table: its pool, its first row, the number of that row within the pool, and the number of its rows."""


@dataclass(frozen=True)
class Bags:
    """L bags with N lookups, all of one pool. The bags of a sample are adjacent."""

    pool: int
    row_N: NDArray[np.int64]
    """Row numbers within the pool."""
    offsets: NDArray[np.int64]
    """L + 1 bounds of the bags, from 0 to N."""
    samples: int
    tables: tuple[int, ...] = ()
    """Numbers of the tables that are looked up."""
    ranges: tuple[TableRange, ...] = ()
    """Rows of these tables."""
    divisor_L1: Tensor | None = None
    """Lookups of each averaged bag, at least 1; 1 for summed bags. None where no bag is averaged."""
    in_turn: bool = True
    """Whether bag ``i`` is of table ``i % T``."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class PoolTables:
    """Tables of one pool that a module looks up in turn: bag ``i`` is of table ``i % T``."""

    pool: int
    tables: tuple[int, ...]
    names: tuple[str, ...]
    first_row_T: NDArray[np.int64]
    """First row of each table within the pool."""
    rows_T: NDArray[np.int64]
    mean_T: NDArray[np.bool_]
    ranges: tuple[TableRange, ...] = ()

    @cached_property
    def _averages(self) -> bool:
        return bool(self.mean_T.any())

    @staticmethod
    def of(space: RowSpace, tables: Sequence[int], mean: Sequence[bool]) -> PoolTables:
        """Make it from the numbers of tables, which must be of one pool."""
        ranges = [space.table_range(table) for table in tables]
        assert len({pool for pool, _, _ in ranges}) == 1, "the tables are of one pool"
        return PoolTables(
            ranges[0][0],
            tuple(tables),
            tuple(space.tables[table].name for table in tables),
            np.array([low for _, low, _ in ranges], dtype=np.int64),
            np.array([high - low for _, low, high in ranges], dtype=np.int64),
            np.array(mean, dtype=np.bool_),
            tuple((pool, space.pools[pool].first_row + low, low, high - low) for pool, low, high in ranges),
        )

    @staticmethod
    def alone(rows: int, mean: bool) -> PoolTables:
        """Make it from one table that is a pool by itself."""
        return PoolTables(0, (0,), ("weight",), np.zeros(1, np.int64), np.array([rows]), np.array([mean]))

    def bags(self, ids_N: NDArray[np.int64], offsets: NDArray[np.int64], dtype: torch.dtype) -> Bags:
        """Turn ids into bags of rows; `offsets` rise from 0 to N. Raises DataError for an id outside its table."""
        row_N = np.empty(len(ids_N), dtype=np.int64)
        wrong = number_rows(ids_N, offsets, self.first_row_T, self.rows_T, row_N)
        if wrong >= 0:
            self._refuse(int(ids_N[wrong]), wrong, offsets)
        return self._bags(row_N, offsets, dtype)

    def keyed_bags(self, given: Keyed, features: NDArray[np.int64], dtype: torch.dtype) -> Bags:
        """Turn the features of a KeyedJaggedTensor, one for each table, into bags of rows. Raises DataError as `bags` does."""
        row_M = np.empty(int((given.first_F1[features + 1] - given.first_F1[features]).sum()), dtype=np.int64)
        offsets = np.empty(given.length_FB.shape[1] * len(features) + 1, dtype=np.int64)
        source = given.ids_N, given.length_FB, given.one_hot, given.first_F1, features
        wrong = number_jagged_rows(*source, self.first_row_T, self.rows_T, row_M, offsets)
        if wrong >= 0:
            self._refuse(int(row_M[wrong]), wrong, offsets)
        return self._bags(row_M, offsets, dtype)

    def _bags(self, row_N: NDArray[np.int64], offsets: NDArray[np.int64], dtype: torch.dtype) -> Bags:
        samples = (len(offsets) - 1) // len(self.names)
        return Bags(self.pool, row_N, offsets, samples, self.tables, self.ranges, self._divisor(offsets, dtype))

    def _refuse(self, id_: int, lookup: int, offsets: NDArray[np.int64]) -> NoReturn:
        bag = int(np.searchsorted(offsets, lookup, side="right")) - 1
        t = bag % len(self.names)
        raise DataError(
            f"ids of table {self.names[t]} must lie in [0, {self.rows_T[t]}), got {id_} (lookup {lookup}, bag {bag})",
            faq="ids-beyond-the-table",
        )

    def _divisor(self, offsets: NDArray[np.int64], dtype: torch.dtype) -> Tensor | None:
        if not self._averages:
            return None
        lengths_BT = np.maximum(np.diff(offsets), 1).reshape(-1, len(self.names))
        lengths_BT[:, ~self.mean_T] = 1
        return torch.from_numpy(lengths_BT.reshape(-1, 1)).to(dtype)


@dataclass(frozen=True)
class BagBatch(Batch):
    """A batch with a bag in each sample's place, pool after pool. It has a feature for each pool; a bag has lookups in its own
    pool only."""

    parts: tuple[tuple[CallKey, Bags, int], ...] = ()
    """The bags that were joined, each part with its forward call and the number of its first bag."""
    item: Any = field(default=None, compare=False)
    """The loader's item that the batch was looked up ahead for."""

    @staticmethod
    def of(space: RowSpace, parts: Sequence[tuple[CallKey, Bags]], item: Any = None) -> BagBatch:
        """Join bags. `space` has a feature for each pool."""
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
    """Return the rows of all bags, and offsets that give each bag an end in every pool."""
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
    """Return which bags read which table; each part comes with the number of its first bag. The tables of a pool count as one
    where bags do not read them in turn."""
    pools, mixed = len(space.pools), {bags.pool for bags, _ in parts if not bags.in_turn}
    runs: dict[TableRange, list[tuple[int, int, int]]] = defaultdict(list)
    for bags, first in parts:
        place, count = first * pools + bags.pool, len(bags)
        if bags.pool in mixed:
            pool = space.pools[bags.pool]
            runs[bags.pool, pool.first_row, 0, pool.rows].append((place, pools, count))
            continue
        turns = len(bags.ranges)
        for turn, table_range in enumerate(bags.ranges):
            runs[table_range].append((place + turn * pools, turns * pools, count // turns))
    tables = sorted(runs)
    return TableReads(
        np.array([(*table, len(runs[table])) for table in tables], dtype=np.int64).reshape(-1, 5),
        np.array([run for table in tables for run in runs[table]], dtype=np.int64).reshape(-1, 3),
    )
