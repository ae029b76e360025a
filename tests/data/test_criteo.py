"""Criteo files as sources: values, ids, ranges, positions, damage."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from adaptive_rec.batch import Batch, Position, check_batch
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.model import ModelConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.data import criteo_file
from adaptive_rec.data import lines as file_lines
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.errors import ConfigError, DataError

GOOD = b"1\t5\t-3\tff\t0a\n"
SAMPLE_ROWS = (
    616, 528, 61764, 32223, 154, 12, 8634, 292, 3, 13982, 4087, 56397, 2944, 26, 5897, 46382, 10, 2827, 1342, 4, 52250,
    13, 14, 14596, 55, 11139,
)  # fmt: skip
"""Distinct values of the real sample's columns, the missing value among them, as the DLRM reference counts them."""


def config(path: Path, **data: Any) -> Config:
    """Two dense features and two tables of 10 and 7 rows."""
    shape: dict[str, Any] = {"table_rows": (10, 7), "dense_features": 2}
    return Config(data=DataConfig(source=str(path), **(shape | data)))


def write(folder: Path, text: bytes, suffix: str = "") -> Path:
    path = folder / f"clicks.tsv{suffix}"
    packed = {"": lambda: text, ".gz": lambda: gzip.compress(text), ".zst": lambda: zstandard.compress(text)}
    path.write_bytes(packed[suffix]())
    return path


def made_rows(count: int) -> bytes:
    """Rows whose first dense feature is their own number, so that a test sees which rows it got."""
    return b"".join(
        f"{i % 2}\t{i}\t\t{i * 37:x}\t{'' if i % 5 == 0 else f'{i % 11:x}'}\n".encode() for i in range(count)
    )


