"""Training from prepared folders: batches, the shuffle, positions, bags, folding, damage."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch, Position, check_batch
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.model import ModelConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.data import prepared
from adaptive_rec.data.loaded_samples import LoadedSamples
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare import prepare as prepare_module
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepare.raw import RawBlock, SparseColumn
from adaptive_rec.errors import ConfigError, DataError


class MadeReader:
    """Rows that know their number: it is the dense feature and the key of column `one`; `bag` and `other` share a table."""

    dense_names = ("number",)
    dense_transform = "none"
    schema = None
    has_times = False
    sequence = None
    columns = (SparseColumn("one", "one"), SparseColumn("bag", "things", bag=True), SparseColumn("other", "things"))
    bad_rows, bad_of = 0, {}
    read_ratio = 1.0

    def __init__(self, first: int, count: int) -> None:
        self._numbers = np.arange(first, first + count)

    def blocks(self) -> Iterator[RawBlock]:
        for part in np.array_split(self._numbers, 3):
            bags = [bag_of(n) for n in part.tolist()]
            lengths = np.array([len(bag) for bag in bags], dtype=np.int32)
            values = [
                (part + 1).astype(np.uint32),
                np.array([key for bag in bags for key in bag], dtype=np.uint64),
                (part % 5 + 3).astype(np.uint64),
            ]
            yield RawBlock(
                part.astype(np.float32)[:, None], (part % 2).astype(np.float32), values, [None, lengths, None]
            )


def bag_of(number: int) -> list[int]:
    return [7 * number + place + 1 for place in range(number % 4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """103 rows of three sources; blocks of 8 rows and groups of 3 blocks."""
    monkeypatch.setattr(prepared, "BLOCK_ROWS", 8)
    monkeypatch.setattr(prepared, "GROUP_BLOCKS", 3)
    ranges = {"a": (0, 40), "b": (40, 3), "c": (43, 60)}
    monkeypatch.setattr(prepare_module, "open_readers", lambda paths, options: [MadeReader(*ranges[path.name]) for path in paths])
    for name in ranges:
        (tmp_path / name).write_text("made")
    paths = tuple(tmp_path / name for name in ranges)
    prepare_folder(Request(paths, tmp_path / "out", format="criteo"), lambda progress: None)
    return tmp_path / "out"


def config(folder: Path, **data: Any) -> Config:
    return Config(data=DataConfig(source=str(folder), **data))


def numbers(batches: list[Batch]) -> list[int]:
    return [int(number) for batch in batches for number in batch.dense_BX[:, 0]]


def assert_rows_are_whole(batch: Batch, ids_of: dict[str, dict[int, int]]) -> None:
    """What stands together in a row still does, whatever its place: numbers, label, ids and bag."""
    for b, number in enumerate(batch.dense_BX[:, 0].astype(int).tolist()):
        assert batch.labels_B[b] == number % 2
        bags = [batch.ids_N[batch.offsets[3 * b + f] : batch.offsets[3 * b + f + 1]].tolist() for f in range(3)]
        expected = [[number + 1], bag_of(number), [number % 5 + 3]]
        for f, table in enumerate(("one", "things", "things")):
            assert bags[f] == [
                ids_of[table].setdefault(key, bag) for key, bag in zip(expected[f], bags[f], strict=True)
            ]


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in ("dense_BX", "ids_N", "offsets", "labels_B"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.position == other.position


def test_bags_and_single_ids_stay_with_their_rows(folder: Path) -> None:
    source = open_source(config(folder, epochs=2))
    assert [(table.name, table.rows) for table in source.tables] == [("one", 105), ("things", 2 + len(all_things()))]
    assert [(feature.name, feature.table) for feature in source.features] == [("one", 0), ("bag", 1), ("other", 1)]
    ids_of: dict[str, dict[int, int]] = {"one": {}, "things": {}}
    for batch in [*source.train_batches(Position(), 7), *source.test_batches(7)]:
        check_batch(batch, source.tables, source.features)
        assert_rows_are_whole(batch, ids_of)
    for table in ids_of.values():  # a value has one id, an id one value, and ids have no gaps
        assert sorted(table.values()) == list(range(2, 2 + len(table)))
    assert set(ids_of["things"]) == all_things()


def all_things() -> set[int]:
    return {key for n in range(103) for key in [*bag_of(n), n % 5 + 3]}


def test_an_epoch_holds_every_row_of_the_range_once_in_an_order_of_its_own(folder: Path) -> None:
    source = open_source(config(folder, epochs=2, train_range=(0.1, 0.8), test_range=(0.8, 1.0)))
    in_range = list(range(10, 82))
    assert source.train_samples == 72
    batches = list(source.train_batches(Position(seed=5), 12))
    first, second = numbers(batches[:6]), numbers(batches[6:])
    assert sorted(first) == sorted(second) == in_range
    assert first != second != in_range != first
    other_seed = numbers(list(source.train_batches(Position(seed=6), 72))[:1])
    assert sorted(other_seed) == in_range != first != other_seed
    assert numbers(list(source.test_batches(9))) == list(range(82, 103))
    assert numbers(list(source.test_batches(9, max_samples=4))) == list(range(82, 86))


def test_rows_mix_over_the_whole_range(tmp_path: Path) -> None:
    """Block order is drawn over everything, and rows mix within a group: neighbours come apart."""
    order = prepared.Order(range(0, 1_000_000), 1, 0)
    assert order.group_start(1) == prepared.GROUP_BLOCKS * prepared.BLOCK_ROWS
    starts = [order._blocks[k] * prepared.BLOCK_ROWS for k in range(prepared.GROUP_BLOCKS)]
    assert min(starts) < 100_000
    assert max(starts) > 900_000


def test_one_group_of_an_epoch_is_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is what its parts joined and put in order are, and is dropped before the next one is read; batches have copies."""
    arrays = open_source(config(folder)).arrays  # type: ignore[attr-defined]
    parts, order_S = [arrays.read(0, 50), arrays.read(50, 51), arrays.read(51, 103)], np.random.default_rng(2).permutation(103)
    whole, mixed = LoadedSamples.joined(parts).take(order_S), LoadedSamples.joined_in_order(iter(parts), order_S)
    for name in ("dense_BX", "labels_B", "ids_BC"):
        assert np.array_equal(getattr(mixed, name), getattr(whole, name))
    assert [bags.values_N.tolist() for bags in mixed.bags] == [bags.values_N.tolist() for bags in whole.bags]
    assert mixed.times_B is mixed.weights_B is mixed.groups_B is None

    rows, held, read = prepared.MixedRows(prepared.Order(range(103), 1, 0), arrays), [], arrays.read
    monkeypatch.setattr(arrays, "read", lambda *of: held.append(rows._samples) or read(*of))
    pieces = [piece for start in range(0, 103, 7) for piece in rows.read(start, min(start + 7, 103))]
    assert len(held) > 10
    assert all(each is None for each in held)
    assert all(piece.dense_BX.base is None and piece.bags[0].values_N.base is None for piece in pieces)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("rows", [(0.0, 0.9), (0.03, 0.6)])
