"""Raw ids of a user's loop: which of them have rows, what was counted of the others, and which lose theirs (`data/raw/`).

In training mode a call takes its ids: they are counted, and those that are admitted get rows. In evaluation mode ids are looked
up and nothing changes. A loop over `prefetch` takes the ids of its items as it reads them, in their order. When it gets an item,
which is a batch, the item's ids are settled: only then can others see what taking them has changed. If the loop is left early,
what was taken and not settled is taken back. Otherwise a batch is what is looked up until a step is made.
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

from adaptive_rec.data.raw.calls import Clear, FoundKeys, Keep
from adaptive_rec.data.raw.changes import NO_KEYS, NewKeys
from adaptive_rec.data.raw.eviction import NOBODY, Leaving, Popularity
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.data.raw.keys_in_use import KeysInUse
from adaptive_rec.data.raw.raw_ids import LATER
from adaptive_rec.data.raw.salts import salts
from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.loop.bags import CallKey
from adaptive_rec.modules.loop.own_rows import OwnRows, TableIds
from adaptive_rec.saved import Saved

Numbered = TypeVar("Numbered")


class IdsOfItem:
    """The calls of one item of a loader, with rows in place of ids."""

    def __init__(self) -> None:
        self.new: list[NewKeys] = []
        """What taking their ids has changed."""
        self.calls: dict[CallKey, deque[Any]] = {}
        """What was made of their rows; of calls with the same tensors in the order in which they were announced."""


class LoopIds:
    """The raw ids of all tables. One thread takes ids, the training thread or the reader of a loop that looks ahead; any thread
    may ask where ids are."""

    def __init__(
        self, rows_T: Sequence[int], shared_rows: int, rows: OwnRows, seed: int, admit_after: int, step: Callable[[], int]
    ) -> None:
        """`rows_T`: rows of each table, of which ids without a row of their own share the first `shared_rows`. `step` returns the
        number of steps so far."""
        self.rows_T, self.shared_rows, self._seed = tuple(rows_T), shared_rows, seed
        self._rows, self._step = rows, step
        self._in_use = self._new_keys(admit_after)
        self._window_ended = -1
        """Batches that were settled when the last window ended."""
        self._loaded: dict[int, NDArray[np.int64]] = {}
        """Ids of tables, with the numbers of their rows (K, 2), that were loaded and are not in the map yet."""
        self._lock = threading.Lock()
        self._ahead: deque[IdsOfItem] = deque()
        self._reading: IdsOfItem | None = None
        """The item whose ids are being taken ahead."""
        self._present: IdsOfItem | None = None
        """The item that a loop over `prefetch` is at."""
        self._looks_ahead = self._trains = False
        """Whether a loop over `prefetch` is running, and whether its ids are taken or only looked up."""

    def _new_keys(self, admit_after: int) -> KeysInUse:
        return KeysInUse(self.rows_T, range(len(self.rows_T)), self.shared_rows, self._seed, admit_after)

    def _begin_with(self, keys: KeysInUse, window_ended: int = -1) -> None:
        """Go on with other keys."""
        self._in_use, self._window_ended, self._loaded = keys, window_ended, {}
        keys.restart_digest()

    @property
    def _keys(self) -> KeyMap:
        return self._in_use.map

    def admit_after(self, lookups: int) -> None:
        """Set `knobs.admit_after`: from the next step on, or from an item on that no loop over `prefetch` has read yet."""
        with self._lock:
            settled = self._keys.settled
            self._in_use.admit_after.change(lookups, settled, settled + (LATER if self._looks_ahead else 0))

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
                "the very same tensors: ids are counted as they are read ahead",
                faq="not-announced",
            )
        rows, new = self._take_and_draw(ids)
        self._settle([new])
        self._rows.finish_draws()
        return make(rows)

    def number_ahead(
        self, key: CallKey, ids: TableIds, make: Callable[[list[NDArray[np.int64]]], Numbered]
    ) -> Numbered:
        """Return the same for a call of the item that is being read ahead."""
        assert self._reading is not None, "calls are announced by the item that is being read"
        if self._trains:
            rows, new = self._take_and_draw(ids)
            self._reading.new.append(new)
        else:
            rows = self._look_up(ids)
        found = make(rows)
        self._reading.calls.setdefault(key, deque()).append(found)
        return found

    def _take_and_draw(self, ids: TableIds) -> tuple[list[NDArray[np.int64]], NewKeys]:
        """Take the ids of a call, of all processes, and draw the rows of those that are admitted."""
        all_ids, own = self._rows.join_ids(ids, self._step(), self._known())
        rows, new = self._take(all_ids)
        for table, id_A, key_A in new.admitted():
            self._rows.draw(table, id_A, key_A, self.rows_T[table] - self.shared_rows)
        return [row_N[some] for row_N, some in zip(rows, own, strict=True)], new

    def _known(self) -> dict[str, int]:
        """Return what processes that train together must have alike before they take keys, by name."""
        self._put_loaded()
        return {
            "seed": self._seed,
            "steps with raw ids": self._keys.taken,
            "knobs.admit_after": self._in_use.admit_after.at(self._keys.taken),
            "the digest of raw ids with rows": self._in_use.digest,
        }

    def _look_up(self, ids: TableIds) -> list[NDArray[np.int64]]:
        """Return the rows of keys, by what is settled; nothing changes."""
        with self._lock:
            self._put_loaded()
            id_N = self._keys.look_up(*self._joined(ids))
        return _split(id_N, ids)

    def _take(self, ids: TableIds, last: bool = False) -> tuple[list[NDArray[np.int64]], NewKeys]:
        """Return the rows of keys of the next batch, and what they have changed. `last`: whether the batch has no more keys."""
        with self._lock:
            self._put_loaded()
            id_N, new = self._in_use.take(*self._joined(ids), last=last)
        return _split(id_N, ids), new

    def _joined(self, ids: TableIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all tables, and the bounds of bags that are of the tables in turn."""
        tables, lengths, bag = len(self.rows_T), [0], -1
        for table, id_N in ids:
            begun = bag - bag % tables if bag >= 0 else 0
            bag = begun + table + (tables if bag >= begun + table else 0)
            lengths += [0] * (bag + 2 - len(lengths))
            lengths[bag + 1] = len(id_N)
        lengths += [0] * (-(len(lengths) - 1) % tables)
        return np.concatenate([NO_KEYS, *(id_N for _, id_N in ids)]), np.cumsum(lengths, dtype=np.int64)

    def _settle(self, news: Sequence[NewKeys]) -> None:
        """Have everybody see what taking keys has changed."""
        with self._lock:
            for new in news:
                self._in_use.settle(new)

    def step_made(self) -> None:
        """Note that a step was made: outside of a loop over `prefetch` the calls until then are a batch."""
        if not self._looks_ahead:
            self._settle([self._take([], last=True)[1]])

    # Ahead of the loop -----------------------------------------------------------------------------------------------

    @contextmanager
    def looking_ahead(self, training: bool) -> Iterator[None]:
        """Take the ids of items ahead, or only look them up, while a loop over `prefetch` runs."""
        self._looks_ahead, self._trains = True, training
        try:
            yield
        finally:
            lost = [*self._ahead, *([] if self._reading is None else [self._reading])]
            self._looks_ahead, self._present, self._reading = False, None, None
            self._ahead.clear()
            if any(item.new for item in lost):
                with self._lock:
                    self._keys.forget_ahead()
            self._rows.finish_draws()  # or those of ids that were taken back would overwrite rows that are loaded next

    @contextmanager
    def reading_item(self) -> Iterator[None]:
        """Take the ids of calls that are announced meanwhile as those of the next item. The reader calls it."""
        self._reading = IdsOfItem()
        yield
        if self._trains:
            self._reading.new.append(self._take([], last=True)[1])
        self._ahead.append(self._reading)
        self._reading = None

    def begin_item(self) -> None:
        """Settle the next item, which the loop is about to get."""
        self._present = self._ahead.popleft()
        self._settle(self._present.new)
        self._rows.finish_draws()

    def end_window(
        self, evict_ratio: float, evict_after: int, decay: float, popularity: Popularity, clear: Clear, keep: Keep
    ) -> Leaving:
        """Have keys leave as `RawIds.end_window` does; no values are kept. The training thread calls it between two steps; a
        window in which no batch began changes nothing."""
        with self._lock:
            self._put_loaded()
            if self._keys.settled == self._window_ended:
                return NOBODY
            self._window_ended, later = self._keys.settled, self._keys.settled + LATER
            left = self._in_use.eviction.take_left()
        for table, ids in left:
            clear(table, ids)
        with self._lock:
            for table, ids in left:
                self._keys.free(table, ids, later)
            return self._in_use.leave(evict_ratio, evict_after, decay, popularity, later)

    # Keys ------------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return the keys that have a row now, and over all calls so far: keys that lost theirs, keys that were refused one,
        lookups, those of shared rows."""
        with self._lock:
            self._put_loaded()
            return dict(self._in_use.counts)

    def find(self, table: int, key_N: NDArray[np.int64]) -> FoundKeys:
        """Return where keys of a table are. Any thread may call it."""
        with self._lock:
            self._put_loaded()
            return self._in_use.find(table, *self._joined([(table, key_N)]))

    def keys_and_rows(self, table: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the keys of a table that have a row of their own (K), and the numbers of these rows (K), rising."""
        with self._lock:
            self._put_loaded()
            row_K, key_K = self._keys.keys_of(table)
        return key_K, row_K

    def salt(self, table: int) -> int:
        """Return the number that keys of a table are hashed with."""
        return int(salts(self._seed, len(self.rows_T))[table])

    def load_keys(self, table: int, keys_K2: NDArray[np.int64]) -> None:
        """Set the keys of a table with the numbers of their rows, whose values are loaded beside them. Where they are others than
        before, lookups are counted anew."""
        self._check_not_ahead()
        keys_K2 = keys_K2[np.argsort(keys_K2[:, 1])]
        if table in self._loaded or not np.array_equal(keys_K2, self._pairs(table)):
            self._loaded[table] = keys_K2

    def _pairs(self, table: int) -> NDArray[np.int64]:
        row_K, key_K = self._keys.keys_of(table)
        return np.stack([key_K, row_K], axis=1)

    def _put_loaded(self) -> None:
        """Have a new map with the keys that were loaded, and those of other tables, all at once: nothing is counted in it."""
        if not self._loaded:
            return
        made = self._new_keys(self._in_use.admit_after.newest)
        for table in range(len(self.rows_T)):
            made.begin_with(table, *(self._loaded[table] if table in self._loaded else self._pairs(table)).T)
        self._begin_with(made)

    # Kept in a state dict --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the keys and counts of all that is settled."""
        with self._lock:
            self._put_loaded()
            return {"map": self._keys.state(), **self._in_use.state(), "window_ended": self._window_ended}

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError, and changes nothing, where it does not fit. Knobs stay as they are."""
        self._check_not_ahead()
        made = self._new_keys(self._in_use.admit_after.newest)
        made.set_state(found, found.part("map"), later=0)
        self._begin_with(made, found.integer("window_ended"))

    def _check_not_ahead(self) -> None:
        if self._looks_ahead:
            raise ConflictError("raw ids must not be loaded within a loop over prefetch, which has read others ahead")


def _split(id_N: NDArray[np.int64], ids: TableIds) -> list[NDArray[np.int64]]:
    return np.split(id_N, np.cumsum([len(some) for _, some in ids])[:-1])