def numbers(batch: Batch) -> list[int]:
    return np.rint(np.expm1(batch.dense_BX[:, 0].astype(np.float64))).astype(int).tolist()


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in ("dense_BX", "ids_N", "offsets", "labels_B"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert (one.position, one.malformed_rows) == (other.position, other.malformed_rows)


def assert_resumes_anywhere(source: Source, seed: int, batch_size: int) -> list[Batch]:
    whole = list(source.train_batches(Position(seed=seed), batch_size))
    for i, batch in enumerate(whole):
        assert_same(list(source.train_batches(batch.position, batch_size)), whole[i + 1 :])
    return whole


@pytest.mark.parametrize("ids", ["hash", "contiguous"])
def test_values_of_a_batch(tmp_path: Path, ids: str) -> None:
    path = write(tmp_path, GOOD + b"0\t\t7\t\t1f\n" + b"0\t0\t1\tFF\t\n" + GOOD)
    source = open_source(config(path, ids=ids, train_range=(0.0, 0.75), test_range=(0.75, 1.0), shuffle=False))
    (batch,) = source.train_batches(Position(), 8)
    expected = [[math.log(6), 0], [0, math.log(8)], [0, math.log(2)]]
    np.testing.assert_allclose(batch.dense_BX, expected, rtol=1e-6)
    assert batch.labels_B.tolist() == [1, 0, 0]
    hashed, numbered = [255 % 10, 10 % 7, 0, 31 % 7, 255 % 10, 0], [0, 0, 1, 1, 0, 2]
    assert batch.ids_N.tolist() == (hashed if ids == "hash" else numbered)
    assert [table.rows for table in source.tables] == ([10, 7] if ids == "hash" else [2, 3])
    assert [(table.name, table.dim) for table in source.tables] == [("C1", 16), ("C2", 16)]
    (test,) = source.test_batches(8)
    assert test.size == 1
    assert test.labels_B.tolist() == [1]
    assert test.position == Position()
    assert (batch.dense_BX.dtype, batch.ids_N.dtype, batch.labels_B.dtype) == (np.float32, np.int64, np.float32)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_equal_plain_ones(tmp_path: Path, suffix: str) -> None:
    plain, packed = write(tmp_path, made_rows(500)), write(tmp_path, made_rows(500), suffix)
    for ids in ("hash", "contiguous"):
        batches = [list(open_source(config(path, ids=ids)).train_batches(Position(), 64)) for path in (plain, packed)]
        assert_same(*batches)


def test_zst_of_several_frames_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "two.zst"
    path.write_bytes(zstandard.compress(made_rows(30)) + zstandard.compress(GOOD))
    assert open_source(config(path, ids="hash", train_range=(0.0, 0.99), test_range=(0.99, 1.0))).train_samples == 31


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_line_ends(tmp_path: Path, end: bytes) -> None:
    text = GOOD.replace(b"\n", b"\r\n" if end == b"\r\n" else b"\n") * 9 + GOOD.rstrip(b"\n") + end
    for ids in ("hash", "contiguous"):
        source = open_source(config(write(tmp_path, text), ids=ids))
        assert source.train_samples == 9
        assert sum(b.size for b in source.test_batches(4)) == 1


def test_auto_goes_by_the_decompressed_size(tmp_path: Path) -> None:
    path = write(tmp_path, made_rows(100), ".zst")
    for limit, rows in ((len(made_rows(100)), [100, 11]), (len(made_rows(100)) - 1, [10, 7])):
        source = open_source(config(path, ids="auto", in_memory_bytes=limit))
        assert [table.rows for table in source.tables] == rows


@pytest.mark.parametrize(("ids", "shuffle"), [("hash", True), ("contiguous", True), ("contiguous", False)])
def test_resume_from_any_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str, shuffle: bool) -> None:
    monkeypatch.setattr(criteo_file, "MARK_BYTES", 100)
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 80)
    source = open_source(
        config(write(tmp_path, made_rows(41)), ids=ids, shuffle=shuffle, epochs=3, train_range=(0.1, 0.9))
    )
    whole = assert_resumes_anywhere(source, 5, 7)
    assert [batch.size for batch in whole] == [7, 7, 7, 7, 5] * 3
    assert [batch.position for batch in whole[3:6]] == [Position(0, 5, 28), Position(1, 5, 0), Position(1, 5, 7)]
    epochs = [sum((numbers(batch) for batch in whole[e * 5 : e * 5 + 5]), []) for e in range(3)]
    in_file_order = list(range(4, 37))
    assert all(sorted(epoch) == in_file_order for epoch in epochs)
    if ids == "contiguous" and shuffle:
        assert epochs[0] != epochs[1] != in_file_order
        assert numbers(next(source.train_batches(Position(seed=6), 33))) != epochs[0]
    else:
        assert epochs == [in_file_order] * 3
    assert sum((numbers(batch) for batch in source.test_batches(3)), []) == list(range(37, 41))
    assert sum((numbers(batch) for batch in source.test_batches(3, max_samples=2)), []) == [37, 38]


def test_resume_in_a_compressed_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo_file, "MARK_BYTES", 100)
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 80)
    for suffix in (".gz", ".zst"):
        assert_resumes_anywhere(open_source(config(write(tmp_path, made_rows(60), suffix), ids="hash")), 0, 7)


BAD_ROWS = [
    (b"1\t5\t3\tff\n", "row must have 5 tab-separated columns, got 4"),
    (b"1\t5\t3\tff\tff\t\n", "row must have 5 tab-separated columns, got 6"),
    (b"\n", "row must have 5 tab-separated columns, got 1"),
    (b"2\t5\t3\tff\t0a\n", "column label: must be 0 or 1, got '2'"),
    (b"\t5\t3\tff\t0a\n", "column label: must be 0 or 1, got ''"),
    (b"1\t5.5\t3\tff\t0a\n", "column I1: must be an integer or empty, got '5.5'"),
    (b"1\t5\t12345678901\tff\t0a\n", "column I2: must lie between -2147483647 and 2147483647, got '12345678901'"),
    (b"1\t5\t3\txyz\t0a\n", "column C1: must be a hexadecimal number or empty, got 'xyz'"),
    (b"1\t5\t3\tff\t0\x00a\n", "column C2: must be a hexadecimal number or empty, got '0\\x00a'"),
    (b"1\t5\t3\tff\t\xff\xfe\n", "column C2: must be a hexadecimal number or empty, got '\\xff\\xfe'"),
    (b"1\t5\t3\tff\t123456789\n", "column C2: must have at most 8 hexadecimal digits, got '123456789'"),
    (b"1\t5\t3\t" + b"z" * 99 + b"\t0a\n", f"column C1: must be a hexadecimal number or empty, got '{'z' * 40}'..."),
]


