"""CSV, TSV and Parquet files as a source of raw keys, beside the folder that is prepared from the same files."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data import lines, packed
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.source import Source
from adaptive_rec.data.tabular import file_rows, reader
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.data.tabular.stream import TabularSource
from adaptive_rec.errors import DataError
from adaptive_rec.runtime.assemble import assemble
from tests.kernels.reference.hash_texts import hash_text
from tests.matrix import Case, always, grid

SCHEMA: dict[str, Any] = {
    "label": "clicked",
    "dense": [{"column": "age", "transform": "standard", "missing": -1.0}, "price"],
    "sparse": [{"column": "user", "type": "integer"}, "city", {"column": "tags", "separator": "|"}],
}
MISSING = -(2**63)
MIXED = ["", "a", "b", 'with "marks"', "with, comma", "with\nline", "é", "x" * 300]


def rows_of(count: int, seed: int = 1) -> list[list[Any]]:
    dice = random.Random(seed)
    return [
        [
            dice.randint(0, 1),
            dice.choice(["", 0, -7, 2**63 - 1, -(2**63) + 1, *range(20)]),
            dice.choice(MIXED),
            "|".join(dice.sample(["new", "old", "é"], dice.randint(0, 3))),
            dice.choice(["", dice.randint(1, 90)]),
            round(dice.random(), 3),
        ]
        for _ in range(count)
    ]


NAMES = ["clicked", "user", "city", "tags", "age", "price"]


def csv_text(rows: list[list[Any]], delimiter: str = ",", end: str = "\n") -> str:
    def field(value: Any) -> str:
        text = str(value)
        return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in (delimiter, '"', "\n")) else text

    return "".join(delimiter.join(map(field, row)) + end for row in [NAMES, *rows])


def write(folder: Path, form: str, rows: list[list[Any]]) -> tuple[Path, dict[str, Any]]:
    """Write rows in some form; returns the file or folder, and the schema."""
    data = csv_text(rows).encode()
    if form == "parquet":
        columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
        columns["user"] = pa.array([None if value == "" else value for value in columns["user"]], pa.int64())
        columns["age"] = pa.array([None if value == "" else float(value) for value in columns["age"]])
        columns["tags"] = [text.split("|") if text else None for text in columns["tags"]]
        pyarrow.parquet.write_table(pa.table(columns), folder / "clicks.parquet", row_group_size=37)
        sparse = [{"column": "user"}, "city", "tags"]
        return folder / "clicks.parquet", {**SCHEMA, "sparse": sparse}
    if form == "folder":
        parts = folder / "parts"
        parts.mkdir()
        for name, part in (("9.csv", rows[:50]), ("10.csv", rows[50:])):
            (parts / name).write_text(csv_text(part), newline="")
        return parts, SCHEMA
    schema = dict(SCHEMA)
    if form == "utf-16":
        data, schema["file"] = csv_text(rows).encode(form), {"encoding": form}
    name = {"gz": "clicks.csv.gz", "zst": "clicks.csv.zst", "tsv": "clicks.tsv"}.get(form, "clicks.csv")
    if form == "tsv":
        data = csv_text(rows, "\t", "\r\n").encode()
    (folder / name).write_bytes({"gz": gzip.compress, "zst": zstandard.compress}.get(form, bytes)(data))
    return folder / name, schema


def config_of(folder: Path, data: Path, schema: dict[str, Any], *settings: str) -> Config:
    (folder / "schema.toml").write_text(schema_toml(parse_schema(schema, "schema")))
    own = [
        "data.ids=raw",
        f"data.source={data}",
        f"data.schema_file={folder / 'schema.toml'}",
        "data.max_table_rows=200",
    ]
    return load_config("tiny", {}, [*own, *settings])


def prepared_config(folder: Path, data: Path, schema: dict[str, Any], *settings: str) -> Config:
    sources = (data,) if data.is_file() else tuple(sorted(data.iterdir(), key=lambda path: int(path.stem)))
    skips = any("skip" in each for each in settings)
    request = Request(
        sources, folder / "prepared", schema=parse_schema(schema, ""), on_bad_row="skip" if skips else "error"
    )
    prepare_folder(request, lambda progress: None)
    return load_config("tiny", {}, [f"data.source={folder / 'prepared'}", "data.shuffle=false", *settings])


@pytest.fixture(params=[False, True], ids=["whole", "pieces"])
def in_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and marks after a few rows."""
    if request.param:
        monkeypatch.setattr(lines, "CHUNK_BYTES", 96)
        monkeypatch.setattr(packed, "CHUNK_BYTES", 96)
        monkeypatch.setattr(packed, "COMPRESSED_BYTES", 64)
        monkeypatch.setattr(reader, "BLOCK_ROWS", 11)
        monkeypatch.setattr(file_rows, "MARKED_ROWS", 5)


