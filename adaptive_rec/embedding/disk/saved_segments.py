"""What a checkpoint says of rows on a disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

NOWHERE = 0
"""The address of a row that was never written: it has its first value."""


class SegmentEntry(NamedTuple):
    """A segment that has some of the rows."""

    number: int
    """Number of its file, which no other one of its pool ever has."""
    place: int
    """Its part in the addresses of its rows."""
    pages: int


@dataclass(frozen=True)
class SavedPool:
    """The rows of one pool."""

    first_row: int
    """First row in the joint row space."""
    rows: int
    weights: NDArray[Any]
    state: NDArray[Any]
    """No rows: these show the types of all, and of their optimizer state."""
    page_bytes: int
    page_rows: int
    """Rows of a page."""
    segment_pages: int
    """Pages of a whole segment."""
    segments: tuple[SegmentEntry, ...]


@dataclass(frozen=True)
class SavedLog:
    """The segments of all pools of a process."""

    folder: Path
    pools: tuple[SavedPool, ...]
    home_T: tuple[int, ...] = ()
    """`Ownership.home_T` of the ranks that have written them."""

    @property
    def files(self) -> list[Path]:
        """The files of all segments."""
        return [
            segment_path(pool_folder(self.folder.resolve(), number), entry.number)
            for number, pool in enumerate(self.pools)
            for entry in pool.segments
        ]


def remove_unused(folder: Path, needed: set[Path]) -> None:
    """Remove the files of a folder of rows that are not needed. Raises OSError."""
    for path in segment_files(folder.resolve()):
        if path not in needed:
            path.unlink()


def segment_files(folder: Path) -> list[Path]:
    """Return the files of all segments in the folder of a run's rows, and in those of its ranks."""
    return [*folder.glob("pool-*/*.rows"), *folder.glob("rank-*/pool-*/*.rows")]


def rank_folder(folder: Path, rank: int) -> Path:
    """Return the folder of the rows of one of several ranks."""
    return folder / f"rank-{rank}"


def pool_folder(folder: Path, pool: int) -> Path:
    """Return the folder of a pool's segments in that of all rows."""
    return folder / f"pool-{pool}"


def segment_path(folder: Path, number: int) -> Path:
    """Return the file of a segment in the folder of its pool."""
    return folder / f"{number:09d}.rows"
