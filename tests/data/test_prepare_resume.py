"""Work on a prepared folder that stops early, and is gone on with."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.data.prepare import arrays as prepare_arrays
from adaptive_rec.data.prepare.checksums import StageProgress, verify_checksums
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.errors import DataError, UsageError
from tests import forked
from tests.data.prepare_rows import BAD_LINES, assert_equals_plain, made, plain_rows, row, rows, silent, write


class Interrupted(Exception):
    pass


def test_after_a_bad_row_the_work_resumes_with_skipping(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "day_0", rows(60)), write(tmp_path / "day_1", rows(5, 60) + BAD_LINES[0])
    with pytest.raises(DataError, match="day_1, line 6"):
        made(tmp_path / "out", good, bad)
    written = (tmp_path / "out.part" / "day_0_dense.npy").stat().st_mtime_ns
    made(tmp_path / "out", good, bad, on_bad_row="skip")
    assert_equals_plain(tmp_path / "out", plain_rows(rows(65) + BAD_LINES[0]), 1)
    assert (tmp_path / "out" / "day_0_dense.npy").stat().st_mtime_ns == written


def told_until(stage: str, number: int) -> Any:
    """A progress function that ends the work at the `number`-th news of a stage, as a kill would: nothing cleans up."""
    heard = itertools.count()

    def told(progress: StageProgress) -> None:
        if progress.stage == stage and next(heard) >= number:
            raise Interrupted

    return told


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("reading", 0),
        ("reading", 1),
        ("numbering", 0),
        ("numbering", 1),
        ("numbering", 2),
        ("writing", 0),
        ("writing", 1),
        ("checksums", 0),
    ],
)
def test_an_interrupted_try_is_gone_on_with(tmp_path: Path, stage: str, number: int) -> None:
    text = [rows(60), rows(40, 60)]
    sources = [write(tmp_path / f"day_{k}", part) for k, part in enumerate(text)]
    with pytest.raises(Interrupted):
        prepare_folder(Request(tuple(sources), tmp_path / "out"), told_until(stage, number))
    assert not (tmp_path / "out").exists()
    part = tmp_path / "out.part"
    before = {path.name: path.stat().st_mtime_ns for path in part.glob("*_dense.npy")}
    made(tmp_path / "out", *sources)
    assert_equals_plain(tmp_path / "out", plain_rows(b"".join(text)), 1)
    verify_checksums(tmp_path / "out", load_meta(tmp_path / "out"), silent)
    assert not part.exists()
    if stage != "reading":  # what was read was not read again
        assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*_dense.npy")}


def test_another_job_does_not_resume_it(tmp_path: Path) -> None:
    source, other = write(tmp_path / "day_0", rows(60)), write(tmp_path / "day_1", rows(9))
    with pytest.raises(Interrupted):
        prepare_folder(Request((source,), tmp_path / "out"), told_until("numbering", 0))
    for message, sources, options in (
        ("min_count 1 instead of 2; remove it to start again", [source], {"min_count": 2}),
        ("with other sources", [other], {}),
    ):
        with pytest.raises(UsageError, match=message):
            made(tmp_path / "out", *sources, **options)
    write(source, rows(61))
    made(tmp_path / "out", source)  # work on a file that has changed since is of no use: it begins anew
    assert len(np.load(tmp_path / "out" / "day_0_labels.npy")) == 61


def test_a_source_that_changes_while_it_is_read(tmp_path: Path) -> None:
    source = write(tmp_path / "day_0", rows(60))

    def told(progress: StageProgress) -> None:
        with source.open("ab") as file:
            file.write(row(1))

    with pytest.raises(DataError, match="must stay as it is while it is read, .*day_0 has changed"):
        prepare_folder(Request((source,), tmp_path / "out"), told)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    source = write(tmp_path / "day_0", rows(9))
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match="out.part is needed for the work in progress, but holds letter.txt"):
        made(tmp_path / "out", source)


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "day_0", rows(9))

    def told(progress: StageProgress) -> None:
        with pytest.raises(UsageError, match="out.part is being prepared by another process"):
            made(tmp_path / "out", source)

    prepare_folder(Request((source,), tmp_path / "out"), told)


@pytest.mark.parametrize("stage", ["reading", "numbering", "writing"])
def test_a_full_disk_is_an_error_and_the_work_can_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = write(tmp_path / "day_0", rows(60))
    with monkeypatch.context() as patch:
        if stage == "reading":
            patch.setattr("adaptive_rec.data.prepare.arrays.NpyWriter.append", full)
        elif stage == "numbering":
            patch.setattr(os, "posix_fallocate", full)
        else:
            patch.setattr(prepare_arrays, "write_at", full)
        with pytest.raises(
            DataError, match="the disk of .*out.part is full; the work so far is kept there: free some space"
        ):
            made(tmp_path / "out", source)
    made(tmp_path / "out", source)
    assert_equals_plain(tmp_path / "out", plain_rows(rows(60)), 1)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kill_at", "count"),
    [
        ("numbering", 9_000),
        *(pytest.param(stage, 30_000, marks=SLOW) for stage in ("reading day_1", "numbering", "writing")),
    ],
)
def test_killed_processes_leave_what_can_be_gone_on_with(tmp_path: Path, kill_at: str, count: int) -> None:
    """kill -9 from outside, at a stage; what goes on with it makes the same arrays as one that was left alone."""
    text = [rows(count), rows(count * 2 // 3, count)]
    sources = [write(tmp_path / f"day_{k}.tsv", part) for k, part in enumerate(text)]
    command = ["data", "prepare", *map(str, sources), "--out", str(tmp_path / "out")]
    reading, writing = os.pipe()
    with open(reading) as told, open(writing, "w") as output:
        process = forked.start(command, output.fileno(), {**os.environ, "PYTHONUNBUFFERED": "1"})
        output.close()
        for line in told:
            if line.startswith(kill_at):
                break
        process.kill()
        process.wait(60)
    if not (tmp_path / "out").exists():  # the kill may have come after the end
        made(tmp_path / "out", *sources)
    made(tmp_path / "alone", *sources)
    for file in load_meta(tmp_path / "alone").array_files():
        assert (tmp_path / "out" / file.name).read_bytes() == (tmp_path / "alone" / file.name).read_bytes()
