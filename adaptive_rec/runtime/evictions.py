"""Keys that lose their rows at the end of a window."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import COLD, Migration
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.state.run_state import RunState

SHOWN_TABLES = 8


class Evictions:
    """Has ids lose their rows: those that nobody has looked up for long, and the least popular ones of full tables. Clears rows
    when no step looks them up any more."""

    def __init__(self, state: RunState, observer: Observer) -> None:
        self._state = state
        self._observer = observer
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
        here, own_rows = self._owned(table, ids)
        lookups_C[here] = self._observer.tracker.estimate(own_rows, self._state.store.threads)
        return self._total(table, lookups_C) / self._state.knobs.sample_ratio

    def _owned(self, table: int, ids: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return where rows of this process stand among some rows of a table, and which of its rows they are."""
        store = self._state.store
        return store.peers.owned(store.peers.batch_space.table_first_row[table] + ids)

    def _total(self, table: int, values_C: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums over all ranks of what each has for rows of a table."""
        return self._state.store.group.total(values_C)

    def _keep(self, table: int, ids: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        assert self._state.input.kept_rows is not None, "rows are kept where keys are"
        self._note_hot(self._owned(table, ids)[1])  # they leave the device to be kept
        self._state.input.kept_rows.keep(table, ids, places)

    def _clear(self, table: int, ids: NDArray[np.int64]) -> None:
        self._note_hot(self._owned(table, ids)[1])
        self._observer.forget(self._clear_rows(table, ids))

    def _note_hot(self, rows: NDArray[np.int64]) -> None:
        if not (self._state.policy.tracks_popularity or self._state.policy.arranges_stream):
            self._hot.append(rows[self._state.store.index.placement.slot_of_row[rows] != COLD])

    def _clear_rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clear those of a table's rows that are this process's, which makes them cold, and return them."""
        return self._state.store.contents.clear_rows(table, ids)

    def _make_hot_again(self) -> None:
        """Make cleared rows hot where they were."""
        hot, self._hot = self._hot, []
        if hot:
            self._state.store.migrate(Migration(np.sort(np.concatenate(hot)), np.empty(0, dtype=np.int64)))
