"""The rows of a user's loop of one process. `shared_rows.py` has those of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.host import room_like
from adaptive_rec.embedding.row_types import as_tensor
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.modules.loop.bags import Bags
from adaptive_rec.modules.loop.dense_steps import DenseSteps
from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.reading import gather_pools
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.step_parts import StepPart
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import Group

if TYPE_CHECKING:
    from adaptive_rec.system.common_work import CommonWork

TableIds = Sequence[tuple[int, NDArray[np.int64]]]
"""Tables, by their numbers, each with ids that are looked up in it."""

Gradients = tuple[list[StepPart], list[Bags]]
"""The parts of a step, and lookups that count and have no part of their own."""


class OwnRows:
    """The rows of a loop's tables, all of which this process owns."""

    gradient_type: type[RowGradient] = RowGradient

    def __init__(
        self, group: Group, space: RowSpace, store: EmbeddingStore, dense_steps: DenseSteps, catches_up: bool
    ) -> None:
        """`space`: the row space of the model's tables. `catches_up`: whether rows may have missed steps."""
        self.group, self.space = group, space
        self._store, self._dense_steps, self._catches_up = store, dense_steps, catches_up

    # A step ----------------------------------------------------------------------------------------------------------

    def gather(self, call: PoolCall, step: int) -> Tensor:
        """Return the pooled vectors (L, D) of a call. `step`: the number of updates so far."""
        if self._catches_up:
            parts = [] if call.ahead is None else call.ahead.batch.parts
            for bags in [bags for _, bags, _ in parts if bags.pool == call.bags.pool] or [call.bags]:
                self._dense_steps.catch_up(bags.tables[0], bags.row_N)
        return gather_pools(self._store, call, step)

    def collect(self, parts: list[StepPart], seen: list[Bags], lr_of_table: Mapping[int, float], step: int) -> Gradients:
        """Return the gradients and lookups of the rows that are owned here, of all processes."""
        return parts, seen

    def norm(self, table: int, id_U: Tensor, values_UD: Tensor, order: float, dtype: torch.dtype | None) -> Tensor:
        """Return the norm of the average of the gradients that all processes have of a table, by the ids of its rows."""
        return torch.linalg.vector_norm(values_UD, order, dtype=dtype)

    def must_read(self, flags: Tensor) -> bool:
        """Return whether what is flagged must be read: where something is, or where other processes might have flagged it."""
        return bool(flags.any())

    # Rows of raw ids -------------------------------------------------------------------------------------------------

    def owned_of(self, table: int, id_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of some rows of a table are owned here: their places in `id_N`, and their numbers among the table's rows
        here."""
        return np.arange(len(id_N)), id_N

    def join_ids(
        self, ids: TableIds, step: int, known: Mapping[str, int]
    ) -> tuple[TableIds, list[slice]]:
        """Return the ids that all processes look up in a call, and where those of this process are among them. `known`: what all
        processes must have alike by now, by name."""
        return ids, [slice(None)] * len(ids)

    def total(self, table: int, values_C: NDArray[np.float64], step: int) -> NDArray[np.float64]:
        """Add up a value of each of some rows of a table over all processes."""
        return values_C

    def draw(self, table: int, id_C: NDArray[np.int64], key_C: NDArray[np.int64], rows: int) -> None:
        """Set those rows of a table that are owned here to the first values of keys, as in a table of `rows`."""
        here, own_C = self.owned_of(table, id_C)
        self._store.contents.draw_rows(table, own_C, key_C[here], rows)

    def finish_draws(self) -> None:
        """Set rows again that were drawn while they were hot. The training thread calls it."""
        self._store.contents.finish_draws()

    # Whole tables ----------------------------------------------------------------------------------------------------

    def set_first(self, table: int, fill: Callable[[Tensor], object]) -> None:
        """Set a table's first rows: `fill` gets a tensor (R, D) that it sets in place."""
        with self._first(table) as rows:
            fill(rows)

    @contextmanager
    def _first(self, table: int) -> Iterator[Tensor]:
        """Yield the table's rows that are owned here, in host memory, to be set in the body of a ``with``."""
        pool, low, high = self._store.space.table_range(table)
        if not self._store.cold.on_disk:
            yield as_tensor(self._store.cold.types.weights[pool][low:high])
            return
        weights, state = room_like(self._store.cold.arrays(pool), high - low)
        yield as_tensor(weights)
        self._store.contents.replace_table(table, weights, state)

    def whole(self, table: int, own_RK: NDArray[Any], step: int) -> NDArray[Any]:
        """Return the values (R, K) of all rows of a table from those of the rows that are owned here."""
        return own_RK

    def between(self, table: int, first: int, end: int, step: int, together: CommonWork) -> NDArray[Any] | None:
        """Return the weights of a table's rows from a first one to an end; None on ranks that are not the first."""
        return self._store.contents.export(table, first, end)[0]

    def own(self, table: int, whole_RK: NDArray[Any], step: int) -> NDArray[Any]:
        """Return the values of the rows that are owned here, which are about to be written."""
        return whole_RK

    def own_ids(
        self, table: int, id_N: NDArray[np.int64], values_ND: NDArray[Any], step: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the same as `owned_of`, of rows about to be set to values: processes do so together, to the same ones."""
        return self.owned_of(table, id_N)
