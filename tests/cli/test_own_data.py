"""A CSV file from the first command to a model in use: train, predict, eval, export, nearest."""

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

SETTINGS = ["--no-serve", "--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]"]


def new_rows(folder: Path, name: str) -> Path:
    """Write the held-out rows, and one whose values the model has never seen."""
    lines = (folder / "clicks.csv").read_text().splitlines()
    (folder / name).write_text("\n".join([lines[0], *lines[-600:], '999,"item, new",odd,1,1']) + "\n")
    return folder / name


def test_training_leaves_a_schema_and_a_model_that_learned(place: Path) -> None:
    assert 'transform = "log_standard"' in (place / "runs" / "clicks.schema.toml").read_text()
    assert json.loads((place / "runs" / "a" / "summary.json").read_text())["eval"]["auc"] > 0.7


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "clicks.csv"],
        ["plan", "--no-rehearsal", "--data", "clicks.csv"],
        ["simulate", "clicks.csv", "--policies", "hotline", "--steps", "3"],
    ],
)
def test_advice_takes_the_file_and_prepares_it_where_train_would(
    place: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(words) == 2
    assert "give --label COLUMN (or --schema FILE)" in capsys.readouterr().err
    assert main([*words, "--label", "label", "--json"]) == 0
    printed = capsys.readouterr()
    assert "prepared before" in printed.err  # into runs/, by the fixture's run
    assert json.loads(printed.out)
    assert main([*words, "--label", "label"]) == 0
    assert "everything fits, no hot tier is needed" in capsys.readouterr().out


def test_a_comparison_takes_the_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from adaptive_rec.cli import compare

    asked = list[str]()
    monkeypatch.chdir(place)
    monkeypatch.setattr(compare, "make_runs", lambda plan, *_: asked.append(plan.config.data.source) or 0)
    words = ["--data", "clicks.csv", "--label", "label", "--policies", "hybrid,hotline", "--out", "runs/compared"]
    assert main(["compare", *words]) == 0
    (folder,) = asked
    assert (Path(folder) / "meta.json").exists()
    assert "prepared before" in capsys.readouterr().out


def test_the_same_data_is_prepared_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = [
        "train",
        "--data",
        str(place / "clicks.csv"),
        "--label",
        "label",
        "--out",
        str(place / "runs" / "b"),
        "--steps",
        "2",
    ]
    assert main([*again, *SETTINGS]) == 0
    printed = capsys.readouterr().out
    assert "prepared before" in printed
    assert "as an earlier run wrote it or you edited it" in printed
    assert main([*again[:4], "other", "--out", str(place / "runs" / "c")]) == 2
    assert "--label must be a column of" in capsys.readouterr().err


def test_a_schema_that_nobody_edited_is_inferred_anew_for_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of the same name with a column more, or separated by something else; and what was edited stays."""
    monkeypatch.chdir(tmp_path)
    dice, kept = np.random.default_rng(0), tmp_path / "runs" / "clicks.schema.toml"

    def write(file: str, columns: str, separator: str = ",") -> Path:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        rows = [[*dice.integers(9, size=columns.count(",")), dice.integers(2)] for _ in range(40)]
        path.write_text("\n".join(separator.join(map(str, row)) for row in [columns.split(","), *rows]) + "\n")
        return path

    def plan(data: Path) -> str:
        assert main(["plan", "--no-rehearsal", "--samples", "0", "--data", str(data), "--label", "clicked"]) == 0
        return capsys.readouterr().out

    monday = write("mon/clicks.csv", "user,item,clicked")
    assert "inferred from the first rows" in plan(monday)
    assert "as an earlier run wrote it" in plan(monday)
    tuesday = write("tue/clicks.csv", "user,item,price,clicked")
    assert "price" in plan(tuesday)
    assert kept.read_text().startswith(f"# Inferred from {tuesday} (")
    assert "inferred from the first rows" in plan(write("wed/clicks.tsv", "user,item,clicked", "\t"))
    assert "price" not in kept.read_text()
    write("mon/clicks.csv", "user,item,shop,clicked")
    assert "shop" in plan(monday)
    kept.write_text(kept.read_text() + "# edited\n")
    assert f"schema      {kept.relative_to(tmp_path)}, as an earlier run wrote it or you edited it" in plan(monday)
    edited, other = kept.read_text(), write("thu/clicks.csv", "user,item,shop,clicked")
    assert f"which was inferred from {monday} and edited" in plan(other)
    assert kept.read_text() == edited


def test_a_schema_that_its_file_no_longer_fits_is_inferred_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column is gone, holds values that its type does not take, or lists; an edited schema stays, and is refused."""
    monkeypatch.chdir(tmp_path)
    data, kept = tmp_path / "clicks.csv", tmp_path / "runs" / "clicks.schema.toml"
    for names, row in (
        ("clicked,user,item", "{0},{1},i{1}"),
        ("clicked,item", "{0},i{1}"),
        ("clicked,item,user", "{0},{1},{1}"),
        ("clicked,item,user", "{0},{1},u{1}"),
        ("clicked,item,user", '{0},{1},"[{1}, {2}]"'),
    ):
        data.write_text("\n".join([names, *(row.format(n % 2, n % 7, n % 5) for n in range(60))]) + "\n")
        for said in ("inferred from the first rows", "as an earlier run wrote it"):
            assert main(["plan", "--no-rehearsal", "--samples", "0", "--data", str(data), "--label", "clicked"]) == 0
            assert said in capsys.readouterr().out
    kept.write_text(kept.read_text() + "# edited\n")
    data.write_text("clicked,item\n" + "0,i1\n1,i2\n" * 20)
    assert main(["plan", "--no-rehearsal", "--samples", "0", "--data", str(data), "--label", "clicked"]) == 3
    assert "must have the column user of the schema" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_with_its_schema_where_its_file_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first rows would now be read otherwise: a column of words where numbers were."""
    monkeypatch.chdir(tmp_path)
    data, kept = tmp_path / "clicks.csv", tmp_path / "runs" / "clicks.schema.toml"
    dice = np.random.default_rng(0)
    rows = [f"{dice.integers(2)},u{dice.integers(9)},{dice.random():.3f}" for _ in range(200)]
    data.write_text("\n".join(["clicked,user,price", *rows]) + "\n")
    followed = ["data.ids=raw", "data.follow=true", "data.follow_idle_seconds=1", "run.batch_size=32", "checkpoint.every_steps=5"]
    words = ["train", "--data", str(data), "--label", "clicked", "--out", "runs/a", *SETTINGS]
    words += [word for setting in followed for word in ("--set", setting)]
    assert main(words) == 0
    inferred = kept.read_text()
    with data.open("a") as file:
        file.writelines(f"{dice.integers(2)},v{number},{number}\n" for number in range(1000))
    capsys.readouterr()
    assert main([*words, "--resume"]) == 0
    assert "resumed at step" in capsys.readouterr().out
    assert kept.read_text() == inferred
    kept.unlink()
    assert main(["plan", "--no-rehearsal", "--data", str(data), "--label", "clicked"]) == 0
    assert kept.read_text() != inferred, "the rows are read otherwise by now"


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


def test_one_class_alone_and_rows_sorted_by_label_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, labels in (("one", [1] * 400), ("sorted", [1] * 300 + [k % 20 == 0 for k in range(100)])):
        lines = ["user,label", *(f"u{k % 9},{int(label)}" for k, label in enumerate(labels))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        main(
            [
                "train",
                "--data",
                str(tmp_path / f"{name}.csv"),
                "--label",
                "label",
                "--out",
                str(tmp_path / "r" / name),
                *SETTINGS,
            ]
        )
    printed = capsys.readouterr().out
    assert "warning: all 360 training rows have label 1" in printed
    assert "if the file is sorted by its label, shuffle it first" in printed


def test_a_csv_file_without_a_label_is_told_the_way_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", str(place / "clicks.csv"), "--no-serve", "--out", str(place / "runs" / "d")]) in (
        2,
        3,
    )
    assert "--label COLUMN" in capsys.readouterr().err
    assert main(["train", "--data", str(place), "--no-serve", "--out", str(place / "runs" / "d")]) in (2, 3)
    assert "--label COLUMN" in capsys.readouterr().err


def test_folders_that_are_prepared_together_give_all_their_columns(tmp_path, monkeypatch):
    """The columns of the first folder's names alone were taken."""
    monkeypatch.chdir(tmp_path)
    for place, rows in (("one/day=1", "12"), ("other/hour=7", "34")):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / f"{rows}.csv").write_text("click,user\n" + "".join(f"{n % 2},u{rows}{n % 5}\n" for n in range(40)))
    assert main(["data", "prepare", "one", "other", "--label", "click", "--out", "made"]) == 0
    meta = json.loads((tmp_path / "made" / "meta.json").read_text())
    assert {"user", "day", "hour"} == {column["name"] for column in meta["columns"]}
    assert meta["rows"] == 80
