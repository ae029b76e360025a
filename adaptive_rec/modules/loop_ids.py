"""Raw ids of a user's loop: the rows that its modules look up for them (`data/raw/key_map.py`).

In training mode a call takes its ids: they are counted, and those that are admitted get rows. In evaluation mode ids are looked
up and nothing changes. A loop over `prefetch` takes the ids of its items as it reads them, in their order. When it gets an item,
the item's ids are settled: only then can others see what taking them has changed. If the loop is left early, what was taken and
not settled is taken back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import COUNTED, NewKeys
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.data.raw.raw_ids import LATER
from adaptive_rec.data.raw.schedule import KnobSchedule
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.embedding.tiered_rows import NO_ROWS
from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.bags import CallKey
from adaptive_rec.saved import Saved

Numbered = TypeVar("Numbered")
TableIds = Sequence[tuple[int, NDArray[np.int64]]]
"""Tables, by their numbers, each with ids that are looked up in it."""


class IdsOfItem:
    """The calls of one item of a loader, or one call, with rows in place of ids."""

    def __init__(self, admit_after: int) -> None:
        self.admit_after = admit_after
        self.new: list[NewKeys] = []
        """What taking their ids has changed."""
        self.calls: dict[CallKey, deque[Any]] = {}
        """What was made of their rows; of calls with the same tensors in the order in which they were announced."""


class LoopIds:
    """The raw ids of all tables of a user's loop. One thread takes ids: the training thread, or the reader of a loop that looks
    ahead."""

    def __init__(self, rows_T: Sequence[int], shared_rows: int, store: EmbeddingStore, admit_after: int) -> None:
        """`rows_T`: rows of each table, of which ids without a row of their own share the first `shared_rows`."""
        self._rows_T, self._shared_rows, self._store = tuple(rows_T), shared_rows, store
        self._keys = self._new_map()
        self._loaded: dict[int, NDArray[np.int64]] = {}
        """Keys of tables that were loaded and are not in the map yet."""
        self._lock = threading.Lock()
        self._admit_after = KnobSchedule(admit_after)
        self._taken = self._settled = 0
        """Items whose ids were taken, and those that the loop has got."""
        self._ahead: deque[IdsOfItem] = deque()
        self._reading: IdsOfItem | None = None
        """The item whose ids are being taken ahead."""
        self._present: IdsOfItem | None = None
        """The item that a loop over `prefetch` is at."""
        self._looks_ahead = self._trains = False
        """Whether a loop over `prefetch` is running, and whether its ids are taken or only looked up."""
        self._counts = dict.fromkeys(COUNTED, 0)

    def _new_map(self) -> KeyMap:
        return KeyMap(self._rows_T, range(len(self._rows_T)), self._shared_rows, self._store.seed)

    def admit_after(self, lookups: int) -> None:
        """Set the knob of this name: from the next call on, or from an item on that no loop over `prefetch` has read yet."""
        with self._lock:
            later = LATER if self._looks_ahead else 0
            self._admit_after.change(lookups, self._settled, self._settled + later)

    # Calls -----------------------------------------------------------------------------------------------------------

    def number(
        self, key: CallKey, ids: TableIds, make: Callable[[list[NDArray[np.int64]]], Numbered], training: bool
    ) -> Numbered:
        """Return what `make` makes of the rows of a forward call's ids, or has made of them ahead. In a backward pass, where a
        checkpointed segment runs again, ids are not counted again."""
        if self._present is not None and key in self._present.calls:
            if training and not self._trains:
                raise ConflictError(
                    "a module with raw ids must be in training mode when a loop over prefetch begins to train it"
                )
            made = self._present.calls[key]
            found: Numbered = made.popleft() if len(made) > 1 else made[0]
            return found
        if not training or torch._C._current_graph_task_id() != -1:
            return make(self._look_up(ids))
        if self._looks_ahead:
            raise ConflictError(
                "in a loop over prefetch each call of a module with raw ids in training mode must be announced by sparse, with "
                "the very same tensors: ids are counted as they are read ahead"
            )
        item = self._next_item()
        taken = make(self._take(item, ids))
        self._settle(item)
        return taken

    def number_ahead(
        self, key: CallKey, ids: TableIds, make: Callable[[list[NDArray[np.int64]]], Numbered]
    ) -> Numbered:
        """Return the same for a call of the item that is being read ahead."""
        assert self._reading is not None, "calls are announced by the item that is being read"
        found = make(self._take(self._reading, ids) if self._trains else self._look_up(ids))
        self._reading.calls.setdefault(key, deque()).append(found)
        return found

    def _next_item(self) -> IdsOfItem:
        with self._lock:
            item = IdsOfItem(self._admit_after.at(self._taken))
            self._taken += 1
        return item

    def _look_up(self, ids: TableIds) -> list[NDArray[np.int64]]:
        with self._lock:
            id_N = self.keys.look_up(*self._joined(ids))
        return _split(id_N, ids)

    def _take(self, item: IdsOfItem, ids: TableIds) -> list[NDArray[np.int64]]:
        with self._lock:
            id_N, new = self.keys.take(*self._joined(ids), item.admit_after)
        for table, id_A, key_A in new.admitted():
            self._store.draw_rows(table, id_A, key_A, self._rows_T[table] - self._shared_rows)
        item.new.append(new)
        return _split(id_N, ids)

    def _joined(self, ids: TableIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all tables, and the bounds of bags that are of the tables in turn."""
        tables, lengths, bag = len(self._rows_T), [0], -1
        for table, id_N in ids:
            begun = bag - bag % tables if bag >= 0 else 0
            bag = begun + table + (tables if bag >= begun + table else 0)
            lengths += [0] * (bag + 2 - len(lengths))
            lengths[bag + 1] = len(id_N)
        lengths += [0] * (-(len(lengths) - 1) % tables)
        return np.concatenate([NO_ROWS, *(id_N for _, id_N in ids)]), np.cumsum(lengths, dtype=np.int64)

    def _settle(self, item: IdsOfItem) -> None:
        """Have everybody see what taking an item's ids has changed."""
        with self._lock:
            self._settled += 1
            for new in item.new:
                self._keys.settle(new)
                new.count_into(self._counts)
        self._store.finish_draws()

    # Ahead of the loop -----------------------------------------------------------------------------------------------

    @contextmanager
    def looking_ahead(self, training: bool) -> Iterator[None]:
        """Take the ids of items ahead, or only look them up, while a loop over `prefetch` runs."""
        self._put_loaded()
        self._looks_ahead, self._trains = True, training
        try:
            yield
        finally:
            self._looks_ahead, self._present, self._reading = False, None, None
            with self._lock:
                if self._taken != self._settled:
                    self._keys.forget_ahead()
                    self._taken = self._settled
                self._ahead.clear()
            self._store.finish_draws()  # or those of ids that were taken back would overwrite rows that are loaded next

    @contextmanager
    def reading_item(self) -> Iterator[None]:
        """Take the ids of calls that are announced meanwhile as those of the next item. The reader calls it."""
        self._reading = self._next_item()
        yield
        self._ahead.append(self._reading)

    def begin_item(self) -> None:
        """Settle the next item, which the loop is about to get."""
        self._present = self._ahead.popleft()
        self._settle(self._present)

    # Keys ------------------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> KeyMap:
        """The map of keys, with those that were loaded."""
        self._put_loaded()
        return self._keys

    def _put_loaded(self) -> None:
        """Have a new map with the keys that were loaded, and those of other tables, all at once: nothing is counted in it."""
        if not self._loaded:
            return
        made = self._new_map()
        keys = [self._loaded.get(table, self._own_keys(table)[0]) for table in range(len(self._rows_T))]
        for table, key_R in enumerate(keys):
            made.begin_with(table, key_R)
        self._keys, self._loaded = made, {}
        self._counts = dict.fromkeys(self._counts, 0) | {"keys": sum(map(len, keys))}

    def keys_and_rows(self, table: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the keys of a table that have a row of their own (K), and the numbers of these rows (K)."""
        with self._lock:
            self._put_loaded()
            return self._own_keys(table)

    def _own_keys(self, table: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        row_K, key_K = self._keys.keys_of(table)
        return key_K, row_K

    def why_not_loadable(self, table: int, keys_K2: NDArray[Any]) -> str:
        """Return why a table cannot have these keys with the numbers of their rows, or nothing."""
        room = self._rows_T[table] - self._shared_rows
        if keys_K2.dtype != np.int64 or keys_K2.ndim != 2 or keys_K2.shape[1] != 2:
            return f"must be of shape (K, 2) and int64, got {keys_K2.shape} and {keys_K2.dtype}"
        if len(keys_K2) > room:
            return f"must be at most {room}, got {len(keys_K2)}"
        row_K = np.sort(keys_K2[:, 1])
        if (row_K != np.arange(self._shared_rows, self._shared_rows + len(row_K))).any():
            return f"must have the rows from {self._shared_rows} (shared_rows) on, got rows {row_K.tolist()[:5]} ..."
        if len(np.unique(keys_K2[:, 0])) < len(keys_K2):
            return "must differ, some are given twice"
        return ""

    def load_keys(self, table: int, keys_K2: NDArray[np.int64]) -> None:
        """Set the keys of a table with the numbers of their rows, whose values are loaded beside them. Where they are others than
        before, lookups are counted anew."""
        self.check_not_ahead()
        key_R = keys_K2[np.argsort(keys_K2[:, 1]), 0]
        if table in self._loaded or not np.array_equal(key_R, self._own_keys(table)[0]):
            self._loaded[table] = key_R

    def check_not_ahead(self) -> None:
        if self._looks_ahead:
            raise ConflictError("raw ids must not be loaded within a loop over prefetch, which has read others ahead")

    def counts(self) -> dict[str, int]:
        """Return, over all calls so far: keys that got a row, keys that lost theirs (none), keys that were refused one, lookups,
        those of shared rows."""
        with self._lock:
            self._put_loaded()
            return dict(self._counts)

    def state(self) -> dict[str, Any]:
        """Return the keys and counts of all that is settled."""
        with self._lock:
            return {
                "map": self.keys.state(),
                "counts": dict(self._counts),
                "taken": self._settled,
                "admit_after": self._admit_after.array(),
            }

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError, and changes nothing, where it does not fit."""
        self.check_not_ahead()
        counts, taken = found.part("counts"), found.integer("taken")
        new_counts = {name: counts.integer(name) for name in self._counts}
        now, admit_after = self._admit_after.newest, KnobSchedule(1)
        admit_after.set_array(found, "admit_after", taken)
        made = self._new_map()
        made.set_state(found.part("map"))
        self._keys, self._loaded, self._counts, self._taken, self._settled = made, {}, new_counts, taken, taken
        self._admit_after = admit_after
        self.admit_after(now)


def _split(id_N: NDArray[np.int64], ids: TableIds) -> list[NDArray[np.int64]]:
    return np.split(id_N, np.cumsum([len(some) for _, some in ids])[:-1])