def test_resume_from_any_position(folder: Path, shuffle: bool, rows: tuple[float, float]) -> None:
    source = open_source(config(folder, epochs=3, shuffle=shuffle, train_range=rows, test_range=(0.95, 1.0)))
    whole = list(source.train_batches(Position(seed=3), 7))
    for i, batch in enumerate(whole):
        assert_same(list(source.train_batches(batch.position, 7)), whole[i + 1 :])
    assert_same(list(open_source(source_config(folder, shuffle, rows)).train_batches(Position(seed=3), 7)), whole)
    one_by_one = numbers(list(source.train_batches(Position(seed=3), 1)))
    assert one_by_one == numbers(whole)
    if not shuffle:
        low, high = round(rows[0] * 103), round(rows[1] * 103)
        assert one_by_one == list(range(low, high)) * 3


def source_config(folder: Path, shuffle: bool, rows: tuple[float, float]) -> Config:
    return config(folder, epochs=3, shuffle=shuffle, train_range=rows, test_range=(0.95, 1.0))


def test_a_position_is_reached_without_reading_what_is_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(config(folder))
    read: list[int] = []
    plain = prepared.FolderArrays.read

    def counted(self: Any, start: int, stop: int) -> Any:
        read.append(stop - start)
        return plain(self, start, stop)

    monkeypatch.setattr(prepared.FolderArrays, "read", counted)
    next(source.train_batches(Position(offset=80), 4))
    assert sum(read) <= 24


def test_tables_are_cut_by_folding(folder: Path) -> None:
    whole, cut = (
        open_source(config(folder, shuffle=False)),
        open_source(config(folder, shuffle=False, max_table_rows=10)),
    )
    assert [table.rows for table in cut.tables] == [10, 10]
    (one,), (other,) = whole.train_batches(Position(), 93), cut.train_batches(Position(), 93)
    np.testing.assert_array_equal(one.ids_N % 10, other.ids_N)
    check_batch(other, cut.tables, cut.features)


