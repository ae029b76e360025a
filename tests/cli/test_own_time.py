"""``--time COLUMN``: the schema's time, the order of the rows and the newest ones held out, in one word."""

from __future__ import annotations

import csv
import random
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.data.tabular.times import unit_of_column
from adaptive_rec.errors import DataError

DICE = random.Random(1)
SECOND = 1_700_000_000
ROWS = 300


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose rows are in no order; the newest ones are of user 7."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for k in range(ROWS):
        hour, minute, at = f"{k // 60:02}", f"{k % 60:02}", SECOND + 60 * k
        texts = f"2024-01-01T{hour}:{minute}:00", f"01-{1 + k // 60:02}-2024 00:{minute}", f"{1 + k // 60}/13/2024 00:{minute}"
        rows.append([k % 2, 7 if k >= 270 else k % 5, at, at * 1000, *texts, "x"])
    random.Random(1).shuffle(rows)
    with open("log.csv", "w", newline="") as file:
        csv.writer(file).writerows([["click", "user", "when", "ms", "iso", "two", "us", "word"], *rows])
    return Path("log.csv")


def resolved(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Config, str]:
    """The configuration of a run, and what is said before; the data is prepared, nothing is trained."""
    capsys.readouterr()
    assert main(["train", "--print-config", *words]) == 0
    out, err = capsys.readouterr()
    Path("config.toml").write_text(out)
    return load_config("config.toml", {}), err


def test_columns_that_hold_times_are_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = resolved(capsys, "--data", str(log), "--label", "click")[1]
    assert "--time COLUMN trains in order of time and holds out the newest rows; columns of times: when, iso, us\n" in told


@pytest.mark.parametrize(("column", "unit"), [("when", ""), ("ms", "ms"), ("iso", ""), ("us", "%m/%d/%Y %H:%M")])
def test_one_word_holds_out_the_newest_rows(log: Path, capsys: pytest.CaptureFixture[str], column: str, unit: str) -> None:
    config, told = resolved(capsys, "--data", str(log), "--label", "click", "--time", column, "--out", "run")
    assert f"time      {column}" in told
    assert "--time COLUMN" not in told
    assert (config.data.order, config.data.shuffle) == ("time", False)
    source = PreparedSource(config)
    schema = source.meta.columns_schema
    assert schema is not None
    assert (schema.time.column, schema.time.unit) == (column, unit or "s"), "a prepared folder names seconds"
    assert column not in [each.column for each in (*schema.sparse, *schema.dense)]
    user = [each.name for each in source.meta.columns].index("user")
    held_out = next(source.test_batches(ROWS)).ids_N.reshape(30, -1)[:, user]
    assert len(np.unique(held_out)) == 1, "the newest tenth is of one user"
    kept = load_schema(Path("log.schema.toml"))
    assert (kept.time.column, kept.time.unit) == (column, unit)


