"""What --patience stands for, and what a run on files of one's own starts from: what the user names stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli.branch import train_arguments
from adaptive_rec.cli.stopping import EVALUATIONS, FOR_FEWEST, FOR_SMALL, MOST_PASSES, stopping_settings
from adaptive_rec.cli.train_settings import overrides
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.errors import UsageError


def settings_of(words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = train_arguments(["train", *words])
    found = stopping_settings(args, args.config, overrides(args))
    if not args.resume:
        load_config(args.config, environment, [*found, *overrides(args)])  # is valid
    return dict(each.split("=") for each in found)


OWN = ["--data", "x.csv", "--label", "y"]
SLICE = {"eval.mode": "validation", "eval.train_slice": "true"}
ON = {**SLICE, "eval.per_epoch": str(EVALUATIONS), "data.epochs": str(MOST_PASSES)}


@pytest.mark.parametrize(
    ("words", "environment", "found"),
    [
        (OWN, {}, {}),
        (["--data", "x.csv", "--schema", "s.toml"], {}, {}),
        ([*OWN, "--set", "run.batch_size=64"], {}, {}),
        ([*OWN, "--steps", "10"], {}, {}),
        ([*OWN, "--set", "data.epochs=3"], {}, {}),
        ([*OWN, "--set", "eval.count=3"], {}, {}),
        (OWN, {"ADAPTIVE_REC_EVAL__COUNT": "3"}, {}),
        (["tiny", *OWN], {}, {}),
        ([*OWN, "--set", "data.order=time", "--set", "data.shuffle=false"], {}, {}),
        ([*OWN, "--follow"], {}, {}),
        ([*OWN, "--patience", "0"], {}, {"eval.patience": "0"}),
        (["--data", "criteo.txt"], {}, {}),
        (["tiny"], {}, {}),
        ([*OWN, "--patience", "5"], {}, {"eval.patience": "5", **ON}),
        ([*OWN, "--patience", "5", "--steps", "9"], {}, {"eval.patience": "5", **ON}),
        (["tiny", "--patience", "5"], {}, {"eval.patience": "5", **ON}),
        (["--patience", "5", "--set", "eval.every_steps=7", "--set", "data.epochs=2"], {},
         {"eval.patience": "5", **SLICE}),
        ([*OWN, "--patience", "5", "--set", "eval.train_slice=false"], {},
         {name: value for name, value in {"eval.patience": "5", **ON}.items() if name != "eval.train_slice"}),
        (["--data", "x.csv", "--item", "y", "--patience", "5", "--negatives", "2"], {},
         {name: value for name, value in {"eval.patience": "5", **ON}.items() if name != "eval.train_slice"}),
        ([*OWN, "--patience", "5", "--follow"], {}, {"eval.patience": "5"}),
        ([*OWN, "--patience", "2", "--set", "data.order=time", "--set", "data.shuffle=false"], {},
         {"eval.patience": "2", **SLICE, "eval.per_epoch": str(EVALUATIONS)}),
        ([*OWN, "--patience", "2", "--set", "eval.mode=next_window", "--set", "data.shuffle=false", "--set", "eval.count=5"], {},
         {"eval.patience": "2"}),
        (["--resume", "--out", "r", "--patience", "5"], {}, {"eval.patience": "5"}),
        (["--resume", "--out", "r", *OWN], {}, {}),
        (["--replay", "r"], {}, {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_the_user_names_stays(
    words: list[str], environment: dict[str, str], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_of(words, environment, monkeypatch) == found


@pytest.mark.parametrize("typed", ["-1", "x", "1.5", "1e3"])
def test_patience_is_a_whole_number(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--patience must be a whole number from 0"):
        settings_of([*OWN, f"--patience={typed}"], {}, monkeypatch)


def test_a_file_of_settings_is_one_that_the_user_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("[data]\nepochs = 4\n")
    found = settings_of([str(tmp_path / "mine.toml"), "--patience", "2"], {}, monkeypatch)
    assert found == {"eval.patience": "2", **SLICE, "eval.per_epoch": str(EVALUATIONS)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that was prepared from 40 rows of a CSV file, which are few, but not too few."""
    monkeypatch.setattr("adaptive_rec.cli.stopping.SMALL_ROWS", range(10, 100))
    (tmp_path / "x.csv").write_text("y,user\n" + "".join(f"{row % 2},{row % 5}\n" for row in range(40)))
    schema = parse_schema({"label": "y", "sparse": ["user"]}, "schema")
    prepare_folder(Request((tmp_path / "x.csv",), tmp_path / "x", schema=schema), lambda *_: None)
    return tmp_path / "x"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], FOR_SMALL),
        (["--label", "y"], FOR_SMALL),
        (["--steps", "9"], {"optimizer.embedding_lr": 0.05}),
        (["--patience", "3"], {"optimizer.embedding_lr": 0.05, "eval.patience": 3, **ON}),
        (["--set", "eval.mode=next_window", "--set", "data.shuffle=false", "--set", "eval.count=5"],
         {"optimizer.embedding_lr": 0.05}),
        (["--set", "data.epochs=7", "--set", "optimizer.embedding_lr=0.1"], {}),
        (["--set", "data.train_range=[0.0,0.5]"], FOR_SMALL),
    ],
)  # fmt: skip
def test_few_rows_are_passed_over_more_often(
    folder: Path, words: list[str], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_of(["--data", str(folder), *words], {}, monkeypatch) == {key: str(value) for key, value in found.items()}
    assert settings_of(["tiny", "--data", str(folder)], {}, monkeypatch) == {}  # the user's configuration stays


def test_many_rows_and_very_few_have_one_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_36 = ((range(36, 37), FOR_SMALL), (range(36), {}), (range(37, 99), FOR_FEWEST))  # rows that are trained on, of 40
    for rows, found in of_36:
        monkeypatch.setattr("adaptive_rec.cli.stopping.SMALL_ROWS", rows)
        assert settings_of(["--data", str(folder)], {}, monkeypatch) == {key: str(value) for key, value in found.items()}


def test_few_rows_for_each_row_of_the_tables_have_one_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """36 rows are trained on; the table has 7, two of them for missing and rare values."""
    for least, found in ((36 / 7, FOR_SMALL), (37 / 7, {})):
        monkeypatch.setattr("adaptive_rec.cli.stopping.LEAST_PER_ROW", least)
        assert settings_of(["--data", str(folder)], {}, monkeypatch) == {key: str(value) for key, value in found.items()}
