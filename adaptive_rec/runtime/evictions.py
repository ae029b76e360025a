"""Keys that lose their rows at the end of a window."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policy import Policy
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.state import RunState

SHOWN_TABLES = 8


def check_eviction(knobs: Knobs, policy: Policy, raw_ids: bool) -> None:
    """Raise ConfigError where ids cannot lose their rows."""
    if not knobs.evict_ratio:
        return
    if not raw_ids:
        raise ConfigError(f"knobs.evict_ratio must be 0 unless data.ids=raw, got {knobs.evict_ratio}")
    if not policy.tracks_popularity:
        rule = "knobs.evict_ratio must be 0 under a policy that does not track popularity"
        raise ConfigError(f"{rule}, got {knobs.evict_ratio} under {policy.name}")


class Evictions:
    """Has the least popular ids of full tables lose their rows, and clears rows when no step looks them up any more."""

    def __init__(self, state: RunState, observer: Observer) -> None:
        self._state = state
        self._observer = observer

    def end_window(self, decay: float) -> Event | None:
        """Carry out the end of a window, whose counts were multiplied by `decay`. Returns what is to be reported."""
        state, raw_keys = self._state, self._state.keys
        if raw_keys is None:
            return None
        knobs = state.knobs
        left_T = raw_keys.end_window(knobs.evict_ratio, decay, self._popularity, self._clear)
        if not left_T:
            return None
        tables = {state.store.batch_space.tables[table].name: keys for table, keys in left_T.items()}
        names = ", ".join([*list(tables)[:SHOWN_TABLES], *(["..."] if len(tables) > SHOWN_TABLES else [])])
        text = f"{sum(left_T.values()):,} ids lose their rows in {names}"
        return Event(state.step, "evicted", text, {"ids": sum(left_T.values()), "tables": tables})

    def _popularity(self, table: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many lookups are remembered of rows of a table, by their owners. Ranks call it together."""
        store, lookups_C = self._state.store, np.zeros(len(ids))
        here, own_rows = store.owned(store.batch_space.table_first_row[table] + ids)
        lookups_C[here] = self._observer.tracker.estimate(own_rows, store.threads)
        return store.group.total(lookups_C) / self._state.knobs.sample_ratio

    def _clear(self, table: int, ids: NDArray[np.int64]) -> None:
        self._observer.forget(self._state.store.clear_rows(table, ids))
