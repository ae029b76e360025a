"""What a run reads, as far as it changes while training runs: raw keys that get rows and lose them, files, a followed source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Position
from adaptive_rec.embedding.store import EmbeddingStore

if TYPE_CHECKING:
    from adaptive_rec.data.raw.calls import Clear, FoundKeys, Keep
    from adaptive_rec.data.raw.eviction import Leaving, Popularity
    from adaptive_rec.data.raw.raw_ids import RawIds
    from adaptive_rec.data.tabular.follow import FollowedSource
    from adaptive_rec.data.tabular.stream import TabularSource
    from adaptive_rec.embedding.disk.kept_rows import KeptRows


class RawKeys(Protocol):
    """Raw keys that get rows while training runs: those of a run's source, or of the modules of a user's loop."""

    def admit_after(self, lookups: int) -> None:
        """Set the knob of this name."""
        ...

    def counts(self) -> dict[str, int]:
        """Return the keys that have a row now, and so far: keys that lost theirs, keys that were refused one, lookups, those of
        shared rows."""
        ...

    def find(self, table: int, key_N: NDArray[np.int64]) -> FoundKeys:
        """Return where keys of a table are. Any thread may call it."""
        ...

    def end_window(
        self, evict_ratio: float, evict_after: int, decay: float, popularity: Popularity, clear: Clear, keep: Keep
    ) -> Leaving:
        """Have keys leave as the knobs of these names say. Returns the keys that leave."""
        ...


class RunInput:
    """What a run reads, between two steps."""

    def __init__(self, store: EmbeddingStore, position: Callable[[], Position]) -> None:
        """`position` returns that of the stream's reader."""
        self._store = store
        self._position = position
        self.raw_ids: RawIds | None = None
        """The stream's source, where its ids are raw keys."""
        self.kept_rows: KeptRows | None = None
        """Rows of raw keys that have left."""
        self.keys: RawKeys | None = None
        """The raw keys of the source, or of a user's loop."""
        self.files: TabularSource | FollowedSource | None = None
        """The source behind it, where it reads a user's own files by raw keys."""
        self.followed: FollowedSource | None = None
        """The source behind it, where it is followed."""

    def read_keys_of(self, source: RawIds, kept_rows: KeptRows | None, admit_after: int, look_ahead: int) -> None:
        """Have the keys of a source follow this run: their rows are drawn in its store, or restored from those that are kept.
        `admit_after`: the knob of this name; `look_ahead`: as the method of this name takes it."""
        source.attach(self._store.contents.draw_rows, self._position, None if kept_rows is None else kept_rows.restore)
        self.kept_rows = kept_rows
        source.look_ahead(look_ahead)
        source.admit_after(admit_after)
        self.raw_ids = self.keys = source

    def follow_keys(self, keys: RawKeys) -> None:
        """Have the keys of a user's loop follow the knobs, and be reported."""
        self.keys = keys

    def read_files_of(self, source: TabularSource | FollowedSource, followed: FollowedSource | None) -> None:
        """Have checkpoints keep what scoring other files takes, and where a source stands that is `followed`."""
        self.files, self.followed = source, followed

    def admit_after(self, lookups: int) -> None:
        """Set the knob of this name, where there are raw keys."""
        if self.keys is not None:
            self.keys.admit_after(lookups)

    def look_ahead(self, batches: int) -> None:
        """Let the policy read so many batches ahead of those under way."""
        if self.raw_ids is not None:
            self.raw_ids.look_ahead(batches)

    def note_placed(self) -> None:
        """Note that rows were placed for batches whose steps are to come, between two reads of the stream."""
        if self.raw_ids is not None:
            self.raw_ids.note_drawn()

    def take_warnings(self) -> list[str]:
        """Return the warnings of a source that is followed that are new."""
        return [] if self.followed is None else self.followed.files.take_warnings()

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def columns_state(self) -> dict[str, Any] | None:
        """Return what scoring other files by raw keys takes; None where no file of the user's own is read so."""
        return None if self.files is None else self.files.trained_columns().state()

    def followed_state(self) -> dict[str, Any] | None:
        """Return where the source that is followed stands; None where none is."""
        return None if self.followed is None else self.followed.state(self._position())

    def keys_state(self, step: int) -> dict[str, Any] | None:
        """Return the state of raw keys, for a snapshot of the rows that begins at this step; None where ids are rows. All ranks
        have the same keys, and rank 0 saves them: each must call it."""
        if self.raw_ids is None:
            return None
        self.raw_ids.check_alike(self._store.group, step)
        self.raw_ids.flag_given(self._store.contents.flag_changed)
        return self.raw_ids.state() if self._store.group.rank == 0 else None
