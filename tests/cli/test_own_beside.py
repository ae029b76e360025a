"""``--weight COLUMN`` and ``--group COLUMN``: what a user sees of them, from a file to scores."""

from __future__ import annotations

import csv
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from adaptive_rec.cli import main
from adaptive_rec.dense.metrics import quality

sklearn = pytest.importorskip("sklearn.metrics")
ROWS = 400


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a weight and a session; one like it without both."""
    monkeypatch.chdir(tmp_path)
    dice = random.Random(3)
    rows = [[int(dice.random() < 0.3), k % 9, dice.randrange(30), k % 4, f"s{k // 8}"] for k in range(ROWS)]
    for name, columns in (("clicks.csv", 5), ("bare.csv", 3)):
        with open(name, "w", newline="") as file:
            csv.writer(file).writerows([row[:columns] for row in [["click", "user", "item", "importance", "session"], *rows]])
    return Path("clicks.csv")


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main([*words]) == code
    return tuple(capsys.readouterr())  # type: ignore[return-value]


def trained(capsys: pytest.CaptureFixture[str], out: str, *words: str) -> tuple[dict[str, Any], str]:
    fixed = ("--no-serve", "--json", "--device", "cpu", "--set", "run.batch_size=64")
    _, err = run(capsys, "train", "--data", "clicks.csv", "--out", out, *fixed, *words)
    return json.loads(Path(out, "summary.json").read_text()), err


@pytest.mark.parametrize("ids", ["auto", "raw"])
def test_a_file_with_weights_is_trained_and_scored(clicks: Path, capsys: pytest.CaptureFixture[str], ids: str) -> None:
    words = ("--label", "click", "--weight", "importance", "--set", f"data.ids={ids}", "--set", "data.epochs=1")
    summary, said = trained(capsys, "run", *words)
    weights = np.arange(360) % 4
    facts = {"column": "importance", "classes": {}, "sum": float(weights.sum()), "least": 0.0, "largest": 3.0}
    assert summary["weights"] == facts
    assert summary["weight_trained"] == weights.sum()
    assert summary["samples_trained"] == 360, "none was skipped, though a quarter counts nothing"
    assert f"weights     column importance: {weights.sum()} over 360 training rows, from 0 to 3" in said
    found = json.loads(run(capsys, "eval", "run", "--data", str(clicks), "--json")[0])
    run(capsys, "predict", "run", "--data", str(clicks), "--out", "scores.parquet", "--keep", "")
    scores = pyarrow.parquet.read_table("scores.parquet")["score"].to_numpy().astype(np.float64)
    labels = np.array([row["click"] for row in csv.DictReader(clicks.open())], np.float64)
    all_weights = np.arange(ROWS) % 4
    wanted = sklearn.log_loss(labels, scores, sample_weight=all_weights)
    assert found["logloss"] == pytest.approx(wanted, rel=1e-5)
    assert found["logloss"] != pytest.approx(sklearn.log_loss(labels, scores), rel=1e-5)


def test_rows_without_the_columns_are_scored_and_it_is_said(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(capsys, "run", "--label", "click", "--weight", "importance", "--group", "session")
    schema = Path("clicks.schema.toml")
    text = schema.read_text().replace('  "session"', '#  "session"')
    schema.write_text(text.replace('weight = "importance"', 'weight = "importance"\nclass_weight = { 1 = 2.5 }'))
    summary, said = trained(capsys, "edited", "--schema", str(schema))
    assert summary["weights"]["classes"] == {"1": 2.5}
    assert "weights     column importance, label 1 x 2.5: " in said
    out, err = run(capsys, "eval", "edited", "--data", "bare.csv", "--json")
    assert "no column importance in the data: rows are not weighted by it" in err
    assert "no column session in the data: rows have no groups" in err
    _, err = run(capsys, "predict", "edited", "--data", "bare.csv", "--out", "scores.parquet")
    assert "no column" not in err
    scores = pyarrow.parquet.read_table("scores.parquet")["score"].to_numpy().astype(np.float64)
    labels = np.array([row["click"] for row in csv.DictReader(open("bare.csv"))], np.float64)
    classes = np.where(labels > 0, 2.5, 1.0)
    wanted = quality(labels, np.log(scores / (1 - scores)), classes).calibration
    assert json.loads(out)["calibration"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--label", "click", "--weight", "user name"], "--weight must be a column of clicks.csv, got 'user name'"),
        (["--label", "click", "--weight", "session"], "column session: must be a number of at least 0, finite in 32 bits"),
        (["--weight", "importance"], "--weight names a column of CSV, TSV or Parquet files: give --label COLUMN"),
        (["--label", "click", "--group", "click"], "--group must be another column than the label, got 'click'"),
    ],
)
def test_bad_columns_are_named(clicks: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    capsys.readouterr()
    assert main(["train", "--data", str(clicks), "--out", "run", "--no-serve", *words]) in (2, 3)
    assert said in capsys.readouterr().err
    assert not Path("run").exists()


def test_options_agree_with_a_schema_and_a_folder(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "data", "prepare", str(clicks), "--label", "click", "--weight", "importance", "--out", "folder")
    words = ("--print-config", "--out", "run")
    run(capsys, "train", "--data", "folder", "--weight", "importance", *words)
    _, err = run(capsys, "train", "--data", "folder", "--weight", "item", *words, code=2)
    assert "--weight must be the column of the weights of folder, got 'item'; the folder has the weights of 'importance'" in err
    _, err = run(capsys, "train", "--data", "folder", "--group", "user", *words, code=2)
    assert "the folder was prepared without groups" in err
    schema = ("--schema", "folder.schema.toml", "--data", str(clicks))
    run(capsys, "train", *schema, "--weight", "importance", "--group", "user", *words)
    _, err = run(capsys, "train", *schema, "--weight", "item", *words, code=2)
    assert "--weight must be the column of weights of folder.schema.toml, 'importance', got 'item'; change it there" in err
    plain = Path("plain.toml")
    plain.write_text('label = "click"\ndense = ["item"]\nsparse = ["user"]\n')
    _, err = run(capsys, "train", "--schema", str(plain), "--data", str(clicks), "--weight", "item", *words, code=2)
    assert "--weight must be no feature, plain.toml lists 'item' as one; take it out there" in err


def test_an_inferred_schema_has_no_columns_that_are_no_longer_named(
    clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = ("--label", "click", "--steps", "1")
    assert trained(capsys, "one", *label, "--weight", "importance", "--group", "session")[0]["weights"] is not None
    assert trained(capsys, "two", *label)[0].get("weights") is None
    found = tomllib.loads(Path("clicks.schema.toml").read_text())
    assert not found.keys() & {"weight", "group"}
