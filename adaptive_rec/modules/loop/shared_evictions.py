"""Raw ids that lose their rows in a user's loop of several processes."""

from __future__ import annotations

from typing import Any

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

    def _owned(self, table: int, ids: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        here, own_C = self._rows.owned(table, ids)
        return here, self._state.store.space.table_first_row[table] + own_C

    def _total(self, table: int, values_C: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._rows.total(table, values_C, self._state.step)

    def _clear_rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._state.store.contents.clear_rows(table, self._rows.owned(table, ids)[1])
