"""Scores of new files with raw ids: as in the run itself, and in an exported model; neighbours by raw id."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.saved_state import saved_by
from adaptive_rec.cli import main
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.offline.export import model
from adaptive_rec.run.chosen_checkpoint import newest_generation
from adaptive_rec.run.resume import trained_runtime
from adaptive_rec.run.scoring import Scorer
from adaptive_rec.saved import ANY
from tests.kernels.reference.hash_texts import hash_text

HELD_OUT = 400
SETTINGS = ["run.batch_size=32", "model.bottom_mlp=[8]", "model.top_mlp=[8]", "eval.batch_size=150"]
ON_DISK = ["run.host_memory=1MiB", "knobs.hot_budget_bytes=8KiB"]
FULL = [
    "data.max_table_rows=120",
    "data.shared_rows=3",
    "knobs.admit_after=2",
    "knobs.evict_ratio=0.2",
    "knobs.reclassify_every=8",
]
EDGES = ["", -(2**63) + 1, 2**63 - 1, 0]


def rows_of(count: int) -> list[list[Any]]:
    dice, rows = random.Random(2), []
    for _ in range(count):
        item = int(dice.paretovariate(0.6)) % 900
        user = dice.choice(EDGES) if dice.random() < 0.1 else dice.randrange(400) - 9
        kinds = "|".join(dice.sample(["new", "old", "é"], dice.randint(0, 2)))
        price = "" if dice.random() < 0.1 else round(dice.gauss(50, 20), 2)
        rows.append([int(item % 3 == dice.randrange(3)), user, f"item, {item}", kinds, price])
    return rows


NAMES = ["label", "user_id", "item", "kinds", "price"]
SCHEMA = """
label = "label"
dense = [{ column = "price", transform = "standard" }]
sparse = [{ column = "user_id", type = "integer" }, "item", { column = "kinds", separator = "|" }]
"""


def write(path: Path, rows: list[list[Any]], names: list[str] = NAMES) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def train(folder: Path, run: str, *settings: str) -> Path:
    """Train a run, unless another test has."""
    if (folder / "runs" / run / "summary.json").exists():
        return folder / "runs" / run
    given = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    start = ["train", "clicks_raw", "--data", str(folder / "clicks.csv")]
    start += ["--schema", str(folder / "schema.toml"), "--no-serve"]
    assert main([*start, *given, "--out", str(folder / "runs" / run)]) == 0
    return folder / "runs" / run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with clicks.csv, its held-out rows in other orders and forms, and a run in runs/plain."""
    folder, rows = tmp_path_factory.mktemp("scores"), rows_of(4000)
    (folder / "schema.toml").write_text(SCHEMA)
    write(folder / "clicks.csv", rows)
    held = rows[-HELD_OUT:]
    write(folder / "held.csv", held)
    write(folder / "turned.csv", [[*reversed(row), "more"] for row in held], [*reversed(NAMES), "other"])
    write(folder / "unlabelled.csv", [row[1:] for row in held], NAMES[1:])
    kinds = pa.csv.ConvertOptions(column_types={"user_id": pa.int64()})
    pa.parquet.write_table(pa.csv.read_csv(folder / "held.csv", convert_options=kinds), folder / "held.parquet")
    train(folder, "plain", "data.max_table_rows=300", "knobs.admit_after=2")
    return folder


@pytest.mark.parametrize("where", [pytest.param("memory", marks=pytest.mark.slow), "disk"])
def test_a_file_scores_as_in_the_run_also_while_ids_are_leaving(place: Path, where: str) -> None:
    """Bit by bit, in another order of columns, in Parquet, and without the data that was trained on."""
    run = train(place, f"full-{where}", *FULL, *(ON_DISK if where == "disk" else []))
    with newest_generation(run) as generation:
        keys = saved_by(generation, 0, DISK).part("keys")
    assert keys.part("counts").integer("evicted") > 20
    assert len(keys.part("changes").array("key_L", np.int64, ANY)) > 20, "ids are to leave at the checkpoint"
    runtime = trained_runtime(run)
    own = [logits_of(b, runtime.store, runtime.dense) for b in runtime.source.test_batches(150)]
    (place / "clicks.csv").rename(place / "away.csv")
    try:
        for name in ("held.csv", "turned.csv", "held.parquet", "unlabelled.csv"):
            scorer = Scorer(run, [place / name], labelled=name.startswith("held"))
            parts = [part.logits_B for part in scorer.scored()]
            np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(own))
            assert scorer.rows == HELD_OUT
    finally:
        (place / "away.csv").rename(place / "clicks.csv")


