"""The contract of a home of cold rows, which `InMemory`, `OnLog` and `Cascade` keep.

A home has every row of a store that is not hot, with its optimizer state, and is the only place that has it. Rows are given by
their numbers within a pool (`rows_C`), values as two arrays of as many lines, weights and optimizer state (`packed`).

- `read` returns the last values that `write`, `overwrite` or `draw` has set, or first values. It may run on a worker while the
  write-back thread writes: of a row that is written meanwhile either value may come, and the caller forwards such a row.
- `write` has no effect on rows that have not changed, where the home says so (`keeps_unchanged`).
- `keep` comes before values change that the home does not write itself: rows that kernels update in place.
- Between `begin_snapshot` and `end_snapshot` the saving thread alone reads `shards`; every other method may be called meanwhile,
  and the shards are those of the moment at which the snapshot began.
- Reading and writing raise DiskError where a disk fails. A row is then as it was before, or as it was to be.
"""

# ruff: noqa: B027 - what a variant need not do, it does not
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import Arrays, ColdTier, GivenRows
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.placement import Migration

OfParts: TypeAlias = Callable[[int, int], object]
"""Work on the rows from one to another."""


def no_rows(first: int, end: int) -> None: ...


class ColdHome(ABC):
    """Where cold rows are."""

    on_disk = False
    """Whether rows lie on a disk."""
    keeps_unchanged = False
    """Whether it has the values of hot rows that have not changed since they were saved, so that these need not come back."""
    memory: Any = None
    """The slots of cold rows in host memory (`MemorySlots`), where others lie on a disk and hot ones on a device; else None."""

    types: ColdTier
    """Arrays of each pool: of all rows that are in host memory; without a line they show the types of all."""

    def arrays(self, pool: int) -> Arrays:
        """Return `types` of a pool."""
        return self.types.arrays(pool)

    # Values ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        """Copy rows into `packed`. Returns how many were not in host memory."""

    @abstractmethod
    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        """Copy `packed` to rows; `changed_C`: which have changed since they were read (None: all). `also` is called for parts of
        the rows, which together are all."""

    @abstractmethod
    def overwrite(self, pool: int, rows_C: NDArray[np.int64], given: GivenRows) -> None:
        """Set rows, which are cold, or their optimizer state, or both. Only the training thread calls it."""

    @abstractmethod
    def draw(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        """Set rows that no batch has looked up yet. Any thread may call it."""

    def read_near(
        self, pool: int, rows_C: NDArray[np.int64], line_C: NDArray[np.int64], arrays: Arrays
    ) -> NDArray[np.bool_]:
        """Copy those rows that need no disk into lines of two arrays. Returns which they are."""
        raise AssertionError("only rows on a disk are left there")

    def place_in_memory(self, migration: Migration) -> None:
        """Move rows to `memory` (`promote`) and out of it. No value changes, nor does the placement. No batch may be on its way
        home."""
        raise AssertionError("there must be a memory of some cold rows")

    def leave(self, pool: int, rows_C: NDArray[np.int64]) -> None:
        """Make room: the rows are hot from now on."""

    def is_near(self, pool: int, rows_C: NDArray[np.int64]) -> bool:
        """Return whether some rows have a place of their own nearer than the last home, which `draw` would not set."""
        return False

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_being_saved(self) -> bool:
        """Whether `keep` must be called."""

    @abstractmethod
    def keep(self, pool: int, rows_C: NDArray[np.int64], slots_C: NDArray[np.int64]) -> None:
        """Prepare for the change of some rows, with their slots (negative for cold ones)."""

    @abstractmethod
    def changed_bytes(self, hot: HotRows) -> int:
        """Return the bytes that a snapshot of the rows changed since the last one takes."""

    @abstractmethod
    def begin_snapshot(self, hot: HotRows, everything: bool) -> Any:
        """Start a snapshot of the rows updated since the last one, or of all rows, for another thread to save. One at a time."""

    @abstractmethod
    def end_snapshot(self, saved: bool) -> None:
        """End the snapshot. If it was not saved, its rows are part of the next one."""

    @abstractmethod
    def shards(self, snapshot: Any) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the shards of a snapshot, by the names of their arrays. A shard is valid until the next one is requested."""

    def saved_log(self) -> Any:
        """Return where the rows are that a snapshot has saved by their addresses (`SavedLog`), once its shards were yielded; None
        where shards have the rows themselves."""
        return None

    def keep_for(self, kept: Collection[str] | None, written: str = "") -> None:
        """Keep what these checkpoints need on the disk besides their own files, and nothing else; None: what all need. `written`:
        the one of them that was just written."""

    # Figures and the end ---------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how many rows this process has read and written on a disk. Nothing where none lie there."""
        return {}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of this process's files of rows on a disk, and their number. Nothing where there are none."""
        return {}

    def count_read(self, rows: int, again: bool) -> None:
        """Count rows that a batch needed from the disk, ahead of its step or again in it."""

    def total_counts(self) -> dict[str, int]:
        """Return the counts of all ranks since the run began: each must call it."""
        return {}

    def set_total_counts(self, counts: Mapping[str, int]) -> None:
        """Set the counts of earlier processes of the run, of all ranks."""

    def total_sizes(self) -> dict[str, int]:
        """Return the sizes of all ranks: each must call it."""
        return {}

    def share_addresses(self, address_R: NDArray[np.uint32]) -> None:
        """Keep the addresses of rows on a disk (R, of all pools) in this memory from now on, which other processes read."""

    def files(self) -> Iterable[Path]:
        """Return the files of rows on a disk that there are now."""
        return ()

    def fits(self, saved: Any) -> bool:
        """Return whether the rows of a checkpoint (`SavedLog`) can be taken over: they are in this folder and of these pools."""
        return False

    def adopt(
        self, name: str, saved: Any, index: Iterable[tuple[NDArray[np.int64], NDArray[np.uint32]]]
    ) -> None:
        """Take over the rows of a checkpoint of this name (`SavedLog`), which must fit. `index` yields rows of this store, by
        their joint numbers, and their addresses; later ones replace earlier ones. Raises DiskError."""
        raise AssertionError("only rows on a disk are taken over")

    def flush(self) -> None:
        """Wait until all that was written is where it belongs. Raises DiskError."""

    def close(self) -> None:
        """Stop the threads. Rows can still be read."""