@pytest.mark.parametrize("ids", ["hash", "contiguous"])
@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_malformed_row_names_file_line_column_and_value(tmp_path: Path, ids: str, row: bytes, message: str) -> None:
    path = write(tmp_path, GOOD * 6 + row + GOOD * 6)
    with pytest.raises(DataError) as caught:
        list(open_source(config(path, ids=ids)).train_batches(Position(), 4))
    assert str(caught.value) == f"{path}, line 7{', ' if message.startswith('column') else ': '}{message}"


@pytest.mark.parametrize("ids", ["hash", "contiguous", "raw"])
def test_a_file_of_other_columns_is_refused_where_it_is_opened(tmp_path: Path, ids: str) -> None:
    with pytest.raises(DataError, match="line 1: row must have 6 tab-separated columns, got 5"):
        open_source(config(write(tmp_path, made_rows(12)), ids=ids, table_rows=(10, 7, 3)))


@pytest.mark.parametrize("ids", ["hash", "contiguous"])
def test_malformed_rows_are_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    monkeypatch.setattr(criteo_file, "MARK_BYTES", 60)
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 50)
    lines = made_rows(20).splitlines(keepends=True)
    for i, (row, _) in enumerate(BAD_ROWS):
        lines.insert(3 * i, row)
    path = write(tmp_path, b"".join(lines))
    source = open_source(config(path, ids=ids, on_bad_row="skip", shuffle=False, epochs=2))
    assert (source.malformed_rows, source.train_samples) == (len(BAD_ROWS), 18)
    whole = assert_resumes_anywhere(source, 0, 4)
    assert sum((numbers(batch) for batch in whole[:5]), []) == list(range(18))
    skipped = [batch.malformed_rows for batch in whole]
    assert skipped == ([2, 2, 2, 2, 1] * 2 if ids == "hash" else [12] + [0] * 9)
    assert sum((numbers(batch) for batch in source.test_batches(9)), []) == [18, 19]


def test_ids_stay_inside_their_tables(tmp_path: Path) -> None:
    path = write(tmp_path, made_rows(300))
    for ids in ("hash", "contiguous"):
        source = open_source(config(path, ids=ids, max_table_rows=6))
        assert [table.rows for table in source.tables] == [6, 6]
        for batch in source.train_batches(Position(), 50):
            check_batch(batch, source.tables, source.features)


def test_features_that_share_a_table_share_its_ids(tmp_path: Path) -> None:
    path = write(tmp_path, b"0\t1\t1\ta\tb\tc\n" + b"0\t1\t1\tb\ta\td\n")
    shared = {"feature_tables": (1, 1, 0), "train_range": (0.0, 0.999), "test_range": (0.999, 1.0), "shuffle": False}
    source = open_source(config(path, ids="contiguous", **shared))
    (batch,) = source.train_batches(Position(), 4)
    assert batch.ids_N.tolist() == [0, 1, 0, 1, 0, 1]
    assert [table.rows for table in source.tables] == [2, 2]
    assert [feature.table for feature in source.features] == [1, 1, 0]


def test_one_row_and_one_table(tmp_path: Path) -> None:
    path = write(tmp_path, b"1\t4\tee")
    for ids in ("hash", "contiguous"):
        source = open_source(config(path, ids=ids, table_rows=(1,), dense_features=1))
        (batch,) = source.train_batches(Position(), 4)
        assert batch.ids_N.tolist() == [0]
        assert source.train_samples == 1
        assert list(source.test_batches(4)) == []
        assert list(source.train_batches(Position(epoch=1), 4)) == []