def test_eval_of_the_held_out_rows_is_that_of_the_run_and_counts_new_ids(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(place / "runs" / "plain")
    assert_scores_alike(run, place / "held.csv", capsys)
    users = [*[10**9 + k for k in range(9)], 3]
    write(place / "new.csv", [[0, user, f"never {user}", "new", 1] for user in users])
    assert main(["predict", run, "--data", str(place / "new.csv"), "--out", str(place / "s.csv"), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["shared"] == {"user_id": 0.9, "item": 1.0, "kinds": 0.0}
    assert printed.err.count("is it the same column?") == 1
    assert "warning: 100% of the ids of item have no row of their own; is it the same column?" in printed.err
    assert main(["predict", run, "--data", str(place / "new.csv"), "--out", str(place / "s.parquet")]) == 0
    text = r"shared +63% of the lookups are of ids without a row of their own: user_id 90%, item 100%\n"
    assert re.search(text, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("rows", "names", "told"),
    [
        ([[1, "item, 1", 1]], ["user_id", "item", "price"], "must have the column kinds of the schema"),
        ([["x", "i", "", 1]], NAMES[1:], "row 1, column user_id: must be a whole number of 64 bits above -2^63"),
        ([[1, "i", "", 1], [-(2**63), "i", "", 1]], NAMES[1:], "row 2, column user_id: must be a whole number of 64"),
        ([[2**63, "i", "", 1]], NAMES[1:], "row 1, column user_id: must be a whole number of 64 bits above -2^63"),
        ([[1, "i", "", "inf"]], NAMES[1:], "row 1, column price: must be a number, finite in 32 bits"),
        ([], NAMES[1:], "--data must hold at least one row"),
    ],
)
def test_rows_that_cannot_be_scored_are_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[list[Any]], names: list[str], told: str
) -> None:
    data = write(tmp_path / "x.csv", rows, names)
    assert main(["predict", str(place / "runs" / "plain"), "--data", str(data), "--out", str(tmp_path / "s.csv")]) == 3
    assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_lists_where_values_were_single_and_broken_texts_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = pa.table({"user_id": [1], "item": [["item, 1"]], "kinds": ["new"], "price": [1.0]})
    pa.parquet.write_table(lists, tmp_path / "lists.parquet")
    (tmp_path / "broken.csv").write_bytes(b"user_id,item,kinds,price\n1,\xff\xfe,new,1\n")
    for name, told in (("lists.parquet", "column item: must hold single values"), ("broken.csv", "utf-8")):
        words = ["predict", str(place / "runs" / "plain"), "--data", str(tmp_path / name)]
        assert main([*words, "--out", str(tmp_path / "s.csv")]) == 3
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("run", ["plain", "full-disk"])
@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_exported_model_scores_alike_without_this_package(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str, fresh: bool
) -> None:
    """In a fresh process, or in this one, where the package is hidden meanwhile."""
    train(place, "full-disk", *FULL, *ON_DISK)
    capsys.readouterr()
    out, scores = tmp_path / "model", tmp_path / "scores.parquet"
    assert main(["export", str(place / "runs" / run), "--to", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checked_rows"] == 10_000
    assert told["largest_difference"] <= 1e-6
    data = str(place / "unlabelled.csv")
    script = str(out / "model.py")
    if fresh:
        barred = "import sys; sys.modules['adaptive_rec'] = None; import runpy; sys.argv = sys.argv[1:]; "
        barred += "runpy.run_path(sys.argv[0], run_name='__main__')"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-c", barred, script, data]
        scored = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path).stdout
    else:
        pipes = signal.getsignal(signal.SIGPIPE)
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == "adaptive_rec"]:
                patch.setitem(sys.modules, name, None)
            patch.setattr(sys, "argv", [script, data])
            with pytest.raises(SystemExit, match="^0$"):
                runpy.run_path(script, run_name="__main__")
        signal.signal(signal.SIGPIPE, pipes)  # the script is the program, so it lets a closed pipe end the process
        scored = capsys.readouterr().out
    assert main(["predict", str(place / "runs" / run), "--data", data, "--out", str(scores)]) == 0
    ours = pa.parquet.read_table(scores).column("score").to_numpy()
    np.testing.assert_allclose(np.array(scored.split(), dtype=float), ours, atol=1e-6)
    loaded, row = model.Model(out), {"item": ["item, 1"], "kinds": [["new"]], "price": [None]}
    for user in (2**63, -(2**63), 1.5, "x"):
        with pytest.raises(ValueError, match="column 'user_id', row 1: must be a whole number"):
            loaded.scores({"user_id": [user], **row})
    assert loaded.scores({"user_id": [None], **row}) == loaded.scores({"user_id": [""], **row})


def test_an_exported_model_hashes_texts_as_training_does() -> None:
    dice = random.Random(3)
    for size in range(140):
        text = "".join(dice.choice("abé✓") for _ in range(size))
        assert model.xxh64(text) % 2**64 == hash_text(text.encode())


def test_neighbours_are_found_by_raw_id(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nearest", str(place / "runs" / "plain"), "--limit", "3", "--json"]
    assert main([*words, "user_id", "--", str(2**63 - 1)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["value"] == each["id"] for each in found] == [True] * 3
    assert main([*words, "item", "item, 3"]) == 0
    unnamed = json.loads(capsys.readouterr().out)
    assert main([*words, "item", "item, 3", "--data", str(place / "clicks.csv")]) == 0
    named = json.loads(capsys.readouterr().out)
    assert [each["value"] for each in unnamed] == [None] * 3
    assert [each["id"] % 2**64 for each in unnamed] == [hash_text(each["value"].encode()) for each in named]
    for values, told in (
        (["item", "never"], "VALUE must be a value of item that has a row of its own, got 'never'"),
        (["user_id", "x"], "VALUE must be a whole number of 64 bits above -2^63, as user_id has them, got 'x'"),
        (["itm", "x"], "did you mean item?"),
        (["user_id", "3", "--data", str(place / "clicks.csv")], "those of user_id are known without it"),
    ):
        assert main([*words, *values]) == 2
        assert told in capsys.readouterr().err


def test_numbers_of_a_prepared_folder_score_as_in_the_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = place / "prepared", str(place / "runs" / "prepared")
    words = ["data", "prepare", str(place / "clicks.csv"), "--schema", str(place / "schema.toml"), "--out", str(folder)]
    assert main(words) == 0
    settings = [*SETTINGS, "data.ids=raw", "data.max_table_rows=150", "knobs.admit_after=2"]
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", "clicks", "--data", str(folder), *given, "--no-serve", "--out", run]) == 0
    assert_scores_alike(run, place / "held.csv", capsys)
    assert main(["nearest", run, "item", "item, 3", "--json"]) == 0
    assert all(each["value"].startswith("item, ") for each in json.loads(capsys.readouterr().out))
    assert main(["export", run, "--to", str(place / "to")]) == 0


def test_criteo_files_score_as_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dice, run = random.Random(4), str(tmp_path / "run")
    rows = [
        [str(dice.randint(0, 1)), *(dice.choice(["", str(dice.randint(-1, 90))]) for _ in range(13))]
        + [dice.choice(["", f"{int(dice.paretovariate(0.5)) % 2**32:08x}"]) for _ in range(26)]
        for _ in range(600)
    ]
    for name, part in (("all", rows), ("held", rows[-60:]), ("short", [row[1:] for row in rows[-60:]])):
        (tmp_path / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in part))
    settings = [*SETTINGS, "model.embedding_dim=8", "data.ids=raw", "data.max_table_rows=40"]
    settings += ["data.train_range=[0.0,0.9]", "data.test_range=[0.9,1.0]", "data.on_bad_row=skip"]
    given = [word for setting in settings for word in ("--set", setting)]
    words = ["train", "criteo_sample", "--data", str(tmp_path / "all.txt"), *given]
    assert main([*words, "--no-serve", "--out", run]) == 0
    assert_scores_alike(run, tmp_path / "held.txt", capsys)
    for name in ("held", "short"):  # predict needs no label
        words = ["predict", run, "--data", str(tmp_path / f"{name}.txt"), "--out", str(tmp_path / f"{name}.csv")]
        assert main(words) == 0
    assert (tmp_path / "short.csv").read_bytes() == (tmp_path / "held.csv").read_bytes()
    assert main(["eval", run, "--data", str(tmp_path / "short.txt")]) == 3
    assert "line 1: row must have 40 tab-separated columns, got 39" in capsys.readouterr().err
    (tmp_path / "short.txt").write_text("\t".join(rows[0][1:]) + "\n" + "\t".join(rows[0][2:]) + "\n")
    assert main(["predict", run, "--data", str(tmp_path / "short.txt"), "--out", str(tmp_path / "s.csv")]) == 3
    assert "line 2: row must have 39 tab-separated columns, got 38" in capsys.readouterr().err
    assert main(["nearest", run, "C3", "0x1", "--limit", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def assert_scores_alike(run: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a run's evaluation of held-out rows is that of a file with these rows."""
    capsys.readouterr()
    assert main(["eval", run, "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert main(["eval", run, "--data", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found.pop("shared").values()) > 0
    assert found == own
