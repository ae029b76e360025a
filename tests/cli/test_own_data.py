"""A CSV file from the first command on: inferred, prepared, trained on. The model in use is in `test_own_model.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.cli import main

SETTINGS = ["--no-serve", "--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]"]


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
    assert len(re.findall("^data  ", out := capsys.readouterr().out, re.M)) == 1, out
    assert "everything fits, no hot tier is needed" in out


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