def test_settings_that_contradict_the_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match="data.ids must be auto or contiguous for a prepared folder, got hash"):
        open_source(config(folder, ids="hash"))
    with pytest.raises(ConfigError, match=r"data.feature_tables must be empty for a prepared folder.* got \[0, 1\]"):
        open_source(config(folder, feature_tables=(0, 1)))
    with pytest.raises(ConfigError, match="model.table_dims must have one entry for each of 2 tables, got 26"):
        open_source(Config(data=DataConfig(source=str(folder)), model=ModelConfig(table_dims=(4,) * 26)))
    dims = Config(data=DataConfig(source=str(folder)), model=ModelConfig(table_dims=(4, 8)))
    assert [table.dim for table in open_source(dims).tables] == [4, 8]


def test_files_are_closed_with_the_source_that_read_them(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = open_source(config(folder))
        next(source.train_batches(Position(), 4))
        del source
        gc.collect()
    assert [each for each in caught if each.category is ResourceWarning] == []


def test_damage_is_an_error_on_opening(folder: Path) -> None:
    meta = folder / "meta.json"
    whole = meta.read_text()
    tables = json.loads(whole)
    cases = {
        "not JSON": ("{", "meta.json breaks the rules of its format"),
        "unknown version": (whole.replace('"format_version": 1', '"format_version": 2'), "format_version"),
        "a path": (whole.replace("a_dense.npy", "../a_dense.npy"), "breaks the rules of its format: .*name"),
        "rows": (json.dumps({**tables, "rows": 104}), "rows must be the sum of the sources' rows, got 104"),
        "no file": (whole.replace("a_dense.npy", "x_dense.npy"), "x_dense.npy, which meta.json names, cannot be read"),
    }
    for text, message in cases.values():
        meta.write_text(text)
        with pytest.raises(DataError, match=message):
            open_source(config(folder))
    meta.write_text(whole)
    path = folder / "b_sparse.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    with pytest.raises(DataError, match=r"b_sparse.npy must have \d+ bytes, as meta.json says, got \d+"):
        open_source(config(folder))
    path.write_bytes(b"\0" * len(content))
    with pytest.raises(DataError, match="b_sparse.npy must be a .npy file"):
        open_source(config(folder))
    meta.unlink()
    with pytest.raises(
        ConfigError, match="data.source must be a file, got '.*out', which is a folder without meta.json"
    ):
        open_source(config(folder))


def spoil(path: Path, row: int, value: float) -> None:
    array = np.load(path)
    array[row] = value
    np.save(path, array)


@pytest.mark.parametrize(
    ("file", "row", "value", "message"),
    [
        ("b_labels.npy", 1, 3, "b_labels.npy: labels must be 0 or 1, row 1 has 3"),
        ("a_labels.npy", 39, -1, "a_labels.npy: labels must be 0 or 1, row 39 has -1"),
        ("a_dense.npy", 7, np.nan, "a_dense.npy: dense values must be finite, row 7 has nan"),
        ("c_dense.npy", 0, -np.inf, "c_dense.npy: dense values must be finite, row 0 has -inf"),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_value_that_cannot_be_right_is_an_error_with_its_row(
    folder: Path, file: str, row: int, value: float, message: str, shuffle: bool
) -> None:
    spoil(folder / file, row, value)
    with pytest.raises(DataError, match=message):
        list(open_source(config(folder, shuffle=shuffle)).train_batches(Position(), 4))


@pytest.mark.parametrize("file", ["c_dense.npy", "c_labels.npy", "c_sparse.npy"])
def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(folder: Path, file: str) -> None:
    """A mapped one would end the process with SIGBUS."""
    batches = open_source(config(folder, shuffle=False)).train_batches(Position(), 4)
    next(batches)
    os.truncate(folder / file, 200)
    with pytest.raises(DataError, match=f"{file} must keep its rows while it is read, rows .* are not there any more"):
        list(batches)


def test_an_array_in_fortran_order_is_an_error(folder: Path) -> None:
    path = folder / "b_sparse.npy"
    np.save(path, np.asfortranarray(np.load(path)))
    with pytest.raises(DataError, match=r"b_sparse.npy must hold its array row by row \(C order\)"):
        open_source(config(folder))


def test_training_runs_from_a_folder(folder: Path, tmp_path: Path) -> None:
    from adaptive_rec.cli import main

    shape = ["model.bottom_mlp=[4]", "model.top_mlp=[4]", "model.embedding_dim=4", "run.batch_size=8", "run.device=cpu"]
    settings = [part for text in [*shape, "run.threads=1", "data.epochs=3"] for part in ("--set", text)]
    command = ["train", "--data", str(folder), "--no-serve", "--json", "--policy", "hotline", *settings]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["samples_seen"] == 3 * round(103 * 0.857142857)
    assert summary["eval"]["samples"] == 103 - round(103 * 0.857142857)
