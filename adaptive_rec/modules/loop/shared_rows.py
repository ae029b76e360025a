"""The rows of a user's loop of several processes: each row has one owner, which has its value and its optimizer state.

A forward call fetches the distinct rows that it reads from their owners. A step sends each owner one gradient for each distinct
row of this rank's part of the batch; the owner averages over the ranks, as DistributedDataParallel does, and updates the row
once. Tiers, update rules and counts of the owner's rows are those of a loop of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.embedding.peers.requests import MOST_COUNTED
from adaptive_rec.embedding.peers.row_exchange import (
    LOOK_UP,
    NORM,
    TAKE,
    TOTAL,
    UPDATE,
    WRITE,
    RankCall,
    RowExchange,
    shared_digest,
)
from adaptive_rec.embedding.row_types import as_array
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import GroupError
from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.modules.loop.bags import NO_CALL, BagBatch, Bags, PoolTables
from adaptive_rec.modules.loop.dense_steps import DenseSteps
from adaptive_rec.modules.loop.finite_sums import mean_is_finite
from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.own_rows import Gradients, OwnRows, TableIds
from adaptive_rec.modules.loop.part_gradient import PartGradient
from adaptive_rec.modules.loop.reading import gather_pools
from adaptive_rec.modules.loop.row_sums import by_lookup, sum_by_row
from adaptive_rec.modules.loop.step_parts import StepPart
from adaptive_rec.modules.loop.uploads import to_device
from adaptive_rec.system.group import Group

if TYPE_CHECKING:
    from adaptive_rec.system.common_work import CommonWork

PoolRows = tuple[Tensor, Tensor, NDArray[np.int64]]
"""Distinct rows of a pool (U), rising, the sums of their gradients (U, D), and the numbers of their lookups (U)."""


def loop_rows(
    group: Group, ownership: Ownership, store: EmbeddingStore, dense_steps: DenseSteps, catches_up: bool
) -> OwnRows:
    """Return the rows of a loop, by whether it has several processes. `catches_up`: whether rows may have missed steps."""
    if group.is_alone:
        return OwnRows(group, ownership.space, store, dense_steps, catches_up)
    return SharedRows(group, ownership, store, dense_steps, catches_up)


class SharedRows(OwnRows):
    """The rows of a loop's tables that this rank owns, and those of other ranks fetched for each call."""

    gradient_type = PartGradient

    def __init__(
        self, group: Group, ownership: Ownership, store: EmbeddingStore, dense_steps: DenseSteps, catches_up: bool
    ) -> None:
        super().__init__(group, ownership.space, store, dense_steps, catches_up)
        self._exchange = RowExchange(group, ownership)
        self._tables = [PoolTables.of(store.space, [table], [False]) for table in range(len(store.space.tables))]

    # A step ----------------------------------------------------------------------------------------------------------

    def gather(self, call: PoolCall, step: int) -> Tensor:
        bags, ahead, space, store = call.bags, call.ahead, self.space, self._store
        if ahead is None:
            first, work = 0, ClassifiedBatch(BagBatch.of(space, [(NO_CALL, bags)]), space, store.threads)
            rows_UD = self._fetch(work, bags.pool, bags.tables, step)
        else:  # the rows of all its calls, once
            first, work = int(ahead.work.batch.offsets[call.first * len(space.pools)]), ahead.work
            tables = {table for _, some, _ in ahead.batch.parts if some.pool == bags.pool for table in some.tables}
            if (kept := ahead.pooled(bags.pool, (step, 0))) is None:
                kept = self._fetch(work, bags.pool, tuple(sorted(tables)), step)
                ahead.keep_pooled(bags.pool, (step, 0), kept)
            rows_UD = kept
        place_N = work.inverse_N[first : first + len(bags.row_N)].astype(np.int64) - work.pool_range(bags.pool).start
        pooled_LD = torch.empty((len(bags), rows_UD.shape[1]), dtype=store.dtype)
        rows = rows_UD.numpy()
        gather_bags(0, 1, 0, bags.offsets, place_N, rows, rows, pooled_LD.numpy(), threads=store.threads)
        if bags.divisor_L1 is not None:
            pooled_LD /= bags.divisor_L1
        return to_device(pooled_LD, store.torch_device)

    def _fetch(self, work: ClassifiedBatch, pool: int, tables: tuple[int, ...], step: int) -> Tensor:
        """Return the distinct rows (U, D) of a pool that a batch reads, from their owners."""
        rank_call = RankCall(LOOK_UP, tables, step + 1, shared_digest(tables))
        asked = self._exchange.ask(rank_call, work.distinct_U[work.pool_range(pool)])
        row_M = asked.row_M - self._store.space.pools[pool].first_row
        for table in tables if self._catches_up else ():
            _, low, high = self._store.space.table_range(table)
            self._dense_steps.catch_up(table, row_M[(low <= row_M) & (row_M < high)])
        own = Bags(pool, row_M, np.arange(len(row_M) + 1), len(row_M), tables, in_turn=False)
        return torch.from_numpy(asked.answer(gather_pools(self._store, PoolCall(own), step).cpu().numpy()))

    def collect(self, parts: list[StepPart], seen: list[Bags], lr_of_table: Mapping[int, float], step: int) -> Gradients:
        by_pool = {self.space.table_range(table)[0] for table in lr_of_table}
        collected: list[StepPart] = []
        counted: list[Bags] = []
        digest = shared_digest([*lr_of_table, *lr_of_table.values()])
        rates = ", ".join(f"{lr:g}" for lr in dict.fromkeys(lr_of_table.values()))
        for pool in sorted(by_pool):
            found = self._summed(pool, parts, seen)
            sound = mean_is_finite(found[1], self.group.ranks)
            rank_call = RankCall(UPDATE, tuple(lr_of_table), step + 1, digest, sound, own=rates)
            own_parts, own_seen = self._from_all_ranks(pool, found, rank_call, lr_of_table)
            collected += own_parts
            counted += own_seen
        return collected, counted

    def _summed(self, pool: int, parts: list[StepPart], seen: list[Bags]) -> PoolRows:
        """Return the gradients of this rank's part of the batch."""
        own = [part for part in parts if part.call.bags.pool == pool]
        like = torch.empty((0, self.space.pools[pool].dim), dtype=self._store.dtype, device=self._store.torch_device)
        row_U, values_UD = (part.cpu() for part in sum_by_row([by_lookup(each.call, each.gradient_LD) for each in own], like))
        looked_up = [bags.row_N for bags in seen if bags.pool == pool]
        looked_up += [part.call.bags.row_N for part in own if part.counts]
        row_N = np.concatenate([np.empty(0, np.int64), *looked_up])
        place_N = np.searchsorted(row_U.numpy(), row_N)
        known_N = place_N < len(row_U)
        known_N[known_N] = row_U.numpy()[place_N[known_N]] == row_N[known_N]
        return row_U, values_UD, np.bincount(place_N[known_N], minlength=len(row_U))

    def _from_all_ranks(self, pool: int, found: PoolRows, rank_call: RankCall, lr_of_table: Mapping[int, float]) -> Gradients:
        """Send gradients to their owners. Returns those of the rows that this rank owns, and the lookups of these rows."""
        row_U, values_UD, count_U = found
        asked = self._exchange.ask(rank_call, row_U.numpy() + self.space.pools[pool].first_row)
        received_MD = torch.from_numpy(asked.send(values_UD.contiguous().numpy())) / self.group.ranks
        count_M = asked.send(np.minimum(count_U, MOST_COUNTED).astype(np.uint16))
        parts, seen = [], []
        for table, lr in lr_of_table.items():
            if self.space.table_range(table)[0] != pool:
                continue
            first = int(self._store.space.table_first_row[table])
            lines = np.flatnonzero((first <= asked.row_M) & (asked.row_M < first + self._store.space.tables[table].rows))
            ids = asked.row_M[lines] - first
            gradient = to_device(received_MD[torch.from_numpy(lines)], self._store.torch_device)
            parts.append(StepPart(PoolCall(self._bags(table, ids)), gradient, lr, counts=False))
            seen.append(replace(self._bags(table, np.repeat(ids, count_M[lines])), samples=0))
        return parts, seen

    def _bags(self, table: int, id_N: NDArray[np.int64]) -> Bags:
        """Return a bag for each of some rows of a table, by their numbers among those of this rank."""
        return self._tables[table].bags(id_N, np.arange(len(id_N) + 1), self._store.dtype)

    def norm(self, table: int, id_U: Tensor, values_UD: Tensor, order: float, dtype: torch.dtype | None) -> Tensor:
        rank_call = RankCall(NORM, (table,), digest=shared_digest([order]))
        asked = self._exchange.ask(rank_call, id_U.cpu().numpy() + self.space.table_first_row[table])
        values_UD = values_UD.cpu().to(self._store.dtype).contiguous()  # a dense gradient of a table of 16 bits has its type
        received_MD = torch.from_numpy(asked.send(values_UD.numpy())) / self.group.ranks
        _, averaged_UD = sum_by_row([(torch.from_numpy(asked.row_M), received_MD)], values_UD)
        own = torch.linalg.vector_norm(averaged_UD, order, dtype=dtype) if averaged_UD.numel() else torch.zeros(())
        own_W = self.group.gather(own.double().numpy().reshape(1).view(np.int64)).view(np.float64)
        return torch.linalg.vector_norm(torch.from_numpy(own_W), order).to(id_U.device)

    def must_read(self, flags: Tensor) -> bool:
        return True  # ranks make the same calls, whatever is in their part of the batch

    # Rows of raw ids -------------------------------------------------------------------------------------------------

    def join_ids(
        self, ids: TableIds, step: int, known: Mapping[str, int]
    ) -> tuple[TableIds, list[slice]]:
        tables = tuple(table for table, _ in ids)
        rank_call = RankCall(TAKE, tables, step + 1, shared_digest(tables))
        note = np.array(list(known.values()), dtype=np.int64)
        (first, *_), *others = joined = self._exchange.join(rank_call, [note, *(id_N for _, id_N in ids)])
        for rank, (found, *_) in enumerate(others, start=1):
            for name, one, other in zip(known, first.tolist(), found.tolist(), strict=True):
                if one != other:
                    raise GroupError(f"{name} must be the same on all ranks, got {one} on rank 0 and {other} on rank {rank}")
        size_WK = np.array([[len(part) for part in parts[1:]] for parts in joined])
        first_K = size_WK[: self.group.rank].sum(axis=0)
        all_ids = [np.concatenate([parts[place] for parts in joined]) for place in range(1, len(ids) + 1)]
        own = [slice(low, low + len(id_N)) for low, (_, id_N) in zip(first_K.tolist(), ids, strict=True)]
        return list(zip(tables, all_ids, strict=True)), own

    def total(self, table: int, values_C: NDArray[np.float64], step: int) -> NDArray[np.float64]:
        self._exchange.begin(RankCall(TOTAL, (table,), step + 1, len(values_C)))
        return self.group.total(values_C)

    # Whole tables ----------------------------------------------------------------------------------------------------

    def set_first(self, table: int, fill: Callable[[Tensor], object]) -> None:
        """Set a table's first rows from those that `fill` sets on rank 0, as DistributedDataParallel takes rank 0's values."""
        with self._first(table) as own:
            whole = None
            if self.group.rank == 0:
                whole = torch.empty((self.space.tables[table].rows, own.shape[1]), dtype=own.dtype)
                fill(whole)
            self._exchange.deal(table, None if whole is None else as_array(whole), as_array(own))

    def whole(self, table: int, own_RK: NDArray[Any], step: int) -> NDArray[Any]:
        return self._exchange.whole(table, own_RK, step + 1)

    def between(self, table: int, first: int, end: int, step: int, together: CommonWork) -> NDArray[Any] | None:
        ranks = self.group.ranks
        low, high = first // ranks, min(-(-end // ranks), self._store.space.tables[table].rows)
        with together.part():
            own_BK = self._store.contents.export(table, low, high)[0]
        whole_RK = self._exchange.block(table, low, own_BK, step + 1)
        return None if whole_RK is None else whole_RK[first - low * ranks : end - low * ranks]

    def own(self, table: int, whole_RK: NDArray[Any], step: int) -> NDArray[Any]:
        return self._exchange.own(table, whole_RK, step + 1)

    def own_ids(
        self, table: int, id_N: NDArray[np.int64], values_ND: NDArray[Any], step: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._exchange.begin(RankCall(WRITE, (table,), step + 1, crc32(np.ascontiguousarray(values_ND).data, crc32(id_N.data))))
        return self.owned_of(table, id_N)

    def owned_of(self, table: int, id_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        owner_N, own_row_N = self._exchange.ownership.split(id_N + self.space.table_first_row[table])
        places = np.flatnonzero(owner_N == self.group.rank)
        return places, own_row_N[places] - self._store.space.table_first_row[table]
