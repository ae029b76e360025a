"""Keys that lose their rows at the end of a window."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.peers.peers import Some
from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import Migration
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.state.run_state import RunState

SHOWN_TABLES = 8


class OwnedRows(Protocol):
    """Which rows of tables are this process's: `Peers` of a run, or the rows of a user's loop."""

    def owned_of(self, table: int, row_C: NDArray[np.int64]) -> tuple[Some, NDArray[np.int64]]: ...

    def total(self, table: int, values_C: NDArray[np.float64], step: int) -> NDArray[np.float64]: ...


class Evictions:
    """Has ids lose their rows: those that nobody has looked up for long, and the least popular ones of full tables. Clears rows
    when no step looks them up any more."""

    def __init__(self, state: RunState, observer: Observer, rows: OwnedRows | None = None) -> None:
        """`rows`: those of all processes; by default as the store's peers have them."""
        self._state, self._observer, self._rows = state, observer, rows or state.store.peers
        self._hot: list[NDArray[np.int64]] = []
        """Rows that were cleared in this window and were hot, under a policy whose hot rows do not go by popularity."""

    def end_window(self, decay: float) -> Event | None:
        """Carry out the end of a window, whose counts were multiplied by `decay`. Returns what is to be reported."""
        state, raw_keys = self._state, self._state.input.keys
        if raw_keys is None:
            return None
        knobs = state.knobs
        leaving = raw_keys.end_window(
            knobs.evict_ratio, knobs.evict_after, decay, self._popularity, self._clear, self._keep
        )
        self._make_hot_again()
        ids, known = len(leaving.key_L), state.store.peers.batch_space.tables
        if not ids:
            return None
        by_age, for_room = (
            {known[table].name: keys for table, keys in leaving.per_table(aged).items()} for aged in (True, False)
        )
        tables = {table.name: by_age.get(table.name, 0) + for_room.get(table.name, 0) for table in known}
        tables = {name: keys for name, keys in tables.items() if keys}
        names = ", ".join([*list(tables)[:SHOWN_TABLES], *(["..."] if len(tables) > SHOWN_TABLES else [])])
        why = f" ({sum(by_age.values()):,} not looked up for {knobs.evict_after:,} steps)" if by_age else ""
        found = {"ids": ids, "tables": tables, "by_age": by_age, "for_room": for_room}
        return Event(state.step, "evicted", f"{ids:,} ids lose their rows in {names}{why}", found)

    def _popularity(self, table: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many lookups are remembered of rows of a table, by their owners. Ranks call it together."""
        lookups_C = np.zeros(len(ids))
        here, own_C = self._rows.owned_of(table, ids)
        store = self._state.store
        lookups_C[here] = self._observer.tracker.estimate(store.space.table_first_row[table] + own_C, store.threads)
        return self._rows.total(table, lookups_C, self._state.step) / self._state.knobs.sample_ratio

    def _keep(self, table: int, ids: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        assert self._state.input.kept_rows is not None, "rows are kept where keys are"
        self._note_hot(table, self._rows.owned_of(table, ids)[1])  # they leave the device to be kept
        self._state.input.kept_rows.keep(table, ids, places)

    def _clear(self, table: int, ids: NDArray[np.int64]) -> None:
        own_C = self._rows.owned_of(table, ids)[1]
        self._note_hot(table, own_C)
        self._observer.forget(self._state.store.contents.clear_rows(table, own_C))

    def _note_hot(self, table: int, own_C: NDArray[np.int64]) -> None:
        store, policy = self._state.store, self._state.policy
        if not (policy.tracks_popularity or policy.arranges_stream):
            self._hot.append(store.index.hot_among(store.space.table_first_row[table] + own_C))

    def _make_hot_again(self) -> None:
        """Make cleared rows hot where they were."""
        hot, self._hot = self._hot, []
        if hot:
            self._state.store.migrate(Migration(np.sort(np.concatenate(hot)), np.empty(0, dtype=np.int64)))
