"""A source whose ids are raw keys: training gives them rows, evaluation looks them up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.knobs import MOST_AHEAD
from adaptive_rec.config.tree import Config
from adaptive_rec.data.raw.calls import Clear, Draw, FoundKeys, Keep, Restore
from adaptive_rec.data.raw.changes import COUNTED, NO_KEYS, NewKeys, row_names
from adaptive_rec.data.raw.eviction import Leaving, Popularity
from adaptive_rec.data.raw.kept_keys import KeptKeys
from adaptive_rec.data.raw.keys_in_use import KeysInUse
from adaptive_rec.data.raw.taken_batches import TakenBatches
from adaptive_rec.data.source import Source, Wrapped, untaken_batches
from adaptive_rec.errors import CheckpointError, DataError, TrainingError
from adaptive_rec.saved import Saved
from adaptive_rec.system.group import Group

LATER = MOST_AHEAD + 4
"""Steps after which a changed knob takes effect: more than the batches that can be under way."""

COUNTED_IN_RUNS = (*COUNTED, "evicted_by_age", "kept", "came_back", "dropped")
"""What is counted in a run besides: keys among those evicted that nobody had looked up for long; of keys that have left, those
whose values were kept, that came back with them, and that were dropped as there were too many."""


class RawIds(Wrapped):
    """A source with rows in place of another one's keys. Its tables have rows besides for keys without one of their own.

    A key that is admitted has its row drawn when its batch is read, ahead of the batch's step.
    """

    def __init__(self, source: Source, config: Config) -> None:
        super().__init__(source)
        shared_rows = config.data.shared_rows
        self.tables = tuple(replace(table, rows=table.rows + shared_rows) for table in source.tables)
        rows_T, table_F = [table.rows for table in self.tables], [feature.table for feature in self.features]
        in_use = KeysInUse(rows_T, table_F, shared_rows, config.run.seed, config.knobs.admit_after, COUNTED_IN_RUNS)
        self._in_use, self.keys, self._eviction = in_use, in_use.map, in_use.eviction
        self._ahead = TakenBatches()
        self._readers = 0
        """How often reading has begun; the newest reader alone may take batches."""
        self._lock = threading.Lock()
        self._draw: Draw | None = None
        self._restore: Restore | None = None
        self._position: Callable[[], Position] = Position
        self._saved_T = self.keys.end_T
        """The end of the ids of each table that keys had, or shared, in the last state."""
        self._again: list[NDArray[np.int64]] = []
        """The names of rows below this that keys got since then."""
        most = config.data.keep_evicted
        self.kept = KeptKeys(most, len(rows_T)) if most else None
        """The keys that have left and may come back with their values."""
        self.most_bytes = self.keys.most_bytes + (in_use.last.most_bytes if config.knobs.evict_after else 0)
        """The most memory that keys take."""
        if self.kept is not None:
            self.most_bytes += self.kept.most_bytes

    def attach(self, draw: Draw, position: Callable[[], Position], restore: Restore | None = None) -> None:
        """Have rows drawn and kept values restored from now on; `position` returns the one after the last step that was made."""
        self._draw, self._position, self._restore = draw, position, restore

    def admit_after(self, lookups: int) -> None:
        """Set the knob of this name, from a batch on that no thread may have taken yet, however far it reads ahead: so a replay
        does the same with the same batches."""
        with self._lock:
            self._settle(self._position())
            self._in_use.admit_after.change(lookups, self.keys.settled, self._later)

    def look_ahead(self, batches: int) -> None:
        """Let a policy read so many batches ahead of those under way; what takes effect later does so behind them."""
        with self._lock:
            self._ahead.expect(batches)

    def settle_to(self, position: Position) -> None:
        """Settle all batches up to a position before any of their steps is made: a policy reads them again in another order."""
        with self._lock:
            self._settle(position)

    def is_settled(self, position: Position) -> bool:
        """Return whether all batches up to a position have their rows for good."""
        return position.order <= self._ahead.settled_to.order

    def note_drawn(self) -> None:
        """Let checkpoints save the rows of all batches that were taken, as a policy has placed them before their steps. No
        thread may read batches meanwhile."""
        with self._lock:
            self._ahead.note_drawn()

    @property
    def _most_ahead(self) -> int:
        """More than the batches that can be under way."""
        return LATER + self._ahead.look_ahead

    @property
    def _later(self) -> int:
        """A batch that no thread may have taken yet, however far it reads ahead: the same one at each step of a replay."""
        return self.keys.settled + self._most_ahead

    def end_window(
        self, evict_ratio: float, evict_after: int, decay: float, popularity: Popularity, clear: Clear, keep: Keep
    ) -> Leaving:
        """Have keys leave as the knobs of these names say (see `Eviction.choose`), and their rows kept and cleared in a later
        window, when no step looks them up any more; other keys may have them then. While keys may leave, counts of keys without
        a row decay, so that `admit_after` is about recent lookups. Returns the keys that leave. The training thread calls it
        between two steps."""
        with self._lock:
            self._settle(self._position())
            left = self._eviction.take_left()
            if self.kept is not None:
                self._in_use.counts["dropped"] += self.kept.forget_ended(self.keys.settled)
        for table, ids in left:
            if self.kept is not None:
                with self._lock:
                    kept_ids, places = self.kept.keep(table, ids, self._later)
                keep(table, kept_ids, places)
                self._in_use.counts["kept"] += len(places)
            clear(table, ids)
        with self._lock:
            self._again = [np.unique(np.concatenate([NO_KEYS, *self._again]))]
            for table, ids in left:
                self.keys.free(table, ids, self._later)
            leaving = self._in_use.leave(evict_ratio, evict_after, decay, popularity, self._later)
            if self.kept is not None:
                for table in np.unique(leaving.table_L).tolist():
                    key_L, id_L = (part[leaving.table_L == table] for part in (leaving.key_L, leaving.id_L))
                    self._in_use.counts["dropped"] += self.kept.leave(table, key_L, id_L, self._later)
        return leaving

    def key_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield training batches with keys for ids. None of them is taken."""
        return self._source.train_batches(position, batch_size)

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from a position on. Those that are settled are read again: they have the rows that their keys have
        now, and nothing is counted."""
        with self._lock:
            self._settle(position)
            self._settle(self._position())
            if self._ahead.read_again(batch_size):
                self.keys.forget_ahead()
            settled, self._readers = self._ahead.settled_to.order, self._readers + 1
            reader = self._readers
        batches = self._source.train_batches(position, batch_size)
        if position.order < settled:
            for batch in batches:
                if batch.position.order > settled:
                    yield self._with_rows(batch, reader)
                    break
                yield self.looked_up(batch)
        for batch in batches:
            yield self._with_rows(batch, reader)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        with self._lock:
            self._settle(self._position())
        for batch in self._source.test_batches(batch_size, max_samples, validation):
            yield self.looked_up(batch)

    def untaken_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the stream from a position on, each key with the row that it has now."""
        return self.with_present_rows(untaken_batches(self._source, position, batch_size))

    def with_present_rows(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches of keys, each key with the row that it has now; nothing changes."""
        with self._lock:
            self._settle(self._position())
        return map(self.looked_up, batches)

    def looked_up(self, batch: Batch) -> Batch:
        """Return a batch of keys with the rows that they have, as far as settled; nothing changes."""
        with self._lock:
            return replace(batch, ids_N=self.keys.look_up(batch.ids_N, batch.offsets))

    def _with_rows(self, batch: Batch, reader: int) -> Batch:
        with self._lock:
            if reader != self._readers:
                rule = "knobs.policy must read what is new of the stream by one reader where data.ids=raw"
                raise TrainingError(f"{rule}, another began before this one had ended")
            self._settle(self._position())
            ids_N, new = self._in_use.take(batch.ids_N, batch.offsets, self.kept)
            self._ahead.add(batch.position, new)
            self._check_ahead()
            if batch.position.order <= self._ahead.drawn_to.order:
                return replace(batch, ids_N=ids_N)
        if self._draw is not None:
            for table, id_A, key_A in new.admitted():
                self._draw(table, id_A, key_A, self._source.tables[table].rows)
        if self._restore is not None:
            for table, id_A, place_A in new.back():
                self._restore(table, id_A, place_A)
        return replace(batch, ids_N=ids_N)

    def _check_ahead(self) -> None:
        """Raise TrainingError where a run's policy reads too far ahead. Where nothing trains, the oldest batch is settled."""
        if len(self._ahead) <= self._most_ahead:
            return
        if self._draw is not None:
            most = self._ahead.look_ahead
            rule = f"knobs.policy must read at most {most} batches ahead of those under way where data.ids=raw, it reads more"
            raise TrainingError(f"{rule}; its method window_batches must return how many")
        self._settle(self._ahead.oldest)

    def _settle(self, position: Position) -> None:
        """Settle the batches up to a position."""
        for new in self._ahead.settle(position):
            self._settle_batch(new)

    def _settle_batch(self, new: NewKeys) -> None:
        change = self._in_use.settle(new)
        again = new.id_A < self._saved_T[new.table_A]
        if again.any():
            self._again.append(row_names(new.table_A[again], new.id_A[again]))
        self._in_use.counts["evicted_by_age"] += 0 if change is None else change.aged
        if self.kept is not None:
            back = new.place_A >= 0
            self.kept.settle_back(new.key_A[back], new.table_A[back])
            self._in_use.counts["came_back"] += int(np.count_nonzero(back))

    def counts(self) -> dict[str, int]:
        """Return the keys that have a row now, and over all steps so far: keys that lost theirs, keys that were refused one,
        lookups, those of shared rows."""
        with self._lock:
            self._settle(self._position())
            return dict(self._in_use.counts)

    def find(self, table: int, key_N: NDArray[np.int64]) -> FoundKeys:
        """Return where keys of a table are after the last step. Any thread may call it."""
        feature = next(number for number, each in enumerate(self.features) if each.table == table)
        offsets = np.where(np.arange(len(self.features) + 1) > feature, len(key_N), 0)  # a sample with all keys in one bag
        with self._lock:
            self._settle(self._position())
            return self._in_use.find(table, key_N, offsets)

    def begin_with(self, table: int, key_K: NDArray[np.int64]) -> None:
        """Give keys the first rows of their own of a table, in order, before any batch is taken. Raises CheckpointError where
        they are more than the rows."""
        own = int(self.keys.own_T[table])
        if len(key_K) > own:
            rule = f"table {self.tables[table].name!r} must have a row for each of the {len(key_K):,} ids that it begins with"
            raise CheckpointError(f"{rule}, got {own:,} (data.table_rows, data.max_table_rows)")
        with self._lock:
            self._in_use.begin_with(table, key_K)

    def check_alike(self, group: Group, step: int) -> None:
        """Raise DataError where ranks that read different samples have given keys different rows by this step. Ranks must call it
        together."""
        with self._lock:
            self._settle(self._position())
            own = self._in_use.digest
        digests = group.gather(np.array([own]))[:, 0].tolist()
        for rank, found in enumerate(digests):
            if found != digests[0]:
                rule = "data.source must have the same samples on all ranks"
                raise DataError(f"{rule}, rank {rank} has given rows to other ids than rank 0 by step {step}")

    def flag_given(self, changed: Callable[[int, NDArray[np.int64]], None]) -> None:
        """Report to `changed`, for each table, the ids of the rows that were given since the last call: their first values are of
        their keys, and must be saved even if no step has changed them."""
        with self._lock:
            self._settle(self._position())
            again, end_T = np.concatenate([NO_KEYS, *self._again]), self.keys.end_T
            for table, (first, end) in enumerate(zip(self._saved_T.tolist(), end_T.tolist(), strict=True)):
                changed(table, np.append(again[again >> 32 == table] & (1 << 32) - 1, np.arange(first, end)))
            self._again, self._saved_T = [], end_T
            for new in self._ahead.list_drawn():
                for table, id_A, _ in new.admitted():
                    changed(table, id_A)

    def state(self) -> dict[str, Any]:
        """Return the keys as they were after the last step."""
        with self._lock:
            self._settle(self._position())
            return {
                **self.keys.state(),
                **self._in_use.state(),
                "ahead": self._ahead.state(),
                "kept": None if self.kept is None else self.kept.state(),
            }

    def set_state(self, found: Saved) -> None:
        """Restore the keys of a checkpoint. Raises CheckpointError."""
        if found.has("ahead"):  # older versions read nothing twice
            self._ahead.set_state(found.part("ahead"))
        self._in_use.set_state(found, found, self._most_ahead)
        self._saved_T, kept = self.keys.end_T, found.maybe("kept")
        if self.kept is not None and kept is not None:
            self.kept.set_state(kept)
        with self._lock:
            self._settle(self._position())


def raw_ids_of(source: Source) -> RawIds | None:
    """Return the raw ids that a source passes on; None where its ids are rows."""
    while isinstance(source, Wrapped) and not isinstance(source, RawIds):
        source = source.origin
    return source if isinstance(source, RawIds) else None
