"""A model that was trained on a CSV file, in use: predict, eval, export, nearest."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from adaptive_rec.cli import main


def new_rows(folder: Path, name: str) -> Path:
    """Write the held-out rows, and one whose values the model has never seen."""
    lines = (folder / "clicks.csv").read_text().splitlines()
    (folder / name).write_text("\n".join([lines[0], *lines[-600:], '999,"item, new",odd,1,1']) + "\n")
    return folder / name


def test_scores_come_in_the_order_of_the_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = new_rows(place, "new.csv")
    for ending in ("parquet", "csv"):
        out = place / f"scores.{ending}"
        assert main(["predict", str(place / "runs" / "a"), "--data", str(data), "--out", str(out), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["rows"] == 601
        assert told["unknown"]["user_id"] == round(1 / 601, 6)
    scores = pyarrow.parquet.read_table(place / "scores.parquet").column("score").to_numpy()
    np.testing.assert_allclose(np.loadtxt(place / "scores.csv", skiprows=1), scores, rtol=1e-6)
    with data.open(newline="") as file:
        labels = np.array([int(row["label"]) for row in csv.DictReader(file)])
    wins = scores[labels == 1][:, None] - scores[labels == 0]
    auc = np.mean(wins > 0) + np.mean(wins == 0) / 2
    assert main(["eval", str(place / "runs" / "a"), "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auc"] == pytest.approx(auc, abs=1e-6)
    assert main(["predict", str(place / "runs" / "a"), "--data", str(data), "--out", str(place / "scores.csv")]) == 2
    words = ["predict", str(place / "runs" / "a"), "--data", str(data), "--out", str(place / "kept.csv")]
    assert main([*words, "--keep", "label,user_id"]) == 0
    assert "kept        label, user_id" in capsys.readouterr().out
    with (place / "kept.csv").open(newline="") as file, data.open(newline="") as before:
        for row, own in zip(csv.DictReader(file), csv.DictReader(before), strict=True):
            assert (row["label"], row["user_id"]) == (own["label"], own["user_id"])
    np.testing.assert_allclose(np.loadtxt(place / "kept.csv", skiprows=1, delimiter=",", usecols=2), scores, rtol=1e-6)
    words = [*words[:-1], str(place / "other.csv")]
    assert main([*words, "--keep", "labell"]) == 2
    assert "did you mean label?" in capsys.readouterr().err
    assert not (place / "other.csv").exists()


def test_held_out_rows_of_the_file_score_as_in_training(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (place / "clicks.csv").read_text().splitlines()
    (place / "held.csv").write_text("\n".join([lines[0], *lines[-600:]]) + "\n")
    assert main(["eval", str(place / "runs" / "a"), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert main(["eval", str(place / "runs" / "a"), "--data", str(place / "held.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == own


def test_an_exported_model_scores_alike_without_this_package(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = new_rows(place, "again.csv"), place / "model"
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert main(["export", str(place / "runs" / "a"), "--to", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checked_rows"] == 600
    assert told["largest_difference"] <= 1e-6
    assert not [path for path in out.rglob("*") if path.name == "__pycache__"], "it is no file of the model"
    assert {Path(name) for name in told["files"]} == {path for path in out.rglob("*") if path.is_file()}
    barred = "import sys; sys.modules['adaptive_rec'] = None; import runpy; sys.argv = sys.argv[1:]; "
    barred += "runpy.run_path(sys.argv[0], run_name='__main__')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", barred, str(out / "model.py"), str(data)]
    scored = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=place)
    assert main(["predict", str(place / "runs" / "a"), "--data", str(data), "--out", str(place / "c.parquet")]) == 0
    ours = pyarrow.parquet.read_table(place / "c.parquet").column("score").to_numpy()
    np.testing.assert_allclose(np.array(scored.stdout.split(), dtype=float), ours, atol=1e-6)


def test_nearest_values_are_named_as_in_the_data(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nearest", str(place / "runs" / "a"), "item", "item, 7", "--json", "--limit", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["value"].startswith("item, ") for each in found] == [True] * 3
    assert all(each["value"] != "item, 7" for each in found)
    assert main(["nearest", str(place / "runs" / "a"), "user_id", "-20", "--json"]) == 0
    assert all(isinstance(each["value"], int) for each in json.loads(capsys.readouterr().out))
    for words, message in (
        (["item", "no"], "has in the training data 2 times or more"),
        (["itm", "x"], "did you mean item"),
    ):
        assert main(["nearest", str(place / "runs" / "a"), *words]) == 2
        assert message in capsys.readouterr().err
