"""Valid lines of a run's files, read while the run writes them. Lines damaged by a crash or a full disk are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from pydantic import Field, create_model

from adaptive_rec.config.figures import Part, of_part
from adaptive_rec.config.metrics import MOST_METRICS
from adaptive_rec.service.hello import LAST_SECOND, Count, Values
from adaptive_rec.system.regular_files import bounded_lines, open_regular
from adaptive_rec.system.strict_json import LinesLeftOut, StrictShape, parsed

MAX_STEP = 2**53
HEAD_BYTES, BLOCK_BYTES, END_BYTES = 1 << 20, 1 << 15, 8 << 20
"""Parts of a very long file that are read: its first bytes, blocks in between, its last bytes."""
BLOCKS = 64
LONGEST_BYTES = 1 << 20
"""Longest line in the sample."""

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Name = Annotated[str, Field(max_length=100)]


class SnapshotTables(StrictShape):
    lookups: list[Count] = []
    lookups_hot: list[Count] = []
    hot_rows: list[Count] = []
    stale_rows: list[Count] = []


class SnapshotRank(StrictShape):
    work_seconds: Number
    wait_seconds: Number
    sent_bytes: dict[Name, Count]
    work_seconds_per_step: Number
    wait_seconds_per_step: Number
    sent_bytes_per_sample: dict[Name, Number]
    hot_lookup_ratio: Number


class SnapshotStraggler(StrictShape):
    rank: Count
    text: str


def shape_of(name: str, part: Part) -> type[StrictShape]:
    """Return the shape of a part of a snapshot. Files of earlier versions lack its new figures; what skipping costs may be
    unknown."""
    unknown: Any = (Number | None, None)
    fields: dict[str, Any] = {
        each.field: unknown if part == "skipping" else (Count if each.is_whole else Number, 0 if each.is_new else ...)
        for each in of_part(part)
    }
    return create_model(name, __base__=StrictShape, **fields)


if TYPE_CHECKING:

    class SnapshotDisk(StrictShape): ...

    class SnapshotKeys(StrictShape): ...

    class SnapshotSkipping(StrictShape): ...
else:
    SnapshotDisk, SnapshotKeys = shape_of("SnapshotDisk", "disk"), shape_of("SnapshotKeys", "keys")
    SnapshotSkipping = shape_of("SnapshotSkipping", "skipping")


class SnapshotLine(StrictShape):
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
    stale_agreement: Number | None = None
    dense_lr: Number | None = None
    embedding_lr: Number | None = None
    totals: dict[Name, Number] = {}
    stage_seconds: dict[Name, Number] = {}
    tables: SnapshotTables = SnapshotTables()
    ranks: list[SnapshotRank] = []
    straggler: SnapshotStraggler | None = None
    disk: SnapshotDisk | None = None
    keys: SnapshotKeys | None = None
    skipping: SnapshotSkipping | None = None


class RankingLine(StrictShape):
    groups: Count
    groups_with_positive: Count
    groups_with_both: Count
    metrics: Annotated[dict[Name, Number | None], Field(max_length=MOST_METRICS)]


class ScoreShape(StrictShape):
    """How well a model predicts, in a run's `metrics.jsonl` and `summary.json`."""

    auc: Number | None = None
    logloss: Number | None = None
    accuracy: Number | None = None
    normalized_entropy: Number | None = None
    calibration: Number | None = None
    samples: Count | None = None


class EvaluationLine(ScoreShape):
    step: Step
    first_sample: Count | None = None
    end_sample: Count | None = None
    first_time: Number | None = None
    last_time: Number | None = None
    ranking: RankingLine | None = None


class RolledBackLine(StrictShape):
    """The mark that the run went back to a step."""

    step: Step


class EventLine(StrictShape):
    time: Annotated[float, Field(ge=0, le=LAST_SECOND)]
    step: Step
    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,50}$")]
    text: str
    details: dict[str, Any] = {}


class KnobChangeLine(StrictShape):
    new: int | Number | str


class KnobDetails(StrictShape):
    changed: dict[Name, KnobChangeLine]


class OverfitDetails(StrictShape):
    step: Step
    logloss: Number
    least_step: Step
    least_logloss: Number
    least_training_loss: Number
    training_loss: Number
    worse: Count


class KnobsLine(EventLine):
    details: KnobDetails  # type: ignore[assignment]


