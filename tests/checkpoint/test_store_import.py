"""Import of rows by raw ids: a run begins with the rows of another one's ids."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adaptive_rec.cli import main

RAW = ["--set", "data.ids=raw", "--set", "knobs.admit_after=2", "--set", "data.shared_rows=3"]
SAME = {"id", "weight", "removed", "shared_row", "shared_weight"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full export of a trained run."""
    folder = tmp_path_factory.mktemp("exported")
    words = ["train", "tiny", *RAW, "--steps", "25", "--no-serve", "--out", str(folder / "run")]
    assert main(words) == 0
    assert main(["checkpoint", "export", str(folder / "run"), "--as", "store", "--out", str(folder / "full")]) == 0
    return folder / "full"


def imported(source: Path, out: Path, *more: str, raw: list[str] = RAW) -> int:
    return main(["checkpoint", "import", str(source), "--config", "tiny", *raw, *more, "--out", str(out)])


@pytest.mark.parametrize("where", [[], ["--set", "run.host_memory=1MiB"]], ids=["memory", "disk"])
def test_an_export_of_the_new_run_has_the_same_rows_and_it_trains(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str], where: list[str]
) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    assert imported(exported, run, *where) == 0
    assert main(["checkpoint", "export", str(run), "--as", "store", "--out", str(again)]) == 0
    for name in ("C1", "C2", "C3", "C4", "dense"):
        was, now = (load_file(folder / f"{name}.safetensors") for folder in (exported, again))
        assert was.keys() == now.keys()
        assert name == "dense" or was.keys() == SAME
        for array in was:
            np.testing.assert_array_equal(was[array], now[array], strict=True)
    ids = sum(table["ids"] for table in json.loads((exported / "store.json").read_text())["tables"])
    assert main(["train", "--resume", "--steps", "40", "--no-serve", "--out", str(run)]) == 0
    keys = json.loads((run / "summary.json").read_text())["keys"]
    assert keys["keys"] > ids > 300, "ids of the export keep their rows, others get some"
    assert main(["checkpoint", "export", str(run), "--as", "store", "--out", str(tmp_path / "later")]) == 0
    before, after = (load_file(folder / "C1.safetensors") for folder in (again, tmp_path / "later"))
    np.testing.assert_array_equal(after["id"][: len(before["id"])], before["id"])


def test_shared_rows_of_other_ids_start_fresh_and_the_command_says_so(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(exported, tmp_path / "run", "--set", "run.seed=7", "--json") == 0
    fresh = json.loads(capsys.readouterr().out)["fresh"]
    assert fresh == [f"shared rows of C{n} (other data.shared_rows or run.seed)" for n in range(1, 5)]


def with_arrays(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the arrays of a table's file."""

    def work(folder: Path) -> None:
        arrays = load_file(folder / "C1.safetensors")
        change(arrays)
        save_file(arrays, folder / "C1.safetensors")

    return work


def with_head(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change `store.json`."""

    def work(folder: Path) -> None:
        head = json.loads((folder / "store.json").read_text())
        change(head)
        (folder / "store.json").write_text(json.dumps(head))

    return work


def nan(arrays: dict[str, Any]) -> None:
    arrays["weight"][3, 1] = np.nan


def twice(arrays: dict[str, Any]) -> None:
    arrays["id"][5] = arrays["id"][2]


@pytest.mark.parametrize(("spoil", "more", "rule"), [
    (with_head(lambda head: head.update(since={"step": 1})), [], "must be a full export of raw ids, it has what changed"),
    (with_head(lambda head: head.update(ids="rows")), [], "must be a full export of raw ids, it has ids that are rows"),
    (with_head(lambda head: head.update(format=2)), [], "must be of format 1"),
    (with_head(lambda head: head["tables"][0].update(file="../C1.safetensors")), [], "with a file in the folder"),
    (with_head(lambda head: head["tables"].pop()), [], "must have the tables of the run, got one without 'C4'"),
    (with_head(lambda head: head["tables"][0].update(name="D1")), [], "got one without 'C1'"),
    (with_arrays(twice), [], "ids of table 'C1' in .* must be distinct"),
    (with_arrays(nan), [], "row 3 of table 'C1' must hold finite numbers of float32, got nan"),
    (with_arrays(lambda arrays: arrays.pop("id")), [], "must hold id and weight"),
    (with_arrays(lambda arrays: arrays.update(id=arrays["id"][1:])), [], r"must hold id \(N\) of int64 and weight \(N, 8\)"),
    (lambda folder: None, ["--set", "data.table_rows=[20,300,200,12]"], "table 'C1' must have a row for each of .* got 20 "),
    (lambda folder: None, ["--set", "model.embedding_dim=4", "--set", "model.bottom_mlp=[8,4]"], r"weight \(N, 4\)"),
    (lambda folder: (folder / "C2.safetensors").unlink(), [], "C2.safetensors: reading failed: No such file"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_and_nothing_is_left(
    tmp_path: Path,
    exported: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], Any],
    more: list[str],
    rule: str,
) -> None:
    shutil.copytree(exported, tmp_path / "full")
    spoil(tmp_path / "full")
    assert imported(tmp_path / "full", tmp_path / "run", *more) == 5
    error = capsys.readouterr().err
    assert re.search(rule, error), error
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_rows_with_raw_ids_go_into_a_run_of_raw_ids_and_no_others(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(exported, tmp_path / "run", raw=[]) == 2
    assert "data.ids must be raw for rows by their raw ids (export --as store), as" in capsys.readouterr().err
    (tmp_path / "tables").mkdir()
    np.save(tmp_path / "tables" / "C1.npy", np.zeros((3, 8), dtype=np.float32))
    assert imported(tmp_path / "tables", tmp_path / "run") == 2
    assert "FILE must say which id each row has where data.ids=raw: a folder that" in capsys.readouterr().err
    assert imported(tmp_path / "none", tmp_path / "run") == 2
    assert "FILE must be a file or a folder that exists, got" in capsys.readouterr().err
