"""CSV, TSV and Parquet files that grow, or come into a folder, as an endless source of raw keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.loaded_samples import LoadedSamples, to_batch
from adaptive_rec.data.prepare.formats import check_source
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.data.standard import Standard
from adaptive_rec.data.tabular.file_rows import CommonColumns, loaded
from adaptive_rec.data.tabular.followed_files import FollowedFiles
from adaptive_rec.data.tabular.followed_places import PassedPlaces, Place
from adaptive_rec.data.tabular.growing_file import bytes_before, gone, has_line, may_grow
from adaptive_rec.data.tabular.reader import START, Mark, TabularReader
from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.data.tabular.stream import TabularSource, columns_of, specs
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.weights import WeightFacts
from adaptive_rec.errors import DataError
from adaptive_rec.saved import ANY, Saved

POLL_SECONDS = 0.25
"""Time between two looks at the files while nothing new is there."""
Pause = Callable[[float], bool]
"""Waits for so many seconds, or until the stream is ended, and returns whether it is; the thread that reads calls it."""


class FollowedSource:
    """The file `data.source` as it grows, or the files of that folder in the natural order of their names, as they come.

    A line is read when its end is there. Of a folder, a plain CSV or TSV file may grow until a later file is there; other files
    must be complete when their name appears. There is no held-out range. The stream ends after `data.follow_idle_seconds` without
    new rows, and when `stop` is called.
    """

    sequence = None
    epochs = 1
    train_samples = validation_samples = test_samples = malformed_rows = 0
    """The number of samples is not known."""

    def __init__(self, config: Config) -> None:
        """Raises DataError where there is no first file."""
        data = config.data
        self._skips, self._idle_seconds = data.on_bad_row == "skip", data.follow_idle_seconds
        self._schema = load_schema(Path(data.schema_file), "data.schema_file")
        self.has_groups = bool(self._schema.group.column)
        """Whether rows have groups, within which they are ranked."""
        self.weights = WeightFacts.of(self._schema)
        self._common = CommonColumns()
        self.files = FollowedFiles(Path(data.source))
        first, *others = self.files.present
        check_source(first)
        if not self.files.is_folder and not may_grow(first):
            raise DataError(
                f"a file that is followed must be a plain CSV or TSV file, or in a folder that is followed, got {first}"
            )
        if not others and may_grow(first) and not has_line(first):
            raise DataError(f"{first} must have its first line, which names the columns, before it is followed")
        self._common.check(first, self._reader(first, False))
        columns = self._common.columns
        self.tables, self.features = specs(config, columns)
        self._columns, self.dense_features = columns_of(columns), len(self._common.dense_names)
        self._saved_files: set[str] | None = None
        """Files of the folder that had been read when the state was saved that reading goes on from, removed ones too; None: not
        known."""
        self._left_out = 0
        """Malformed rows that were skipped since the last well-formed row."""
        self._bad_rows = 0
        """Malformed rows that this process skipped, less those behind its first place that batches before had counted."""
        self._knows_counts = True
        """False: a saved state of an older version says nothing of what was counted in the block at which reading goes on."""
        self._standard: Standard | None = None
        self._stopped = threading.Event()
        self._places = PassedPlaces(self._stopped)
        self._newest = 0.0
        """When rows came last, on the monotonic clock."""
        self._is_over = False
        self._pause: Pause = self._stopped.wait

    def wrap_pauses(self, wrap: Callable[[Pause], Pause]) -> None:
        """Replace the wait between two looks at the files by what is made of it."""
        self._pause = wrap(self._pause)

    def stop(self) -> None:
        """End the stream, from any thread."""
        self._stopped.set()

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield whole batches from `position` on, as rows come, and a smaller one at the stream's end."""
        self._newest, self._is_over = time.monotonic(), False
        pieces: list[LoadedSamples] = []
        offset, rows, bad_rows = position.offset, 0, 0
        for samples, bad in self._arriving(position.offset):
            pieces.append(samples)
            rows, bad_rows = rows + len(samples.labels_B), bad_rows + bad
            while rows >= batch_size:
                joined = LoadedSamples.joined(pieces)
                offset += batch_size
                self._places.count(offset, bad_rows)
                yield self._batch(joined[0:batch_size], replace(position, offset=offset), bad_rows)
                pieces, rows, bad_rows = [joined[batch_size:rows]], rows - batch_size, 0
        if rows:
            self._places.count(offset + rows, bad_rows)
            yield self._batch(LoadedSamples.joined(pieces), replace(position, offset=offset + rows), bad_rows)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """There are no held-out samples: each window is scored before it is trained on."""
        return iter(())

    def _batch(self, samples: LoadedSamples, position: Position, bad_rows: int) -> Batch:
        self._standard = self._standard or self._measured(samples)
        batch = to_batch([samples], self._columns, position)
        return replace(batch, dense_BX=self._standard.apply(batch.dense_BX), malformed_rows=bad_rows)

    def _measured(self, samples: LoadedSamples) -> Standard:
        """Measure dense columns on the first batch of the stream: that does not depend on when rows come."""
        return Standard.of(self._schema.standard_columns, self._schema.standard_missing, [samples.dense_BX])

    def trained_columns(self) -> TrainedColumns:
        """Return what scoring other files takes, as far as it is known now."""
        bag_C = tuple(c.bag for c in self._common.columns)
        schema = self._schema.with_types(self._common.kind_of, bag_C)
        return TrainedColumns(schema, bag_C, self._standard)

    # Files -----------------------------------------------------------------------------------------------------------

    def _arriving(self, row: int) -> Iterator[tuple[LoadedSamples, int]]:
        """Yield the rows of the stream from one on, each block with the malformed rows that were skipped with it."""
        place, counted = self._places.begin(row)
        path = self.files.begin(place.file, self._saved_files)
        left, first_row, mark = row - place.row, place.first_row, place.mark
        self._left_out, self._bad_rows = 0 if left else place.left_out, place.bad_rows
        self._check_tail(path, place.mark, place.tail)
        next_path: Path | None = path
        while next_path is not None:
            path, rows = next_path, mark.rows
            for samples, bad in self._rows_of(path, first_row, mark, row):
                size = len(samples.labels_B)
                rows += size
                known = min(counted, bad) if self._knows_counts or not left else bad
                counted = max(0, counted - known)
                self._left_out, self._bad_rows = self._left_out + bad - known, self._bad_rows + bad
                if left < size:
                    bad, self._left_out = self._left_out, 0
                    yield samples[left:size], bad
                left = max(left - size, 0)
            first_row, mark = first_row + rows, START
            next_path = None
            while next_path is None and not self._is_over:
                next_path = self.files.later(path, begins=True)
                if next_path is None:
                    self._wait()

    def _rows_of(self, path: Path, first_row: int, mark: Mark, row: int) -> Iterator[tuple[LoadedSamples, int]]:
        """Yield the rows of a file from a mark on until it is finished, or the stream is over. Rows of the stream before `row`
        were there once."""
        tail, size = "", 0
        while True:
            grows = may_grow(path) and self.files.later(path) is None
            if (now := self.files.size_of(path, was_read=size > 0)) is None:
                self.files.warn_of_removed(path, size, size - mark.place if self._has_bytes(path) else 0)
                return
            size = now
            self._check_tail(path, mark, tail)
            if not grows or has_line(path):
                reader = self._reader(path, grows)
                self._common.check(path, reader)
                bad = 0
                for block in reader.blocks(mark):
                    if reader.mark is not None:
                        self._pass(path, first_row, reader.mark)
                    self._newest = time.monotonic()
                    yield loaded(block), reader.bad_rows - bad
                    bad = reader.bad_rows
                self._left_out, self._bad_rows = self._left_out + reader.bad_rows - bad, self._bad_rows + reader.bad_rows - bad
                mark, tail = reader.end, self._pass(path, first_row, reader.end)
            if not grows:
                return
            if first_row + mark.rows < row:
                missing = row - first_row - mark.rows
                raise DataError(f"{path} must still have all rows that were trained on, {missing} of them are gone")
            while (now := self.files.size_of(path, was_read=True)) == size and self.files.later(path) is None:
                if not self._wait():
                    return
            if now is not None and now < size:
                raise DataError(f"{path} must only grow while it is followed, it had {size} bytes, got {now}")

    def unread(self) -> str:
        """Return what an ended stream has left in its last file: half a line, or all that follows a quotation mark that nothing
        closes; empty where that is nothing."""
        place = self._places.newest
        path = self.files.path_of(place.file)
        size = self.files.size_of(path, was_read=True) if self._is_over and self._has_bytes(path) else None
        left = 0 if size is None else size - place.mark.place
        return f"{left:,} bytes at the end of {path} were not read, as they are no whole line" if left > 0 else ""

    def _tail(self, path: Path, mark: Mark) -> str:
        """Return the last bytes of a file before a mark; empty where a mark's place is no byte of the file."""
        return bytes_before(path, mark.place) if self._has_bytes(path) else ""

    def _has_bytes(self, path: Path) -> bool:
        """Whether the marks of a file are bytes of it."""
        return may_grow(path) and self._schema.file.encoding == "utf-8"

    def _check_tail(self, path: Path, mark: Mark, tail: str) -> None:
        """Raise DataError where a file has other bytes before a mark than it had: it was replaced, or cut and written anew."""
        if tail and self._tail(path, mark) != tail:
            raise DataError(f"{path} must only grow while it is followed, what was read before byte {mark.place} has changed")

    def _wait(self) -> bool:
        """Wait a moment; returns whether the stream goes on."""
        is_idle = bool(self._idle_seconds) and time.monotonic() - self._newest >= self._idle_seconds
        self._is_over = is_idle or self._pause(POLL_SECONDS)
        return not self._is_over

    def _reader(self, path: Path, grows: bool) -> TabularReader:
        try:
            return TabularReader(path, self._schema, self._skips, keeps_values=False, grows=grows)
        except OSError as error:
            raise gone(path, error) from None
        except DataError as error:
            if may_grow(path):
                raise
            way_out = "a file must be complete when its name appears: write it under another name, then rename it"
            raise DataError(f"{error}; {way_out}") from None

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def _pass(self, path: Path, first_row: int, mark: Mark) -> str:
        """Keep a place, unless the stream has ended; returns the last bytes before it."""
        try:
            tail = self._tail(path, mark)
        except DataError:
            if not self.files.is_folder:
                raise
            tail = ""  # the file was removed after it was read
        self._places.add(Place(path.name, first_row, mark, tail, self._left_out, self._bad_rows))
        return tail

    def end(self, position: Position) -> int:
        """End the stream at a position. Returns the malformed rows between the last row before it and the place that was read
        next: no batch has counted them."""
        return self._places.end(position.offset)

    def state(self, position: Position) -> dict[str, Any]:
        """Return where reading goes on after a position. Places before it are forgotten."""
        place, counted = self._places.forget_before(position.offset)
        standard = self._standard
        figures = None if standard is None else {"mean": standard.mean_X, "deviation": standard.deviation_X}
        mark = {"place": place.mark.place, "rows": place.mark.rows, "bad_rows": place.mark.bad_rows}
        read, removed = map("/".join, self.files.read_until(place.file))  # no name has a slash
        files = {"file": place.file, "read_files": read, "removed_files": removed, "tail": place.tail}
        bad_rows = {"left_out": place.left_out, "counted": counted}
        return {**files, "first_row": place.first_row, **mark, **bad_rows, "standard": figures}

    def set_state(self, found: Saved) -> None:
        """Go on where a checkpoint stood. Raises CheckpointError."""
        mark = Mark(found.integer("place"), found.integer("rows"), found.integer("bad_rows"))
        left_out = found.integer("left_out") if found.has("left_out") else 0  # older versions had none
        self._knows_counts = found.has("counted")  # or this
        counted = found.integer("counted") if self._knows_counts else 0
        place = Place(found.text("file"), found.integer("first_row"), mark, found.text("tail"), left_out, -counted)
        removed = found.text("removed_files") if found.has("removed_files") else ""  # or this
        read = f"{found.text('read_files')}/{removed}"
        self._places.go_on_at(place)
        if place.file:
            self._saved_files = set(read.split("/")) - {""}
        if (figures := found.maybe("standard")) is not None:
            columns = self._schema.standard_columns
            missing = np.array(self._schema.standard_missing, dtype=np.float32)
            mean_X, deviation_X = (figures.array(name, np.float64, ANY) for name in ("mean", "deviation"))
            self._standard = Standard(columns, mean_X, deviation_X, missing)


def files_of_source(source: Source) -> TabularSource | FollowedSource | None:
    """Return the source behind a source where it reads a user's own files by raw keys."""
    while isinstance(source, Wrapped):
        source = source.origin
    return source if isinstance(source, TabularSource | FollowedSource) else None