def test_rows_that_come_have_no_other_order(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--time says which column is their time, so it is no feature."""
    words = ["--data", str(log), "--label", "click", "--follow", "--time", "when", "--set", "data.follow_idle_seconds=0.2"]
    assert main(["train", *words, "--no-serve", "--out", "run"]) == 0
    told = capsys.readouterr().out
    assert "unused    when   the time of the rows (--time)" in told
    config = tomllib.loads(Path("run/config.toml").read_text())
    assert (config["data"]["order"], config["data"]["follow"]) == ("file", True)
    assert load_schema(Path("log.schema.toml")).time.column == "when"
    with log.open("a") as file:
        file.write("1,3,,0,x,x,x,x\n")
    assert main(["train", *words, "--no-serve", "--out", "short"]) == 3
    assert f"row {ROWS + 1}, column when: must be seconds since 1970" in capsys.readouterr().err
    assert main(["train", *words, "--set", "data.order=time", "--out", "other"]) == 2
    assert 'order must be "file" where data is followed' in capsys.readouterr().err
    assert not Path("other").exists()


def test_the_same_command_again_and_without_the_word(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(log), "--label", "click"]
    resolved(capsys, *words)
    config, _ = resolved(capsys, *words, "--time", "when")
    assert PreparedSource(config).meta.has_times, "an earlier run has written a schema without time"
    assert "prepared before" in resolved(capsys, *words, "--time", "when")[1]
    config, _ = resolved(capsys, *words)
    assert config.data.order == "file"


def test_schemas_of_the_user(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text('label = "click"\nsparse = ["user"]\n')
    words = ["--data", str(log), "--schema", "a.toml"]
    schema = PreparedSource(resolved(capsys, *words, "--time", "ms")[0]).meta.columns_schema
    assert schema is not None
    assert (schema.time.column, schema.time.unit) == ("ms", "ms")
    assert "time" not in Path("a.toml").read_text(), "the user's file stays as it is"
    Path("a.toml").write_text('label = "click"\nsparse = ["user"]\ntime = "when"\n')
    resolved(capsys, *words, "--time", "when")
    assert main(["train", *words, "--time", "ms"]) == 2
    assert "--time must be the time of a.toml, 'when', got 'ms'" in capsys.readouterr().err


def test_raw_ids_and_prepared_folders(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0], *sorted(lines[1:], key=lambda line: line.split(",")[2])]) + "\n")
    raw = ["--data", str(log), "--label", "click", "--set", "data.ids=raw"]
    config, _ = resolved(capsys, *raw, "--time", "when")
    assert config.data.order == "time"
    assert load_schema(Path(config.data.schema_file)).time.column == "when"
    assert main(["data", "prepare", str(log), "--label", "click", "--time", "when", "--out", "made"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("adaptive-rec train --data made --time when")  # else the order would be lost
    assert load_meta(Path("made")).has_times
    assert resolved(capsys, "--data", "made", "--time", "when")[0].data.order == "time"
    assert main(["train", "--data", "made", "--time", "iso"]) == 2
    told = capsys.readouterr().err
    assert "--time must be the column of the times of made, got 'iso'; the folder has the times of 'when'" in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--label", "click", "--time", "wen"], "--time must be a column of log.csv, got 'wen'; the first line names"),
        (["--label", "click", "--time", "wen"], "did you mean when?"),
        (["--label", "click", "--time", "word"], "--time must be a column of times, word of log.csv is none: 'x' is neither"),
        (["--label", "click", "--time", "two"], "may be %d-%m-%Y %H:%M or %m-%d-%Y %H:%M; a schema says which, as time.unit"),
        (["--time", "when"], "--time names a column of CSV, TSV or Parquet files: give --label COLUMN or --schema FILE"),
        (["--label", "click", "--time", "when", "--set", "data.epochs=2"], 'epochs must be 1 where order = "time"'),
    ],
)
def test_what_cannot_be_a_time_is_refused(log: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert main(["train", "--data", str(log), *words, "--out", "run"]) == 2
    assert text in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([1.7e9, 1.8e9], ""),
        ([1_700_000_000_000], "ms"),
        (["1700000000000000"], "us"),
        ([0, 1, 2], ""),
        (["2024-01-01", "2024-02-30T00:00:00"[:10].replace("30", "28")], ""),
        ([np.datetime64("2024-01-01", "ms")], ""),
        ([20_141_399], ""),
        ([2_000_000_000, 2_000_000_061], ""),
    ],
)
def test_the_unit_is_that_of_the_size(values: list[object], unit: str) -> None:
    assert unit_of_column(pa.array(values)) == unit


@pytest.mark.parametrize(
    "values", [[True, False], ["yesterday"], [b"x"], [[1, 2]], [float("inf")]], ids=lambda values: str(values[0])
)
def test_what_is_no_time_has_a_reason(values: list[object]) -> None:
    with pytest.raises(DataError, match=r"no times|neither a number since 1970 nor an ISO time"):
        unit_of_column(pa.array(values))


@pytest.mark.parametrize("values", [[20141021, 20141022], [14102100, 14102123], [2014102100, 2014102123]])
def test_dates_as_whole_numbers_are_no_seconds(values: list[int]) -> None:
    unit = unit_of_column(pa.array(values))
    assert unit.startswith("yy")
    assert len(unit) == len(str(values[0]))
