"""Raw keys of tables with their rows, from admission to eviction: what the source of a run and a user's own loop do alike."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.calls import FoundKeys
from adaptive_rec.data.raw.changes import COUNTED, NO_KEYS, Change, NewKeys
from adaptive_rec.data.raw.eviction import Eviction, Leaving, Limits, Popularity
from adaptive_rec.data.raw.kept_keys import KeptKeys
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.data.raw.last_lookups import LastLookups
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved


class KnobSchedule:
    """The values of a knob, each with the first batch that it holds for."""

    def __init__(self, value: int) -> None:
        self._changes = [(0, value)]

    @property
    def newest(self) -> int:
        """The value that was set last, whether it holds yet or not."""
        return self._changes[-1][1]

    def at(self, batch: int) -> int:
        """Return the value for a batch, none before those that are settled."""
        return next(value for first, value in reversed(self._changes) if first <= batch)

    def change(self, value: int, settled: int, first: int) -> None:
        """Have another value from a batch on. `settled`: how many batches will never be asked for again."""
        if value != self.newest:
            past = [change for change in self._changes if change[0] <= settled][-1:]
            yet = [change for change in self._changes if settled < change[0] < first]
            self._changes = [*past, *yet, (first, value)]

    def array(self) -> NDArray[np.int64]:
        """Return the changes, (batch, value) each, for a saved state."""
        return np.array(self._changes, dtype=np.int64)

    def set_array(self, found: Saved, name: str, settled: int) -> None:
        """Restore the changes of a saved state. Raises CheckpointError where there is no value for the next batch."""
        changes = found.array(name, np.int64, ANY, 2)
        if not len(changes) or changes[0, 0] > settled:
            rule = f"{name} of the raw ids must have a value from batch {settled} or before on"
            raise CheckpointError(f"{rule}, got {changes.tolist()}")
        self._changes = [(first, value) for first, value in changes.tolist()]


class KeysInUse:
    """The map of keys, what is counted, and the keys that leave. One thread at a time may call it."""

    def __init__(
        self, rows_T: Sequence[int], table_F: Sequence[int], shared_rows: int, seed: int, admit_after: int,
        counted: Sequence[str] = COUNTED,
    ) -> None:  # fmt: skip
        """Arguments as of `KeyMap`. `admit_after`: the knob of this name. `counted`: names of the counts, COUNTED first."""
        self.map = KeyMap(rows_T, table_F, shared_rows, seed)
        self.last = LastLookups(rows_T, table_F)
        self.eviction = Eviction(self.map, self.last, len(rows_T))
        self.admit_after = KnobSchedule(admit_after)
        self.counts = dict.fromkeys(counted, 0)
        self.digest = 0
        """A number that shows which keys have lost and got which rows, in which order, since this object was made, or since
        `restart_digest`."""

    def begin_with(self, table: int, key_K: NDArray[np.int64], id_K: NDArray[np.int64] | None = None) -> None:
        """Give keys rows of a table before any batch is taken; see `KeyMap.begin_with`."""
        self.map.begin_with(table, key_K, id_K)
        self.counts["keys"] += len(key_K)

    def restart_digest(self) -> None:
        """Begin the digest with all keys that have rows, and all counts."""
        pairs = [part for table in range(len(self.map.shared_T)) for part in reversed(self.map.keys_of(table))]
        counts = np.array(list(self.counts.values()))
        self.digest = zlib.crc32(np.concatenate([counts, *pairs]).tobytes())

    def take(
        self, key_N: NDArray[np.int64], offsets: NDArray[np.int64], kept: KeptKeys | None = None, last: bool = True
    ) -> tuple[NDArray[np.int64], NewKeys]:
        """Return ids for the keys of the next batch, and what it has changed; see `KeyMap.take`."""
        return self.map.take(key_N, offsets, self.admit_after.at(self.map.taken), kept, last)

    def settle(self, new: NewKeys) -> Change | None:
        """Make what a batch has changed visible to all, once its step is made. Returns the change before it."""
        change = self.map.settle(new)
        self.eviction.settle(new, change)
        left_L = NO_KEYS if change is None else change.key_L
        new.count_into(self.counts, len(left_L))
        self.digest = zlib.crc32(np.concatenate([left_L, new.key_A, new.id_A]).tobytes(), self.digest)
        return change

    def leave(self, evict_ratio: float, evict_after: int, decay: float, popularity: Popularity, batch: int) -> Leaving:
        """Return the keys that leave before a batch, as the knobs of these names say (see `Eviction.choose`). While keys may
        leave, counts of keys without a row decay, so that `admit_after` is about recent lookups."""
        leaving = self.eviction.choose(Limits(evict_ratio, evict_after, self.admit_after.newest), popularity)
        if evict_ratio or evict_after:
            aged = int(np.count_nonzero(leaving.aged_L))
            self.map.change(Change(batch, leaving.key_L, leaving.table_L, leaving.id_L, decay, aged))
        return leaving

    def find(self, table: int, key_N: NDArray[np.int64], offsets: NDArray[np.int64]) -> FoundKeys:
        """Return where keys of a table are, by what is settled. `offsets`: bounds of bags that have them in one of the table."""
        id_N = self.map.look_up(key_N, offsets)
        return FoundKeys(id_N, id_N >= self.map.shared_T[table], self.map.counted(table, key_N))

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all but the map, as it is settled."""
        return {
            "counts": dict(self.counts), "admit_after": self.admit_after.array(), "eviction": self.eviction.state(),
        }  # fmt: skip

    def set_state(self, found: Saved, keys: Saved, later: int) -> None:
        """Restore a state, and that of the map. The knob stays as it is, so many batches later. Raises CheckpointError."""
        counts, now = found.part("counts"), self.admit_after.newest
        self.counts = {name: counts.integer(name) for name in self.counts}
        self.map.set_state(keys)
        self.admit_after.set_array(found, "admit_after", self.map.settled)
        self.admit_after.change(now, self.map.settled, self.map.settled + later)
        self.eviction.set_state(found.part("eviction"))