def assert_equal(ours: list[Batch], theirs: list[Batch], without: tuple[str, ...] = ()) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for field in fields(Batch):
            if field.name not in without:
                np.testing.assert_array_equal(getattr(mine, field.name), getattr(other, field.name), err_msg=field.name)


def in_pieces_or_csv(cases: Sequence[Case]) -> list[Case]:
    """Each form in pieces, where most can go wrong, and one of them whole; of few rows."""
    return [case for case in cases if (case["in_pieces"] or case["form"] == "csv") and case["count"] < 120]


@grid(
    always, in_pieces_or_csv, ("in_pieces",),
    form=["csv", "gz", "zst", "tsv", "utf-16", "parquet", "folder"], in_pieces=[False, True], count=[61, 211],
)  # fmt: skip
def test_batches_are_those_of_the_prepared_folder_with_keys_in_place_of_numbers(
    tmp_path: Path, form: str, in_pieces: None, count: int
) -> None:
    data, schema = write(tmp_path, form, rows_of(count))
    source: Source = TabularSource(config_of(tmp_path, data, schema))
    other: Source = PreparedSource(prepared_config(tmp_path, data, schema))
    assert [table.name for table in source.tables] == ["user", "city", "tags"]
    for read in ("train_batches", "test_batches"):
        arguments = (Position(), 16) if read == "train_batches" else (16,)
        ours, theirs = list(getattr(source, read)(*arguments)), list(getattr(other, read)(*arguments))
        assert_equal(ours, theirs, without=("ids_N",))
        keys, numbers = (np.concatenate([batch.ids_N for batch in batches]) for batches in (ours, theirs))
        lengths = np.concatenate([np.diff(batch.offsets) for batch in ours])
        feature = np.repeat(np.tile(np.arange(3), len(lengths) // 3), lengths)
        pairs = set(zip(feature.tolist(), keys.tolist(), numbers.tolist(), strict=True))
        assert len(pairs) == len({pair[:2] for pair in pairs}) == len({pair[::2] for pair in pairs})
        assert all((key == MISSING) == (number == 0) for _, key, number in pairs)
        users, cities = ({key for f, key, _ in pairs if f == feature} for feature in (0, 1))
        assert users <= {0, -7, 2**63 - 1, -(2**63) + 1, MISSING, *range(20)}
        hashes = [hash_text(text.encode()) for text in MIXED if text]
        assert cities - {MISSING} <= {value - 2**64 * (value >= 2**63) for value in hashes}


@grid(
    always, in_pieces_or_csv, ("in_pieces",),
    form=["csv", "zst", "parquet", "folder"], in_pieces=[False, True], count=[60, 120],
)  # fmt: skip
def test_reading_goes_on_from_any_position_with_the_same_batches(
    tmp_path: Path, form: str, in_pieces: None, count: int
) -> None:
    rows = rows_of(count)
    if form != "parquet":
        for place in (0, 1, count // 4, count // 4 + 1, count // 4 + 2, count // 2, count * 5 // 6):
            rows[place] = [7, *rows[place][1:]] if place % 2 else rows[place][:4]
    data, schema = write(tmp_path, form, rows)
    config = config_of(tmp_path, data, schema, "data.on_bad_row=skip", "data.epochs=2", "data.train_range=[0.1,0.9]")
    source = TabularSource(config)
    assert source.malformed_rows == (0 if form == "parquet" else 7)
    whole = list(source.train_batches(Position(), 7))
    assert sum(batch.size for batch in whole) == 2 * source.train_samples
    for number, batch in enumerate(whole):
        assert_equal(list(source.train_batches(batch.position, 7)), whole[number + 1 :])


def test_a_skipped_row_is_counted_once(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    text = csv_text(rows_of(40)).splitlines(keepends=True)
    text[5:5] = ["1,2,3\n", "9,1,x,y,2,3\n"]
    (parts / "1.csv").write_text("".join(text), newline="")
    (parts / "2.csv").write_text(",".join(NAMES) + "\n1,2,3\n", newline="")  # not one well-formed row
    source = TabularSource(config_of(tmp_path, parts, SCHEMA, "data.on_bad_row=skip", "data.epochs=2"))
    assert sum(batch.malformed_rows for batch in source.train_batches(Position(), 8)) == source.malformed_rows == 3
    with pytest.raises(DataError, match=r"1\.csv, row 5: must have 6 fields"):
        TabularSource(config_of(tmp_path, parts, SCHEMA))


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "ascii"])
def test_a_row_in_another_encoding_is_a_malformed_one(tmp_path: Path, encoding: str) -> None:
    rows = [row for row in rows_of(120) if row[2] not in MIXED[3:]]
    text = [line.replace("é", "e") + "\n" for line in csv_text(rows).splitlines()]
    data = [line.encode(encoding) for line in text]
    other = b"\x00\xdc" if encoding == "utf-16-le" else b"\xff"
    strange, short = (other.join(part.encode(encoding) for part in row) for row in (("1,5,caf", ",new,3,0.5\n"), ("1,", "\n")))
    path, schema = tmp_path / "clicks.csv", {**SCHEMA, "file": {"encoding": encoding}}
    path.write_bytes(b"".join(data))
    expected = list(TabularSource(config_of(tmp_path, path, schema)).train_batches(Position(), 8))
    path.write_bytes(b"".join([*data[:9], strange, *data[9:40], short, *data[40:]]))
    source = TabularSource(config_of(tmp_path, path, schema, "data.on_bad_row=skip"))
    assert source.malformed_rows == 2
    assert_equal(list(source.train_batches(Position(), 8)), expected, without=("malformed_rows",))
    path.write_bytes(b"".join([*data[:9], strange, *data[9:]]))
    with pytest.raises(DataError, match=f'must be in {encoding}, .*write encoding = "latin-1"'):
        list(TabularSource(config_of(tmp_path, path, schema)).train_batches(Position(), 8))


def test_a_row_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    text = (csv_text(rows_of(3000)) + "1,5,x,new,3,0.5\n").encode().replace(b",x,new", b",x\xff,new")
    path.write_bytes(text)
    assert len(text) > 1 << 16  # what is behind that is not decoded when the file is opened
    with pytest.raises(DataError, match=r"row 3001, column city: must be in utf-8, got 'x\\ufffd'; write encoding"):
        list(TabularSource(config_of(tmp_path, path, SCHEMA)).test_batches(500))


@pytest.mark.parametrize("size", [4 << 20, (4 << 20) + 1])
def test_a_row_has_at_most_4_mib(tmp_path: Path, size: int) -> None:
    path, rest = tmp_path / "clicks.csv", b"1,5,,new,3,0.5\n"
    head, around = csv_text(rows_of(40)).encode(), rest.partition(b",new")
    path.write_bytes(head + around[0] + b"x" * (size - len(rest)) + b",new" + around[2] + rest)
    config = config_of(tmp_path, path, SCHEMA)
    if size == 4 << 20:
        assert len(list(TabularSource(config).train_batches(Position(), 8))) == 5
    else:
        with pytest.raises(DataError, match="a row must have at most 4194304 bytes, got a longer one"):
            TabularSource(config)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_training_equals_training_on_the_prepared_folder_where_ids_are_its_numbers(tmp_path: Path, form: str) -> None:
    dice = random.Random(3)
    rows: list[list[Any]] = []
    for k in range(1500):  # an id comes first after all smaller ones, so preparing numbers it by itself
        newest = 2 + k // 5
        ids = [newest if k % 5 == 0 else dice.randint(2, newest) for _ in range(2)]
        rows.append([dice.randint(0, 1), *ids, round(dice.gauss(3, 9), 3)])
    names = ["clicked", "user", "item", "price"]
    data = tmp_path / f"clicks.{form}"
    if form == "csv":
        data.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n")
    else:
        pyarrow.parquet.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), data)
    kind = {"type": "integer"} if form == "csv" else {}
    schema = {"label": "clicked", "dense": [{"column": "price", "transform": "standard"}],
              "sparse": [{"column": "user", **kind}, {"column": "item", **kind}]}  # fmt: skip
    numbered = prepared_config(tmp_path, data, schema, "data.max_table_rows=302")
    tables = PreparedSource(numbered).tables
    assert {table.rows for table in tables} == {302}
    losses = []
    settings = [
        "data.max_table_rows=302",
        "run.precision=float64",
        "run.batch_size=64",
        "knobs.hot_budget_bytes=8KiB",
        "knobs.reclassify_every=10",
    ]
    for config in (
        config_of(tmp_path, data, schema, *settings),
        load_config("tiny", {}, [f"data.source={numbered.data.source}", "data.shuffle=false", *settings]),
        load_config(
            "tiny", {}, [f"data.source={numbered.data.source}", "data.shuffle=false", "data.ids=raw", *settings]
        ),
    ):
        runtime = assemble(config)
        for _ in runtime.run():
            pass
        evaluation = runtime.evaluate()
        assert evaluation is not None
        losses.append((runtime.reports.totals()["loss_sum"], evaluation.quality))
    assert losses[0] == losses[2]
    assert losses[0][0] == losses[1][0]
