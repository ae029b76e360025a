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
from adaptive_rec.data.raw.schedule import KnobSchedule
from adaptive_rec.saved import Saved


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
