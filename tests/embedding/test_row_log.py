"""The log of rows: whatever is appended, moved, kept and released, the newest value of each row is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive_rec.embedding.disk import row_log
from adaptive_rec.embedding.disk.compaction import compact
from adaptive_rec.embedding.disk.row_log import RowLog
from adaptive_rec.embedding.disk.saved_segments import NOWHERE
from adaptive_rec.errors import DiskError

ROWS, DIM, WIDTH = 400, 6, 1


def at_once(work: Callable[[], None]) -> None:
    work()


class Rows:
    """A log of small segments beside a plain copy of what it must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.random = folder, np.random.default_rng(1)
        self.log = RowLog(folder, ROWS, DIM * 4, WIDTH * 4, at_once, lambda: None)
        self.expected = np.full((ROWS, DIM + WIDTH), np.nan, np.float32)

    def write(self, rows: Any) -> None:
        values = self.random.random((len(rows), DIM + WIDTH), dtype=np.float32)
        lines = self.random.permutation(len(rows))
        weights, state = np.empty((len(rows), DIM), np.float32), np.empty((len(rows), WIDTH), np.float32)
        weights[lines], state[lines] = values[:, :DIM], values[:, DIM:]
        self.log.append(rows, lines, weights, state)
        self.expected[rows] = values

    def check(self, log: RowLog | None = None) -> None:
        weights, state = np.full((ROWS, DIM), np.nan, np.float32), np.full((ROWS, WIDTH), np.nan, np.float32)
        stamp_R = (log or self.log).read(np.arange(ROWS), np.arange(ROWS), weights, state)
        np.testing.assert_array_equal(np.concatenate([weights, state], axis=1), self.expected)
        np.testing.assert_array_equal(stamp_R == NOWHERE, np.isnan(self.expected[:, 0]))

    def reopened(self, segments: Any) -> RowLog:
        again = RowLog(self.folder, ROWS, DIM * 4, WIDTH * 4, at_once, lambda: None)
        again.segments.adopt([segment.entry for segment in segments])
        again.set_addresses(np.arange(ROWS), self.log.address_R)
        again.count_rows()
        return again


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 4096)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


rows_of_step = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=150, unique=True)
steps = st.lists(
    st.one_of(rows_of_step, st.sampled_from(["compact", "keep", "release", "reopen"])), min_size=1, max_size=25
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_the_newest_value_of_each_row_is_read(steps: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    rows, kept = Rows(tmp_path_factory.mktemp("log")), []
    for step in steps:
        if step == "compact":
            compact(rows.log, lambda: True, lambda moving: None)
        elif step == "keep":
            kept.append((rows.log.sync(rows.log.segments.hold_live()), rows.log.address_R.copy(), rows.expected.copy()))
        elif step == "release" and kept:
            rows.log.segments.release([segment.entry for segment in kept.pop(0)[0]])
        elif step == "reopen":
            rows.check(rows.reopened(rows.log.sync(rows.log.segments.hold_live())))
        elif not isinstance(step, str):
            rows.write(np.array(step))
        rows.check()
    for held, address_R, expected in kept:  # what was kept can be read as it was
        rows.log.address_R, rows.expected = address_R, expected
        rows.check(rows.reopened(held))


def test_segments_that_nothing_needs_are_removed_and_their_places_used_again(tmp_path: Path) -> None:
    rows, places = Rows(tmp_path), set()
    for _ in range(60):
        rows.write(rows.random.permutation(ROWS)[:200])
        compact(rows.log, lambda: True, lambda moving: None)
        rows.check()
        places |= {segment.place for segment in rows.log.segments.hold_live()}
        rows.log.segments.release([segment.entry for segment in rows.log.segments._of.values() if segment.holds])
    assert len(list(tmp_path.glob("*.rows"))) == len(rows.log.segments._of) < 20
    assert max(places) < 30


def test_the_files_of_segments_that_a_reading_still_needs_are_counted(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    segments = rows.log.segments

    def write_whole_segments() -> list[int]:
        for _ in range(5):
            rows.write(np.arange(segments.capacity))
        segments.sweep()
        files = list(tmp_path.glob("*.rows"))
        assert segments.sizes == (len(files), sum(file.stat().st_size for file in files))
        return [len(files), len(segments.entries)]

    write_whole_segments()
    with segments.reading():
        files, needed = write_whole_segments()
        assert files > needed, "the rows of a removed segment may be read right now"
    files, needed = write_whole_segments()
    assert files == needed


def test_rows_that_are_about_to_move_are_named_before_and_after(tmp_path: Path) -> None:
    rows, named, moved = Rows(tmp_path), [], []
    for _ in range(8):
        rows.write(rows.random.permutation(ROWS)[:200])
    before = rows.log.address_R.copy()
    compact(rows.log, lambda: True, lambda moving: named.append((moving, rows.log.address_R[moving] != before[moving])))
    moved = np.flatnonzero(rows.log.address_R != before)
    for is_after in (False, True):
        found = np.concatenate([rows_[has_moved == is_after] for rows_, has_moved in named])
        assert set(moved.tolist()) <= set(found.tolist())


def test_a_damaged_page_is_an_error_that_names_it(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.write(np.arange(ROWS))
    path = tmp_path / "000000000.rows"
    data = bytearray(path.read_bytes())
    data[3000] ^= 4
    path.write_bytes(data)
    with pytest.raises(DiskError, match=r"the page at byte 0 of .*000000000.rows is damaged: its crc32 differs"):
        rows.check()


def test_a_segment_that_was_cut_off_is_not_adopted(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.write(np.arange(ROWS))
    segments = rows.log.sync(rows.log.segments.hold_live())
    (tmp_path / "000000000.rows").write_bytes(b"")
    with pytest.raises(DiskError, match="000000000.rows must have 4096 bytes, it is cut off"):
        rows.reopened(segments)


def test_a_value_at_an_address_that_was_used_before_has_another_stamp(tmp_path: Path) -> None:
    """A batch that was read ahead must notice, however many segments came and went meanwhile."""
    rows, one = Rows(tmp_path), np.array([0])
    seen: dict[int, int] = {}
    for _ in range(40):
        rows.write(np.arange(rows.log.segments.capacity))  # a whole segment: the one before it is not needed any more
        rows.log.segments.sweep()
        address, stamp = int(rows.log.address_R[0]), int(rows.log.stamps(one)[0])
        assert stamp not in seen
        seen[stamp] = address
    assert len(set(seen.values())) < len(seen), "addresses come back"