class MemorySummary(StrictShape):
    """Device memory in a run's `summary.json`. Older versions did not write it."""

    device_staging_bytes: Count = 0
    device_peak_bytes: Count = 0


class BestSummary(StrictShape):
    """The best evaluation in a run's `summary.json`."""

    step: Step
    auc: Number | None = None
    logloss: Number | None = None
    value: Number | None = None
    epoch: Count | None = None


class ChoiceSummary(StrictShape):
    """Which model a run has chosen, in its `summary.json`. Older versions wrote a part of it."""

    eval_mode: str = ""
    eval_step: Step | None = None
    eval: ScoreShape | None = None
    best_eval: BestSummary | None = None
    best_metric: str | None = None
    stopped_early: str | None = None


def was_replaced(path: Path, inode: int, position: int) -> bool:
    """Return whether a file that was read up to a position is another one now, or shorter. `inode`: 0 if it was never opened."""
    try:
        found = os.lstat(path)
    except OSError:
        return inode != 0
    return inode not in (0, found.st_ino) or found.st_size < position


class Tail:
    """Remembers how far a growing file has been read, and which of its lines were left out. The file may not exist yet.

    If it is longer than `whole_bytes` at the first read, only a sample of its lines is read. Unless `links`, a file that is a
    link counts as missing.
    """

    def __init__(self, path: Path, whole_bytes: int | None = None, links: bool = True) -> None:
        self.path = path
        self._whole_bytes = whole_bytes
        self._links = links
        self._position = self._inode = 0
        self._number: int | None = 0
        """That of the newest line; None where lines before it were not read."""
        self._unfinished = False
        self.left_out = LinesLeftOut()
        """Lines without a JSON object, and those that their reader has left out."""
        self.fault = ""
        """Why the file cannot be read, where it is there."""

    @property
    def version(self) -> tuple[int, int, str]:
        """What is another value once more has been read or left out."""
        return self._position, self.left_out.count, self.fault

    def was_replaced(self) -> bool:
        """Return whether there is another file than the one that was read, or none any more."""
        return was_replaced(self.path, self._inode, self._position)

    def leave_out(self) -> None:
        """Note that the newest line does not fit."""
        self.left_out.add(self._number)

    def left_out_at_the_end(self) -> LinesLeftOut:
        """Return the lines that were left out, with a last one that ends early: nobody goes on with it."""
        found = deepcopy(self.left_out)
        if self._unfinished:
            found.add(None if self._number is None else self._number + 1)
        return found

    def new_lines(self) -> Iterator[Values]:
        """Yield every line finished since the last call. Lines without a JSON object are left out."""
        try:
            size = os.stat(self.path).st_size
            if size == self._position:
                return
            file = open_regular(self.path, self._links)
            self.fault = ""
        except FileNotFoundError:
            return
        except OSError as error:
            self.fault = f"cannot be read: {error.strerror}"
            return
        with file:
            self._inode = os.fstat(file.fileno()).st_ino
            if self._position == 0 and self._whole_bytes is not None and size > self._whole_bytes:
                self._number = None
                yield from self._sample(file, size)
            file.seek(self._position)
            for line, length in bounded_lines(file):
                self._unfinished = not line.endswith(b"\n")
                if self._unfinished:
                    return  # still being written
                self._position += length
                if self._number is not None:
                    self._number += 1
                yield from self._taken(line)

    def _taken(self, line: bytes) -> Iterator[Values]:
        value = parsed(line)
        if value is not None:
            yield value
        elif line.strip():
            self.leave_out()

    def _sample(self, file: BinaryIO, size: int) -> Iterator[Values]:
        """Yield some of the lines before the file's last bytes, and set the position to read from there."""
        end = max(0, size - END_BYTES)
        apart = max(BLOCK_BYTES, (end - HEAD_BYTES) // BLOCKS)
        for start, length in [(0, HEAD_BYTES), *((at, BLOCK_BYTES) for at in range(HEAD_BYTES, end, apart))]:
            file.seek(start)
            if start:
                file.readline(LONGEST_BYTES)  # the rest of a line that starts earlier
            while file.tell() < min(start + length, end):
                yield from self._taken(file.readline(LONGEST_BYTES))
        file.seek(end)
        file.readline(LONGEST_BYTES)
        self._position = file.tell()