def test_table_dims_follow_the_model(tmp_path: Path) -> None:
    data = DataConfig(source=str(write(tmp_path, GOOD)), table_rows=(10, 7), dense_features=2, pooling="mean")
    source = open_source(Config(data=data, model=ModelConfig(table_dims=(4, 8))))
    assert [table.dim for table in source.tables] == [4, 8]
    assert {feature.pooling for feature in source.features} == {"mean"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="synthetic, or a file or folder that exists, got '.*no"):
        open_source(config(tmp_path / "no.tsv"))
    with pytest.raises(ConfigError, match="data.source must be a file, got '.*', which is a folder"):
        open_source(config(tmp_path))
    with pytest.raises(DataError, match="data.source must hold at least one row, got '.*clicks.tsv', which is empty"):
        open_source(config(write(tmp_path, b"")))
    with pytest.raises(DataError, match="data.train_range must hold at least one row of .*, got .* of 0 well-formed"):
        open_source(config(write(tmp_path, b"", ".gz")))
    with pytest.raises(DataError, match="data.train_range must hold at least one row"):
        open_source(config(write(tmp_path, b"\n\n"), on_bad_row="skip", ids="hash"))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_compressed_files(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, np.random.default_rng(1).bytes(9000), suffix)
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:50], b"hello" + whole, whole + b"hello"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"clicks.tsv{suffix} must be a complete {suffix[1:]} file: "):
            open_source(config(path))


def test_a_file_without_lines_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 600)
    with pytest.raises(DataError, match="a line must have at most 1000 bytes, got one of 1200 or more"):
        open_source(config(write(tmp_path, b"\0" * 5000)))


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, made_rows(50))
    source = open_source(config(path, ids="hash"))
    path.write_bytes(made_rows(20))
    with pytest.raises(DataError, match="clicks.tsv must keep its 50 rows while it is read, got 20 lines"):
        list(source.train_batches(Position(), 8))


def test_wrong_positions_and_batch_sizes(tmp_path: Path) -> None:
    source = open_source(config(write(tmp_path, made_rows(10)), ids="hash"))
    with pytest.raises(DataError, match=r"offset of a reader position must lie in \[0, 9\].*, got 10"):
        list(source.train_batches(Position(offset=10), 4))
    with pytest.raises(DataError, match="batch_size must be at least 1 sample, got 0"):
        list(source.train_batches(Position(), 0))


def test_real_sample_has_the_reference_table_sizes(criteo_sample: Path) -> None:
    source = open_source(Config(data=DataConfig(source=str(criteo_sample), shuffle=False)))
    assert tuple(table.rows for table in source.tables) == SAMPLE_ROWS
    assert source.train_samples == round(0.9 * 137_139)
    labels = np.concatenate([batch.labels_B for batch in source.train_batches(Position(), 8192)])
    assert labels.mean() == pytest.approx(0.2568, abs=0.003)


def test_real_rows_against_a_parse_by_hand(criteo_sample: Path) -> None:
    with criteo_sample.open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read(4000).split(b"\n")[:3]
    source = open_source(Config(data=DataConfig(source=str(criteo_sample), ids="hash", max_table_rows=5000)))
    batch = next(source.train_batches(Position(), 3))
    rows = [table.rows for table in source.tables]
    for b, line in enumerate(lines):
        label, *fields = line.decode().split("\t")
        dense = [math.log(1 + max(0, int(field))) if field else 0.0 for field in fields[:13]]
        ids = [int(field, 16) % n if field else 0 for field, n in zip(fields[13:], rows, strict=True)]
        assert batch.labels_B[b] == int(label)
        np.testing.assert_allclose(batch.dense_BX[b], dense, rtol=1e-6)
        assert batch.ids_N[b * 26 : (b + 1) * 26].tolist() == ids


@pytest.mark.parametrize("ids", ["hash", "contiguous"])
def test_terabyte_rows_parse(criteo_terabyte_head: Path, ids: str) -> None:
    source = open_source(Config(data=DataConfig(source=str(criteo_terabyte_head), ids=ids)))
    batches = [*source.train_batches(Position(), 512), *source.test_batches(512)]
    assert sum(batch.size for batch in batches) == 3000
    for batch in batches:
        check_batch(batch, source.tables, source.features)
