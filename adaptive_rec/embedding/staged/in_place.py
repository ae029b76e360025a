"""The path of cold rows that stay where they are: the kernels of a step read and write them in host memory, over the bus.

No row travels ahead of its step, so none can be out of date: nothing is gathered, looked for in earlier batches or written back
by the host, and steps follow each other on the device as if all rows were there. What the host does for them is to remember which
have changed. In exchange a step waits for its rows to cross the bus, read for the bags, read for the update, and written. That
suits batches with few or narrow cold rows, where the host's work for each batch takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.embedding.staged.in_flight import Flight, Staged
from adaptive_rec.embedding.staged.packing import SlotLayout
from adaptive_rec.embedding.staged.path import StagedPath
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.shared_tables import SharedTables
from adaptive_rec.embedding.staged.stager import RoomForRows, Stager
from adaptive_rec.embedding.staged.travelling import TravellingRows
from adaptive_rec.embedding.staged.write_back import LEAST_FLAGGED
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.crew import Crew

Unflagged: TypeAlias = list[tuple[NDArray[np.int64], NDArray[np.bool_] | None]]
"""The cold rows of some batches, by their numbers in the joint row space, and which of them have changed (None: all)."""

MOST_UNFLAGGED = 16
"""Batches whose rows are flagged as changed together."""


class InPlaceStager(Stager):
    """Stages batches without their cold rows: the source of such a row is its place in the host tier."""

    travels = False

    def __init__(
        self, space: RowSpace, rule: RowRule, cold: InMemory, dtype: torch.dtype, ring: StagingRing, crew: Crew,
        tables: SharedTables,
    ) -> None:  # fmt: skip
        super().__init__(space, rule, cold, dtype, ring, crew)
        self._tables = tables

    def _split(self, work: ClassifiedBatch) -> tuple[NDArray[np.int32], TravellingRows]:
        _, cold = super()._split(work)
        return work.source_U.astype(np.int32), cold

    def _room(self, layout: SlotLayout, cold: TravellingRows, earlier: list[tuple[Flight, Staged]]) -> RoomForRows:
        stop = layout.nbytes
        return RoomForRows(cold, [], None, stop, stop, {}, {}, stop, stop)

    def _rows_in(self, room: RoomForRows, pool: int, slot: Slot) -> tuple[None, tuple[Tensor, Tensor]]:
        return None, self._tables.of_pool(pool)


class DeviceInPlacePath(StagedPath):
    """A `StagedPath` that stages no rows."""

    in_place = True
    _cold: InMemory

    def __init__(self, *settings: Any, **more: Any) -> None:
        """As a `StagedPath`. Raises ConfigError where the host tier cannot be locked."""
        self._unflagged: Unflagged = []
        self._flagged: Callable[[], object] = lambda: None
        """Returns when all rows are flagged but those of `_unflagged`."""
        super().__init__(*settings, **more)

    @cached_property
    def tables(self) -> SharedTables:
        """The host tier, locked as long as the store is there: a run that has ended is scored."""
        return SharedTables(self.streams, self._cold, list(range(len(self._index.space.pools))))

    def _make_stager(self, ring: StagingRing) -> Stager:
        return InPlaceStager(
            self._index.space, self._rules[0], self._cold, self._hot.dtype, ring, self._crew, self.tables
        )

    def _hold_before(self, flight: Flight) -> list[tuple[Flight, Staged]] | None:
        return []

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        if self._cold.is_being_saved:
            for pool, parts in enumerate(self._staged(work).pools):
                self._cold.keep(pool, parts.host_rows_C)  # before the update is queued
        super().apply(work, update)

    def _fly_home(
        self, work: ClassifiedBatch, staged: Staged, updated: bool, changed: list[NDArray[np.bool_]] | None
    ) -> None:
        rows_C = staged.travelling.row_C
        if updated and len(rows_C):
            self._unflagged.append((rows_C, None if changed is None else np.concatenate(changed)))
            if len(self._unflagged) >= MOST_UNFLAGGED:
                self._flag_beside()
            self._count_bytes(staged, changed)
        super()._fly_home(work, staged, updated, changed)

    def _count_bytes(self, staged: Staged, changed: list[NDArray[np.bool_]] | None) -> None:
        """Count what crosses the bus: the weights of each row for the bags, and all of it for the update, both ways."""
        for pool, parts in enumerate(staged.pools):
            cold = len(parts.host_rows_C)
            updated = cold if changed is None else int(np.count_nonzero(changed[pool]))
            weights, state = (table.shape[1] * table.itemsize for table in self.tables.of_pool(pool))
            row_bytes = weights + state
            self._index.traffic.add_bytes(to_device=cold * weights + updated * row_bytes, to_host=updated * row_bytes)

    def _flag_beside(self) -> None:
        """Begin to flag the rows that steps have changed, beside the next steps. Those before are flagged by then."""
        self._flagged()
        unflagged, self._unflagged = self._unflagged, []
        rows = sum(len(rows_C) for rows_C, _ in unflagged)
        self._flagged = self._crew.start(partial(self._flag, unflagged), rows, LEAST_FLAGGED)

    def _flag(self, changed: Unflagged) -> None:
        for rows_C, chosen_C in changed:
            self._index.flagging(0, rows_C, chosen_C)(0, len(rows_C))

    def _flag_all(self) -> None:
        self._flag_beside()
        self._flagged()

    def flag_changed(self) -> None:
        self._flag_all()

    def settle(self) -> None:
        super().settle()
        self._flag_all()
