"""Valid lines of a run's files, read while the run writes them. Lines damaged by a crash or a full disk are left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from adaptive_rec.service.hello import LAST_SECOND, Count, Values

MAX_STEP = 2**53
HEAD_BYTES, BLOCK_BYTES, END_BYTES = 1 << 20, 1 << 15, 8 << 20
"""Parts of a very long file that are read: its first bytes, blocks in between, its last bytes."""
BLOCKS = 64
LONGEST_BYTES = 1 << 20
"""Longest line in the sample."""

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Name = Annotated[str, Field(max_length=100)]


class FileLine(BaseModel):
    """A line with finite numbers. Nothing is converted; other fields are allowed."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class SnapshotTables(FileLine):
    lookups: list[Count] = []
    lookups_hot: list[Count] = []
    hot_rows: list[Count] = []
    stale_rows: list[Count] = []


class SnapshotRank(FileLine):
    work_seconds: Number
    wait_seconds: Number
    sent_bytes: dict[Name, Count]
    work_seconds_per_step: Number
    wait_seconds_per_step: Number
    sent_bytes_per_sample: dict[Name, Number]
    hot_lookup_ratio: Number


class SnapshotStraggler(FileLine):
    rank: Count
    text: str


class SnapshotDisk(FileLine):
    size_bytes: Count
    segments: Count
    wait_seconds_per_step: Number
    rows_ahead_per_step: Number
    rows_again_per_step: Number
    rows_read_per_step: Number
    rows_found_per_step: Number
    rows_drawn_per_step: Number
    rows_written_per_step: Number
    rows_moved_per_step: Number


class SnapshotKeys(FileLine):
    keys: Count
    admitted_per_step: Number
    shared_lookup_ratio: Number
    evicted: Count
    refused_per_step: Number


class SnapshotLine(FileLine):
    step: Step
    seconds: Number
    steps_total: Step | None = None
    samples_per_second: Number | None = None
    loss: Number | None = None
    hot_lookup_ratio: Number | None = None
    popular_sample_ratio: Number | None = None
    skipped_sample_ratio: Number | None = None
    skipped_row_update_ratio: Number | None = None
    hot_rows: Count = 0
    stale_rows: Count = 0
    placement_version: Count = 0
    stale_threshold: Number | None = None
    dense_lr: Number | None = None
    embedding_lr: Number | None = None
    totals: dict[Name, Number] = {}
    stage_seconds: dict[Name, Number] = {}
    tables: SnapshotTables = SnapshotTables()
    ranks: list[SnapshotRank] = []
    straggler: SnapshotStraggler | None = None
    disk: SnapshotDisk | None = None
    keys: SnapshotKeys | None = None


class EvaluationLine(FileLine):
    step: Step
    auc: Number | None = None
    logloss: Number | None = None
    accuracy: Number | None = None
    normalized_entropy: Number | None = None
    calibration: Number | None = None
    samples: Count | None = None
    first_sample: Count | None = None
    end_sample: Count | None = None
    first_time: Number | None = None
    last_time: Number | None = None


class RolledBackLine(FileLine):
    """The mark that the run went back to a step."""

    step: Step


class EventLine(FileLine):
    time: Annotated[float, Field(ge=0, le=LAST_SECOND)]
    step: Step
    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,50}$")]
    text: str
    details: dict[str, Any] = {}


class KnobChangeLine(FileLine):
    new: int | Number | str


class KnobDetails(FileLine):
    changed: dict[Name, KnobChangeLine]


class OverfitDetails(FileLine):
    step: Step
    logloss: Number
    least_step: Step
    least_logloss: Number
    least_training_loss: Number
    training_loss: Number
    worse: Count


class KnobsLine(EventLine):
    details: KnobDetails  # type: ignore[assignment]


class MemorySummary(FileLine):
    """Device memory in a run's `summary.json`. Older versions did not write it."""

    device_staging_bytes: Count = 0
    device_peak_bytes: Count = 0


def parsed(line: bytes) -> Values | None:
    """Return the JSON object on a line, or None. NaN, half surrogate pairs and very deep nesting are not accepted."""
    try:
        value = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def fits(shape: type[FileLine], value: Values) -> bool:
    """Return whether a line has a shape."""
    try:
        shape.model_validate(value)
    except ValidationError:
        return False
    return True


def open_regular(path: Path, links: bool = True) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for others, such as pipes, which would hang; for links unless `links`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    file = open(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} must be a regular file")
    return file


def was_replaced(path: Path, inode: int, position: int) -> bool:
    """Return whether a file that was read up to a position is another one now, or shorter. `inode`: 0 if it was never opened."""
    try:
        found = os.lstat(path)
    except OSError:
        return inode != 0
    return inode not in (0, found.st_ino) or found.st_size < position


class Tail:
    """Remembers how far a growing file has been read. The file may not exist yet.

    If it is longer than `whole_bytes` at the first read, only a sample of its lines is read. Unless `links`, a file that is a
    link counts as missing.
    """

    def __init__(self, path: Path, whole_bytes: int | None = None, links: bool = True) -> None:
        self.path = path
        self._whole_bytes = whole_bytes
        self._links = links
        self._position = self._inode = 0

    def was_replaced(self) -> bool:
        """Return whether there is another file than the one that was read, or none any more."""
        return was_replaced(self.path, self._inode, self._position)

    def new_lines(self) -> Iterator[Values]:
        """Yield every line finished since the last call. Lines without a JSON object are left out."""
        try:
            size = self.path.stat().st_size
            if size == self._position:
                return
            file = open_regular(self.path, self._links)
        except OSError:
            return
        with file:
            self._inode = os.fstat(file.fileno()).st_ino
            if self._position == 0 and self._whole_bytes is not None and size > self._whole_bytes:
                yield from self._sample(file, size)
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._position += len(line)
                value = parsed(line)
                if value is not None:
                    yield value

    def _sample(self, file: BinaryIO, size: int) -> Iterator[Values]:
        """Yield some of the lines before the file's last bytes, and set the position to read from there."""
        end = max(0, size - END_BYTES)
        apart = max(BLOCK_BYTES, (end - HEAD_BYTES) // BLOCKS)
        for start, length in [(0, HEAD_BYTES), *((at, BLOCK_BYTES) for at in range(HEAD_BYTES, end, apart))]:
            file.seek(start)
            if start:
                file.readline(LONGEST_BYTES)  # the rest of a line that starts earlier
            while file.tell() < min(start + length, end):
                value = parsed(file.readline(LONGEST_BYTES))
                if value is not None:
                    yield value
        file.seek(end)
        file.readline(LONGEST_BYTES)
        self._position = file.tell()
