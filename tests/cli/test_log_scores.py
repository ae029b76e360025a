"""Runs on Criteo files, and on folders that were prepared from files of any kind, score new files and are exported: with the
scores of their own evaluation, bit by bit in float64."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.offline.export import model
from adaptive_rec.recipes.avazu import LOG_COLUMNS
from adaptive_rec.run.resume import trained_runtime
from adaptive_rec.run.scoring import Scorer

ROWS, HELD_OUT = 600, 60
SETTINGS = [
    "run.batch_size=64", "model.embedding_dim=8", "model.bottom_mlp=[8]", "model.top_mlp=[8]", "run.precision=float64",
    "data.train_range=[0.0,0.9]", "data.test_range=[0.9,1.0]", "eval.batch_size=25", "run.steps=8",
]  # fmt: skip
RAW = ["data.ids=raw", "data.max_table_rows=40", "knobs.admit_after=2"]
CASES = {
    "numbered": ("all.txt", []),
    "hash": ("all.txt", ["data.ids=hash", "data.max_table_rows=90"]),
    "raw": ("all.txt", RAW),
    "folder": ("folder", []),
    "folder-cut": ("folder", ["data.max_table_rows=30"]),
    "folder-raw": ("folder", RAW),
    "avazu": ("clicks", []),
    "own-raw": ("own", RAW),
}
SOME = [*(pytest.param(name, marks=pytest.mark.slow) for name in ("hash", "folder-cut", "avazu")), "numbered", "raw"]
SOME += ["folder", "folder-raw"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Criteo and Avazu files, whole, the held-out rows, and these without labels, and what is prepared of them."""
    folder = tmp_path_factory.mktemp("logs")
    rows = criteo_rows(ROWS)
    held = rows[-HELD_OUT:]
    parts = {"all": rows, "first": rows[:200], "rest": rows[200:], "held": held, "short": [row[1:] for row in held]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in part))
    own = [[row[0], row[1], *row[20:22]] for row in rows]
    for name, part in (("own", own), ("own-held", own[-HELD_OUT:])):
        (folder / f"{name}.csv").write_text("".join(",".join(row) + "\n" for row in [["label", "i", "a", "b"], *part]))
    words = ["data", "prepare", "--min-count", "2", "--out"]
    assert main([*words, str(folder / "folder"), *(str(folder / f"{name}.txt") for name in ("first", "rest"))]) == 0
    schema = 'label = "label"\ndense = [{ column = "i", transform = "log" }]\nsparse = ["a", "b"]\nmin_count = 2\n'
    (folder / "schema.toml").write_text(schema)
    words = ["data", "prepare", str(folder / "own.csv"), "--schema", str(folder / "schema.toml")]
    assert main([*words, "--out", str(folder / "own")]) == 0
    return folder


@pytest.fixture(scope="module")
def clicks(place: Path) -> Path:
    dice, names = random.Random(3), [column.name for column in LOG_COLUMNS]
    rows = [avazu_row(dice, names) for _ in range(ROWS)]
    held = rows[-HELD_OUT:]
    for name, part in (("clicks", [names, *rows]), ("clicks-held", [names, *held])):
        (place / f"{name}.csv").write_text("".join(",".join(row) + "\n" for row in part))
    click = names.index("click")
    short = [[*row[:click], *row[click + 1 :]] for row in [names, *held]]
    (place / "clicks-short.csv").write_text("".join(",".join(row) + "\n" for row in short))
    assert main(["data", "prepare", str(place / "clicks.csv"), "--out", str(place / "clicks")]) == 0
    return place


def criteo_rows(count: int) -> list[list[str]]:
    """Rows whose label depends on a value, some of it missing."""
    dice = random.Random(4)
    rows = []
    for _ in range(count):
        values = ["" if dice.random() < 0.1 else f"{int(dice.paretovariate(0.5)) % 2**32:08x}" for _ in range(26)]
        counts = [dice.choice(["", str(dice.randint(-1, 90))]) for _ in range(13)]
        rows.append([str(int(len(values[3].strip("0")) == 1)), *counts, *values])
    return rows


def avazu_row(dice: random.Random, names: list[str]) -> list[str]:
    row = {name: str(dice.randrange(30)) for name in names}
    row |= {"id": "1", "click": str(dice.randint(0, 1)), "hour": f"141021{dice.randrange(24):02d}"}
    return [row[name] for name in names]


def train(place: Path, name: str) -> Path:
    run = place / "runs" / name
    if not run.exists():
        data, settings = CASES[name]
        given = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
        assert main(["train", "criteo_sample", "--data", str(place / data), *given, "--no-serve", "--out", str(run)]) == 0
    return run


def own_logits(run: Path) -> np.ndarray:
    """The logits of the held-out rows, as the run's evaluation has them."""
    runtime = trained_runtime(run)
    batches = runtime.source.test_batches(runtime.config.eval.batch_size)
    return np.concatenate([logits_of(batch, runtime.store, runtime.dense) for batch in batches])


