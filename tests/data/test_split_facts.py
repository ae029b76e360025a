"""What is said of the data before a run trains: each kind, of prepared folders and of files with raw ids, and nothing of a random
file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.looked_at import looked_at
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.source import Source
from adaptive_rec.data.split_facts import Labels, is_sorted, label_lines, lines, tells
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml

Columns = dict[str, NDArray[np.generic]]
N = 2000
R = np.random.default_rng(1)


def random_columns() -> Columns:
    return {
        "click": (R.random(N) < 0.3).astype(np.int64),
        "user": R.integers(0, N // 30, N),
        "item": R.integers(0, 60, N),
        "rare": np.minimum(R.zipf(1.3, N), 1 << 40),
        "site": R.choice(["a", "b"], N, p=[0.999, 0.001]).astype(object),
        "price": R.random(N) * 9,
        "shown": (R.random(N) < 0.9).astype(float),
    }


RANDOM = random_columns()
SCHEMA = {
    "label": "click",
    "sparse": [name for name in RANDOM if name not in ("click", "price", "shown")],
    "dense": [{"column": name, "transform": "standard"} for name in ("price", "shown")],
    "min_count": 2,
}


def ordered_by(name: str) -> Columns:
    order = np.argsort(RANDOM[name], kind="stable")
    return {column: values[order] for column, values in RANDOM.items()}


def said(source: Source, config: Config) -> list[str]:
    looked = looked_at(source, config)
    return [] if looked is None else lines(looked)


def opened(tmp_path: Path, raw: bool, columns: Columns, files: int = 1, **schema: object) -> tuple[Source, Config]:
    """The columns as a source: a prepared folder, or files with raw ids."""
    more = [name for name in columns if name not in RANDOM]
    described = parse_schema(SCHEMA | {"sparse": [*SCHEMA["sparse"], *more]} | schema, "the schema")  # type: ignore[misc]
    folder = tmp_path / "log"
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(columns["click"])), files)):
        table = pa.table({name: values[part] for name, values in columns.items()})
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=700)
    if raw:
        (tmp_path / "s.toml").write_text(schema_toml(described))
        settings = [f'data.source="{folder}"', f'data.schema_file="{tmp_path / "s.toml"}"']
    else:
        request = Request(tuple(sorted(folder.iterdir())), tmp_path / "made", schema=described)
        prepare_folder(request, lambda *_: None)
        settings = [f'data.source="{tmp_path / "made"}"']
    config = load_config("clicks_raw" if raw else "clicks_small", {}, settings)
    return open_source(config), config


def column(make: Callable[[], NDArray[np.generic]]) -> Columns:
    return {**RANDOM, "added": make()}


CLICK = RANDOM["click"]
TEXTS = np.array([f"v{k}" for k in R.integers(0, 500, N)], dtype=object)
FOUND = {
    "sorted by user": (
        ordered_by("user"),
        ["of the 200 held-out rows have a value of user that none of the 1,800 training rows has: equal values stand together"],
    ),
    "sorted by a number": (ordered_by("price"), ["the file is sorted by price, and rows are held out"]),
    "sorted by few values": (column(lambda: (np.arange(N) >= 700).astype(np.int64)), ["the file is sorted by added, or equal"]),
    "new all the time": (
        column(lambda: np.arange(N) // 40 * 100 + R.integers(0, 20, N)),
        ["100% of the 200 held-out rows have a value of added that none of the 1,800 training rows has"],
    ),
    "nearly as many values as rows": (column(lambda: R.permutation(N) * 3 // 5), ["added has ", "as many values as there are"]),
    "a second label": (
        column(lambda: np.where(R.random(N) < 0.997, CLICK, 1 - CLICK)),
        ["added tells the label: its value gives it for"],
    ),
    "a step behind the label": (
        column(lambda: CLICK * (R.random(N) < 0.4)),
        ["added tells the label: a value that ", "goes with label 1 nearly always"],
    ),
    "present with the label": (
        column(lambda: np.where(CLICK == 1, TEXTS, None)),
        ["added tells the label: whether it has a value gives it for 100% of the rows (2,000 rows looked at)"],
    ),
    "a number that tells": (
        {**RANDOM, "price": np.where(CLICK == 1, 1.0, -1.0) * RANDOM["price"]},
        ["price tells the label: its value gives it for 100%"],
    ),
    "a number present with the label": (
        {**RANDOM, "price": np.where(CLICK == 1, RANDOM["price"], np.nan)},
        ["price tells the label: "],
    ),
    "one class": (
        {**RANDOM, "click": np.ones(N, dtype=np.int64)},
        ["all 1,800 training rows have label 1, and so have the 200 held-out rows", "a log of positives alone needs rows"],
    ),
    "no positives": ({**RANDOM, "click": np.zeros(N, dtype=np.int64)}, ["have label 0, and so have", "check --label"]),
    "sorted by label": (ordered_by("click"), ["all 200 held-out rows have label 1: there is nothing to", "shuffle it first"]),
}


@pytest.mark.parametrize("raw", [False, True], ids=["folder", "raw"])
@pytest.mark.parametrize("kind", FOUND)
def test_each_kind_is_said_in_one_line(tmp_path: Path, raw: bool, kind: str) -> None:
    columns, texts = FOUND[kind]
    found = said(*opened(tmp_path, raw, columns, files=2))
    assert len(found) == 1, found
    for text in texts:
        assert text in found[0]


SILENT: dict[str, Columns] = {
    "random": RANDOM,
    "a strong feature": column(lambda: np.where(R.random(N) < 0.9, CLICK, R.integers(0, 2, N))),
    "a feature that is mostly one value": column(lambda: (R.random(N) < 0.002).astype(np.int64)),
    "many values": column(lambda: R.integers(0, N // 4, N)),
    "sorted by hour": {**column(lambda: np.arange(N) * 24 // N), "site": RANDOM["site"]},
}
SILENT["sorted by hour"]["event_hour"] = SILENT["sorted by hour"].pop("added") % 12


@pytest.mark.parametrize("raw", [False, True], ids=["folder", "raw"])
@pytest.mark.parametrize("kind", SILENT)
def test_nothing_is_said_of_data_without_a_fault(tmp_path: Path, raw: bool, kind: str) -> None:
    assert said(*opened(tmp_path, raw, SILENT[kind])) == []


@pytest.mark.parametrize("rows", [1, 3, 30])
def test_small_files_say_nothing_of_columns(tmp_path: Path, rows: int) -> None:
    columns = {name: values[:rows] for name, values in ordered_by("user").items()}
    columns["click"] = np.arange(rows) % 2
    for raw in (False, True):
        (tmp_path / str(raw)).mkdir()
        assert [text for text in said(*opened(tmp_path / str(raw), raw, columns)) if "label" not in text] == []


@pytest.mark.parametrize(
    ("train", "held_out", "text"),
    [
        (Labels(1, 1), Labels(0, 0), "the only training row has label 1"),
        (Labels(9, 3), Labels(4, 0), "all 4 held-out rows have label 0"),
        (Labels(9000, 0, 500), Labels(50, 2), "all 500 training rows looked at have label 0"),
        (Labels(100, 10), Labels(100, 60), "10% of the training rows and 60% of the held-out rows have label 1"),
        (Labels(100, 10), Labels(100, 14), ""),
        (Labels(100, 10), Labels(0, 0), ""),
    ],
)
def test_labels_of_parts(train: Labels, held_out: Labels, text: str) -> None:
    found = list(label_lines(train, held_out))
    assert [text in line for line in found] == [True] * bool(text)


def test_few_rows_of_the_rarer_label_tell_nothing() -> None:
    labels_S = (np.arange(4000) < 30).astype(np.int64)
    assert tells(labels_S, labels_S) == ""
    assert tells(labels_S, (np.arange(4000) < 90).astype(np.int64)) == ""
    assert "its value gives it" in tells(labels_S := (np.arange(4000) < 900).astype(np.int64), labels_S)


def test_a_sorted_column_may_have_a_few_rows_elsewhere() -> None:
    values_S = np.arange(3000) // 30
    assert is_sorted(values_S)
    values_S[[100, 900]] = 99
    assert is_sorted(values_S)
    assert not is_sorted(R.permutation(values_S))
    assert not is_sorted(np.zeros(3000))
    assert not is_sorted(np.append(np.zeros(2990), np.ones(10)))


def test_rows_in_order_of_time_are_not_called_sorted(tmp_path: Path) -> None:
    columns = {**ordered_by("item"), "at": 1_700_000_000 + R.permutation(N)}
    source, config = opened(tmp_path, False, columns, sparse=SCHEMA["sparse"], time="at")
    assert len(said(source, config)) == 1
    settings = [f'data.source="{config.data.source}"', "data.order=time", "data.shuffle=false"]
    config = load_config("clicks_small", {}, settings)
    assert said(open_source(config), config) == []


@pytest.mark.parametrize(("raw", "lookups"), [(False, 64 * 40), (True, 64 * 400)], ids=["folder", "raw"])
def test_a_look_at_many_rows_takes_a_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bool, lookups: int
) -> None:
    for name, value in (("FILE_ROWS", 100), ("MOST_BLOCKS", 3), ("CHUNK_ROWS", 64), ("MOST_LOOKUPS", lookups)):
        monkeypatch.setattr(f"adaptive_rec.data.looked_at.{name}", value)
    found = said(*opened(tmp_path, raw, ordered_by("user")))
    assert ["training rows looked at has" in line for line in found] == [True], found
    (tmp_path / "random").mkdir()
    assert said(*opened(tmp_path / "random", raw, RANDOM)) == []


@pytest.mark.parametrize("by_time", [False, True])
def test_what_takes_much_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_time: bool) -> None:
    columns = {**ordered_by("user"), "at": 1_700_000_000 + np.arange(N)[::-1], "click": np.ones(N, dtype=np.int64)}
    _, config = opened(tmp_path, False, columns, sparse=SCHEMA["sparse"], time="at")
    order = ["data.order=time", "data.shuffle=false"] if by_time else []
    config = load_config("clicks_small", {}, [f'data.source="{config.data.source}"', *order])
    assert len(said(open_source(config), config)) == 2
    monkeypatch.setattr("adaptive_rec.data.looked_at.MOST_ROWS", 3)
    assert ["held-out rows have a value" in text for text in said(open_source(config), config)] == [False] * (2 - by_time)
    monkeypatch.setattr("adaptive_rec.data.looked_at.MOST_LABELS", 3)
    monkeypatch.setattr("adaptive_rec.data.looked_at.MOST_BLOCKS", 2)
    monkeypatch.setattr("adaptive_rec.data.looked_at.REORDERED_BLOCKS", 1)
    assert "training rows looked at have label 1" in said(open_source(config), config)[0]


def test_rows_that_cannot_be_read_are_left_to_the_run(tmp_path: Path) -> None:
    source, config = opened(tmp_path, False, FOUND["sorted by user"][0])
    with (tmp_path / "made" / "0_labels.npy").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x07")
    assert looked_at(source, config) is None


def test_rows_that_are_far_from_where_reading_can_begin_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptive_rec.data.looked_at.MOST_LOOKUPS", 1)
    assert said(*opened(tmp_path, True, FOUND["a second label"][0])) == []
