"""Raw ids that lose their rows in a user's loop of several processes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.modules.loop.own_rows import OwnRows
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.runtime.evictions import Evictions
from adaptive_rec.state.run_state import RunState


class SharedEvictions(Evictions):
    """Chooses ids by what the owners of their rows remember, the same ones on all ranks. Each owner clears its rows."""

    def __init__(self, state: RunState, observer: Observer, rows: OwnRows) -> None:
        super().__init__(state, observer)
        self._rows = rows

    def _popularity(self, table: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        store, lookups_C = self._state.store, np.zeros(len(ids))
        here, own_C = self._rows.owned(table, ids)
        lookups_C[here] = self._observer.tracker.estimate(store.space.table_first_row[table] + own_C, store.threads)
        return self._rows.total(table, lookups_C, self._state.step) / self._state.knobs.sample_ratio

    def _clear(self, table: int, ids: NDArray[np.int64]) -> None:
        _, own_C = self._rows.owned(table, ids)
        self._observer.forget(self._state.store.clear_rows(table, own_C))