@pytest.mark.parametrize("name", SOME)
def test_a_file_scores_as_in_the_run_bit_by_bit(place: Path, request: pytest.FixtureRequest, name: str) -> None:
    if name == "avazu":
        request.getfixturevalue("clicks")
    run, held, short = train(place, name), "held.txt", "short.txt"
    if name == "avazu":
        held, short = "clicks-held.csv", "clicks-short.csv"
    own = own_logits(run)
    assert own.dtype == np.float64
    assert len(own) == HELD_OUT
    for file, labelled in ((held, True), (short, False), (held, False)):
        scorer = Scorer(run, [place / file], labelled)
        parts = list(scorer.scored())
        np.testing.assert_array_equal(np.concatenate([part.logits_B for part in parts]), own)
    labels_B = np.concatenate([part.labels_B for part in parts])
    assert 0 < labels_B.sum() < HELD_OUT


@pytest.mark.parametrize(
    "name", ["folder-raw", *(pytest.param(n, marks=pytest.mark.slow) for n in ("folder", "own-raw", "numbered", "raw", "hash"))]
)
def test_an_exported_model_scores_alike(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run, out = train(place, name), tmp_path / "model"
    capsys.readouterr()
    assert main(["export", str(run), "--to", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["largest_difference"] < 1e-12
    held = place / ("own-held.csv" if name == "own-raw" else "short.txt")
    loaded = model.Model(out)
    scores = loaded.scores(model.table_of(str(held), **loaded.facts["file"])).numpy()
    (ours,) = predicted(run, held)
    np.testing.assert_allclose(scores, ours, rtol=0, atol=1e-7)  # the logarithms are float32
    unknown = {column["column"]: ["fffffff0"] for column in loaded.facts["sparse"]}
    missing = {column["column"]: [""] for column in loaded.facts["sparse"]}
    dense = {column["column"]: ["1"] for column in loaded.facts["dense"]}
    rows = [loaded.scores({**dense, **each}).item() for each in (unknown, missing)]
    assert rows[0] != rows[1]


def predicted(run: Path, *files: Path) -> list[Any]:
    return [np.concatenate([part.scores_B for part in Scorer(run, [file], labelled=False).scored()]) for file in files]


def test_values_that_a_folder_does_not_know_are_counted(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(place, "folder")
    rows = [["5"] * 13 + ["fffffff0"] + ["1"] * 25, ["5"] * 13 + [""] * 26]
    (tmp_path / "new.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    capsys.readouterr()
    words = ["predict", str(run), "--data", str(tmp_path / "new.txt"), "--out", str(tmp_path / "s.csv"), "--json"]
    assert main(words) == 0
    unknown = json.loads(capsys.readouterr().out)["unknown"]
    assert unknown["C1"] == 0.5
    assert unknown["C2"] == 0.0
    assert main([*words[:-1], "--out", str(tmp_path / "t.csv"), "--keep", "C1"]) == 2
    assert "--keep must name columns of CSV, TSV or Parquet files" in capsys.readouterr().err


def test_neighbours_are_named_as_in_the_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("folder", "folder-raw"):
        run = train(place, name)
        capsys.readouterr()
        assert main(["nearest", str(run), "C3", "00000001", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found) == 10
        assert all(re.fullmatch("[0-9a-f]{8}", each["value"]) and each["value"] != "00000001" for each in found)
        for value, told in (("x", "VALUE must be a hexadecimal number"), ("fffffff0", "VALUE must be a value that C3 has")):
            assert main(["nearest", str(run), "C3", value]) == 2
            assert told in capsys.readouterr().err
    assert main(["nearest", str(run), "D3", "1"]) == 2
    assert "COLUMN must be a sparse column of" in capsys.readouterr().err


def test_a_folder_of_an_older_version_is_refused_by_name(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on to train and to be evaluated; new files need it prepared again."""
    run, folder = train(place, "folder"), place / "folder"
    before = (folder / "meta.json").read_text()
    meta = json.loads(before)
    meta.update(values=[], meta_sha256=None)
    (folder / "meta.json").write_text(json.dumps(meta))
    try:
        assert main(["eval", str(run)]) == 0
        for words in (["eval", str(run)], ["predict", str(run), "--out", str(tmp_path / "s.csv")]):
            assert main([*words, "--data", str(place / "held.txt")]) == 2
            assert "must hold the keys of its ids" in capsys.readouterr().err
        assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 2
        assert "prepare " in capsys.readouterr().err
        meta["job"]["format"] = "taobao"
        (folder / "meta.json").write_text(json.dumps(meta))
        assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 2
        assert "the samples of format taobao, from which" in capsys.readouterr().err
    finally:
        (folder / "meta.json").write_text(before)
