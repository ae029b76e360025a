"""``train --dry-run``: one screen of what a run would do; files of the user's own are not prepared for it."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main

ROWS = 600
DICE = np.random.default_rng(3)
USERS, ITEMS, LABELS = DICE.integers(0, 40, ROWS), DICE.integers(0, 25, ROWS), DICE.integers(0, 2, ROWS)
TIMES = DICE.permutation(ROWS)
LATE = ROWS * 9 // 10
"""The first row that is held out by position."""
ITEMS[LATE:] += np.where(DICE.random(ROWS - LATE) < 0.3, 100, 0)
SETTINGS = ["--no-serve", "--set", "model.bottom_mlp=[4]", "--set", "model.top_mlp=[4]"]
TRAIN = ["train", "--data", "clicks.csv", "--label", "clicked", *SETTINGS]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of clicks, in no order of time."""
    with (tmp_path / "clicks.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "user", "item", "kinds", "price", "when", "clicked"])
        for row in range(ROWS):
            kinds = "new|old" if row % 3 else "old"
            when = f"2024-01-01T{TIMES[row] // 60:02}:{TIMES[row] % 60:02}:00"
            rows.writerow([row, f"u{USERS[row]}", f"i{ITEMS[row]}", kinds, round(row % 7 + 0.5, 1), when, LABELS[row]])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*TRAIN, *words, "--dry-run", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_file_of_ones_own_is_shown_before_it_is_prepared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 40
    shown = dict(line.split(maxsplit=1) for line in reversed(lines) if not line.startswith(" "))
    assert shown["data"].startswith("would be prepared in runs/data/clicks-")
    assert shown["schema"].startswith("runs/clicks.schema.toml (inferred")
    assert shown["label"].startswith("clicked, 1 in ")
    assert (shown["categories"], shown["numbers"]) == ("3: user, item, kinds", "1: price")
    assert "unused       id: it numbers the rows" in lines
    assert shown["split"] == "540 rows to train on, 60 held out (by position)"
    assert shown["passes"] == "1 pass over the training rows, 5 steps"
    assert shown["time"].startswith("about ")
    assert shown["fits"] == "yes"
    assert "item" in shown["unseen"]
    assert files(folder) == {"clicks.csv", "runs/clicks.schema.toml"}, "the schema alone stays"


def test_a_run_that_stops_early_says_at_most_how_many_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--dry-run", "--patience", "3"]) == 0
    printed = capsys.readouterr().out
    assert "486 rows to train on, 54 to validate on, 60 held out (by position)" in printed
    assert "at most 20 passes over the training rows, 80 steps; stops after 3 evaluations" in printed


def test_its_figures_are_those_of_the_prepared_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dry(capsys)
    assert before["data"]["unseen_ratios"]["item"] == pytest.approx(np.mean(~np.isin(ITEMS[LATE:], ITEMS[:LATE])), abs=0.02)
    assert main([*TRAIN, "--out", "runs/one", "--steps", "2"]) == 0
    after = dry(capsys)
    assert after["data"] == {**before["data"], "tables_estimated": False, "seconds": after["data"]["seconds"]}
    assert after["tables"] == before["tables"]
    assert after["hot"] == before["hot"]
    parts = [{part["name"]: part["bytes"] for part in found["parts"]} for found in (before, after)]
    assert parts[0].keys() - {"data"} == parts[1].keys() - {"data"}
    assert parts[0]["data being shuffled"] == pytest.approx(parts[1]["data being shuffled"], rel=0.2)


def test_rows_by_time_say_when_the_held_out_ones_begin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--time", "when", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "60 held out (the newest, from 2024-01-01 09:00:00 UTC on)" in printed
    assert "known after preparing" in printed
    before = dry(capsys, "--time", "when")["data"]
    assert main([*TRAIN, "--time", "when", "--out", "runs/one", "--steps", "2"]) == 0
    after = dry(capsys, "--time", "when")["data"]
    assert before["held_out_from"] == after["held_out_from"] == (1_704_067_200 + 9 * 3600) * 1_000_000
    assert before["unseen_ratios"] == {}
    newest = TIMES >= LATE
    assert after["unseen_ratios"]["item"] == pytest.approx(np.mean(~np.isin(ITEMS[newest], ITEMS[~newest])), abs=0.04)


def test_raw_ids_leave_the_schema_alone_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = dry(capsys, "--set", "data.ids=raw", "--set", "data.max_table_rows=500", "--set", "data.epochs=1")
    assert [table["rows"] for table in found["tables"]] == [501] * 3, "all rows, and the one that rare ids share"
    assert found["data"]["steps"] == 2, "batches of the preset for raw ids"
    assert files(folder) == {"clicks.csv", "runs/clicks.schema.toml"}


def test_a_schema_of_the_user_is_shown_with_what_it_leaves_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.toml").write_text('label = "clicked"\nsparse = ["user"]\n')
    found = dry(capsys, "--schema", "own.toml")["data"]
    beside = dict.fromkeys(("time", "weight", "group"))
    assert found["columns"] == {"label": "clicked", "sparse": ["user"], "dense": [], **beside}
    assert found["unused"] == dict.fromkeys(["id", "item", "kinds", "price", "when"], "not in the schema")
    assert files(folder) == {"clicks.csv", "own.toml"}


def test_a_dry_run_and_a_start_refuse_a_wrong_setting_before_wrong_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wrong.tsv").write_text("\t".join(["1"] + ["3"] * 13 + ["0a"] * 24) + "\n")
    wrong = ["--set", "data.ids=raw", "--set", "run.classify=device", "--processes", "2"]
    errors = []
    for more in (["--dry-run"], ["--out", "runs/one"]):
        assert main(["train", "--data", "wrong.tsv", "--no-serve", *wrong, *more]) == 2
        errors.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")])
    rule = "error: run.classify must be host where several processes train together, got device (see docs/faq.md#not-together)"
    assert errors[0] == errors[1] == [rule]
    for more in (["--dry-run"], ["--out", "runs/one"]):
        assert main(["train", "--data", "wrong.tsv", "--no-serve", *more]) == 3
        assert "row must have 40 tab-separated columns, got 38" in capsys.readouterr().err


# One label -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [["--dry-run"], ["--out", "runs/one"]])
@pytest.mark.parametrize(
    ("label", "listed", "told"),
    [
        ("click,buy", "2 columns", "buy tells click (a value that "),
        ("click, rating >= 4", "2 columns", ""),
        ("click,buy,rating >= 4", "3 columns", "so leave it out of the schema of the run for click"),
    ],
)
def test_several_labels_are_refused_with_the_way_out(
    label: str, listed: str, told: str, begins: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = np.random.default_rng(5)
    bought, rating = LABELS * (dice.random(ROWS) < 0.3), dice.integers(1, 6, ROWS)
    rows = list(zip(USERS, LABELS, bought, rating, strict=True))
    (folder / "two.csv").write_text("user,click,buy,rating\n" + "".join(f"u{u},{c},{b},{r}\n" for u, c, b, r in rows))
    assert main(["train", "--data", "two.csv", "--label", label, "--no-serve", *begins]) == 2
    error = capsys.readouterr().err
    assert f"--label must be one label, got {label!r}, {listed} of two.csv: a model learns one" in error
    assert "Train a run for each (--label click and --label " in error
    assert told in error
    assert bool(told) == (" tells " in error)
    assert files(folder) == {"clicks.csv", "two.csv"}


def test_a_label_is_given_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--label", "buy"]) == 2
    assert "--label must be given once, a run learns one label, got 'clicked' and 'buy'" in capsys.readouterr().err
    assert os.listdir(folder) == ["clicks.csv"]


def test_a_column_with_a_comma_in_its_name_is_a_label(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "clicks.csv").read_text().replace("clicked", '"clicked,bought"', 1)
    (folder / "clicks.csv").write_text(text)
    assert main(["train", "--data", "clicks.csv", "--label", "clicked,bought", *SETTINGS, "--dry-run"]) == 0
    assert "clicked,bought" in capsys.readouterr().out


@pytest.mark.parametrize("patience", [[], ["--patience", "2"]])
def test_defaults_by_the_number_of_rows_are_those_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], patience: list[str]
) -> None:
    """A dry run says the same before the file is prepared as after it."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{row % 40},{row % 7},{row % 2}" for row in range(5_000)]
    (tmp_path / "clicks.csv").write_text("\n".join(["user,item,clicked", *lines]) + "\n")
    before = dry(capsys, *patience)["data"]
    assert (before["epochs"], before["tables_estimated"]) == (20 if patience else 2, True)
    assert main([*TRAIN, "--steps", "1", "--out", "runs/one"]) == 0
    after = dry(capsys, *patience)["data"]
    assert not after["tables_estimated"]
    assert [before[name] for name in ("epochs", "steps")] == [after[name] for name in ("epochs", "steps")]
