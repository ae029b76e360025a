"""Files of a folder that may be somebody else's."""

from __future__ import annotations

import io
import os
import tracemalloc
from pathlib import Path

import pytest

from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.offline.report.record import read_run
from adaptive_rec.run import journal
from adaptive_rec.run.parent_history import metrics_until
from adaptive_rec.system import regular_files
from adaptive_rec.system.regular_files import bounded_lines
from adaptive_rec.system.strict_json import LinesLeftOut


@pytest.mark.parametrize("most", [3, 4, 5, 6, 100])
def test_lines_of_any_length_keep_their_number_and_their_bytes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(regular_files, "MOST_BYTES", most)
    data = b"abc\nabcde\n\nabcdefghijk\nabcd"
    lines = data.splitlines(keepends=True)
    found = list(bounded_lines(io.BytesIO(data)))
    assert [size for _, size in found] == [len(line) for line in lines]
    for line, (read, _) in zip(lines, found, strict=True):
        long = len(line) > most or (len(line) == most and not line.endswith(b"\n"))
        assert read == (b"%d bytes" % len(line) + b"\n" * line.endswith(b"\n") if long else line)


@pytest.mark.parametrize("size_bytes", [130 << 20, pytest.param(300 << 20, marks=pytest.mark.slow)])
def test_a_line_that_no_run_writes_takes_no_memory(tmp_path: Path, size_bytes: int) -> None:
    """A file that a crash has filled with zeros, or that is a hole of any size."""
    for name in ("config.toml", "run.json"):
        (tmp_path / name).write_text("{}" if name == "run.json" else "")
    line = b'{"event": "snapshot", "step": 1, "seconds": 1.0, "loss": 0.5}\n'
    for name in ("metrics.jsonl", journal.NAME):
        (tmp_path / name).write_bytes(line)
        os.truncate(tmp_path / name, size_bytes)
    tracemalloc.start()
    try:
        faults = read_run(tmp_path).faults
        assert list(metrics_until(tmp_path, 5, left_out := LinesLeftOut())) == [line]
        assert left_out.numbers == [2]
        with pytest.raises(DataError, match="must be an event"):
            journal.commands(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert any("metrics.jsonl: " in fault and "2" in fault for fault in faults)


@pytest.mark.parametrize("number", ["1e400", "9" * 5000, "NaN"])
def test_a_step_that_no_run_makes_is_left_out_of_a_branch(tmp_path: Path, number: str) -> None:
    whole = '{"event": "snapshot", "step": 1}'
    (tmp_path / "metrics.jsonl").write_text(f'{{"event": "snapshot", "step": {number}}}\n{whole}\n')
    assert list(metrics_until(tmp_path, 5, left_out := LinesLeftOut())) == [f"{whole}\n".encode()]
    assert left_out.numbers == [1]


@pytest.mark.parametrize("name", ["metrics.jsonl", journal.NAME])
@pytest.mark.parametrize("most", ["MOST_LINES", "MOST_BYTES"])
def test_the_rest_of_a_hopelessly_damaged_file_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: str
) -> None:
    """Else a file of some millions of such lines would take minutes."""
    monkeypatch.setattr(LinesLeftOut, most, {"MOST_LINES": 3, "MOST_BYTES": 7}[most])
    for each, text in (("config.toml", ""), ("run.json", "{}"), (name, "{}\n\n{}\n{}\nnever read\n")):
        (tmp_path / each).write_text(text)
    left_out = f"{name}: 3 lines cannot be read and are left out: 1, 3, 4; nothing is read from line 5 on"
    assert left_out in read_run(tmp_path).faults
    if name == "metrics.jsonl":
        assert list(metrics_until(tmp_path, 9, seen := LinesLeftOut())) == []
        assert seen.unread_from == 5


def test_a_journal_that_never_ends_is_refused(tmp_path: Path) -> None:
    (tmp_path / journal.NAME).symlink_to("/dev/zero")
    with pytest.raises(DataError, match="must be a regular file"):
        journal.commands(tmp_path)


def test_a_configuration_has_no_pipe_and_no_device_read_as_a_schema(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match=f"data.schema_file {path} cannot be read: must be a regular file"):
            load_schema(path, "data.schema_file")
