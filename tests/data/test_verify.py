"""`data verify` refuses whatever training refuses, with the same sentence; `train --verify` does so before it writes anything."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Position, check_batch
from adaptive_rec.cli import main
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare import prepare as prepare_module
from adaptive_rec.data.prepare.checksums import verify_checksums
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import load_meta, sum_of_values
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.errors import AdaptiveRecError, DataError

from .test_histories import clicks_file
from .test_prepared import MadeReader, spoil

Values = dict[str, Any]
SHAPE = ["model.bottom_mlp=[4]", "model.top_mlp=[4]", "model.embedding_dim=4", "run.batch_size=8", "run.device=cpu"]


def made_with_bags(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    patch.setattr(prepare_module, "open_readers", lambda paths, options: [MadeReader(0, 60)])
    (folder / "a").write_text("made")
    prepare_folder(Request((folder / "a",), folder / "out", format="criteo"), lambda told: None)
    return folder / "out"


def made_with_histories(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    clicks = clicks_file(folder / "clicks.csv", 60)
    prepare_folder(Request((clicks,), folder / "out", format="globo_sequence", history_steps=4), lambda told: None)
    return folder / "out"


MAKERS = pytest.mark.parametrize("make", [made_with_bags, made_with_histories])


def refused_by_training(folder: Path) -> str:
    """The error of a run that reads the whole folder; empty where there is none."""
    data = DataConfig(source=str(folder), shuffle=False, max_table_rows=1 << 40)
    try:
        source = open_source(Config(data=data))
        for batch in [*source.train_batches(Position(), 1000), *source.test_batches(1000)]:
            check_batch(batch, source.tables, source.features)
    except AdaptiveRecError as error:
        return str(error)
    return ""


def refused_by_verify(folder: Path) -> str:
    try:
        verify_checksums(folder, load_meta(folder), lambda told: None)
    except DataError as error:
        return str(error)
    return ""


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value of a JSON tree."""
    if path:
        yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*path, key))


def others(value: Any) -> list[Any]:
    """Values that a hand could put in the place of this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0, 1, -7, 10**6, 10**12, 2**31, str(value), None]
    if isinstance(value, str):
        return [value + "x", value[::-1], "", "0" * 64, 3]
    if isinstance(value, list):
        return [value[:-1], [*value, *value[-1:]], value[::-1], []]
    return [None, {}]


def edits(meta: Values) -> Iterator[tuple[str, Values]]:
    """Every value of a meta.json in turn, changed in several ways or gone; then some changes that fit one another."""
    for *path, last in places(meta):
        original = meta
        for key in path:
            original = original[key]
        for other in [o for o in others(original[last]) if o != original[last]]:
            edited = copy.deepcopy(meta)
            part = edited
            for key in path:
                part = part[key]
            part[last] = other
            yield f"{[*path, last]}: {other!r}", edited
        edited = copy.deepcopy(meta)
        part = edited
        for key in path:
            part = part[key]
        del part[last]
        yield f"{[*path, last]}: gone", edited
    for change in (-3, -1, 1):
        rows = copy.deepcopy(meta)
        rows["rows"] += change
        rows["sources"][0]["rows"] += change
        yield f"rows of the source too: {change}", rows
        for table in range(len(meta["tables"])):
            tables = copy.deepcopy(meta)
            tables["tables"][table]["rows"] += change
            for column in tables["columns"]:
                column["cardinality"] += change * (column["table"] == tables["tables"][table]["name"])
            yield f"rows of table {table} and of its columns: {change}", tables


@MAKERS
def test_what_training_refuses_verify_refuses_with_the_same_sentence(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the checksum of meta.json, as older versions prepared folders."""
    folder = make(tmp_path, monkeypatch)
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    del meta["meta_sha256"]
    path.write_text(json.dumps(meta))
    assert refused_by_training(folder) == refused_by_verify(folder) == ""
    refused = 0
    for what, edited in edits(meta):
        path.write_text(json.dumps(edited))
        training = refused_by_training(folder)
        refused += bool(training)
        if training:
            assert refused_by_verify(folder) == training, what
    assert refused > 100


@MAKERS
def test_no_value_of_meta_json_can_be_changed_unnoticed(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path, monkeypatch)
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta, sort_keys=True))  # how it is written does not matter
    assert refused_by_training(folder) == refused_by_verify(folder) == ""
    for what, edited in edits(meta):
        if edited.get("meta_sha256") is None:  # as an older folder
            continue
        path.write_text(json.dumps(edited))
        assert refused_by_training(folder) == refused_by_verify(folder) != "", what


def test_the_checksum_can_be_computed_from_its_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = json.loads((made_with_bags(tmp_path, monkeypatch) / "meta.json").read_text())
    assert meta.pop("meta_sha256") == sum_of_values(dict(sorted(meta.items())))


def test_a_row_count_that_was_edited_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_with_bags(tmp_path, monkeypatch)
    meta = json.loads((folder / "meta.json").read_text())
    meta["rows"] = meta["sources"][0]["rows"] = 59
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="meta.json: the values must have the SHA-256 .*, as meta_sha256 says, got .*prepare it"):
        load_meta(folder)
    del meta["meta_sha256"]
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=r"a_dense.npy must be float32 of shape \(59, 1\), got float32 of shape \(60, 1\)"):
        verify_checksums(folder, load_meta(folder), lambda told: None)


def train(folder: Path | str, out: Path, *more: str) -> int:
    settings = [part for text in [*SHAPE, "run.threads=1"] for part in ("--set", text)]
    return main(["train", "--data", str(folder), "--no-serve", "--out", str(out), "--verify", *settings, *more])


def test_train_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = made_with_bags(tmp_path, monkeypatch), tmp_path / "run"
    assert train(folder, out, "--json", "--steps", "3") == 0
    caught = capsys.readouterr()
    assert "is whole: 7 files" in caught.err
    assert json.loads(caught.out)["steps"] == 3
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    array = np.load(folder / "a_dense.npy")
    spoil(folder / "a_dense.npy", 7, float(array[7, 0]) + 1)  # a plausible value
    for more in (["--steps", "5", "--resume"], ["--steps", "5", "--resume", "--detach"]):
        assert train(folder, out, *more) == 3
        assert "a_dense.npy must have the SHA-256" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    for more in ([], ["--detach"]):
        assert train(folder, tmp_path / "new", *more) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out", "run"]


def test_train_verify_needs_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clicks.tsv").write_text("0\n")
    for source in ("synthetic", tmp_path / "clicks.tsv"):
        assert train(source, tmp_path / "run") == 2
        assert f"--verify needs a prepared folder as --data, which has checksums; got {source}" in capsys.readouterr().err
    assert train(tmp_path / "nothing", tmp_path / "run") == 2
    assert "that exists" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
