"""Raw ids of a user's loop: the rows that its modules look up for them (`data/raw/key_map.py`).

In training mode a call takes its ids: they are counted, and those that are admitted get rows. In evaluation mode ids are looked
up and nothing changes. A loop over `prefetch` takes the ids of its items as it reads them, in their order. When it gets an item,
the item's ids are settled: only then can others see what taking them has changed. If the loop is left early, what was taken and
not settled is taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NewKeys
from adaptive_rec.data.raw.raw_ids import LATER
from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.loop.bags import CallKey
from adaptive_rec.modules.loop.keys import LoopKeys
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


class LoopIds(LoopKeys):
    """The raw ids of all tables of a user's loop. One thread takes ids: the training thread, or the reader of a loop that looks
    ahead."""

    def __init__(
        self,
        rows_T: Sequence[int],
        shared_rows: int,
        rows: OwnRows,
        seed: int,
        admit_after: int,
        step: Callable[[], int],
    ) -> None:
        """`rows_T`: rows of each table, of which ids without a row of their own share the first `shared_rows`. `step` returns the
        number of steps so far."""
        super().__init__(rows_T, shared_rows, seed, admit_after)
        self._rows, self._step = rows, step
        self._ahead: deque[IdsOfItem] = deque()
        self._reading: IdsOfItem | None = None
        """The item whose ids are being taken ahead."""
        self._present: IdsOfItem | None = None
        """The item that a loop over `prefetch` is at."""
        self._looks_ahead = self._trains = False
        """Whether a loop over `prefetch` is running, and whether its ids are taken or only looked up."""

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
                "the very same tensors: ids are counted as they are read ahead"
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
            self._rows.draw(table, id_A, key_A, self._rows_T[table] - self.shared_rows)
        return [row_N[some] for row_N, some in zip(rows, own, strict=True)], new

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

    # Loaded ----------------------------------------------------------------------------------------------------------

    def load_keys(self, table: int, keys_K2: NDArray[np.int64]) -> None:
        self._check_not_ahead()
        super().load_keys(table, keys_K2)

    def set_state(self, found: Saved) -> None:
        self._check_not_ahead()
        super().set_state(found)

    def _check_not_ahead(self) -> None:
        if self._looks_ahead:
            raise ConflictError("raw ids must not be loaded within a loop over prefetch, which has read others ahead")
