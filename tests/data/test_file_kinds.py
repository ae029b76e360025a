"""What a file is by its first bytes: formats that are read under any name, and others, named with a way out."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard

from adaptive_rec.data import lines as file_lines
from adaptive_rec.data import packed
from adaptive_rec.data.file_kind import _crc32c, kind_of
from adaptive_rec.data.lines import chunks, plain_bytes
from adaptive_rec.data.open import check_file
from adaptive_rec.data.prepare.formats import find_format
from adaptive_rec.data.tabular.file_rows import FileRows
from adaptive_rec.data.tabular.first_rows import STRICT, Reading
from adaptive_rec.data.tabular.infer import infer
from adaptive_rec.data.tabular.json_lines import JsonLinesFile
from adaptive_rec.errors import DataError, UsageError

ROWS = 200
TABLE = pa.table(
    {
        "click": [n % 2 for n in range(ROWS)],
        "user": [n % 7 for n in range(ROWS)],
        "city": [f"c{n % 5}" for n in range(ROWS)],
    }
)
CSV = "click,user,city\n" + "".join(f"{n % 2},{n % 7},c{n % 5}\n" for n in range(ROWS))
JSON = "".join(json.dumps(row) + "\n" for row in TABLE.to_pylist())


def in_memory(write: Callable[[Any], Any]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    def write(out: io.BytesIO) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return in_memory(write)


def streamed() -> bytes:
    def write(out: io.BytesIO) -> None:
        with pa.ipc.new_stream(out, TABLE.schema) as stream:
            stream.write_table(TABLE, max_chunksize=30)

    return in_memory(write)


PARQUET = in_memory(lambda out: pa.parquet.write_table(TABLE, out, row_group_size=60))
READ: dict[str, bytes] = {
    "a.pq": PARQUET,
    "none": PARQUET,
    "parquet.csv": PARQUET,
    "parquet.gz": PARQUET,
    "a.feather": in_memory(lambda out: pa.feather.write_feather(TABLE, out, chunksize=50)),
    "a.arrows": streamed(),
    "a.jsonl": JSON.encode(),
    "log.json.zst": zstandard.compress(JSON.encode()),
    "gzip.csv": gzip.compress(CSV.encode()),
    "zstd": zstandard.compress(CSV.encode()),
    "a.csv.bz2": bz2.compress(CSV.encode()[:900]) + bz2.compress(CSV.encode()[900:]),
    "a.csv.xz": lzma.compress(CSV.encode()[:900]) + b"\0" * 8 + lzma.compress(CSV.encode()[900:]),
    "a.zip": zipped({"b/": b"", "b/a.csv": CSV.encode(), "__MACOSX/b/._a.csv": b"x"}),
    "unpacked.csv.gz": CSV.encode(),
    "text.parquet": CSV.encode(),
}


def read(path: Path, reading: Reading = STRICT) -> FileRows:
    return FileRows([path], infer(path, "click", reading).schema, reading.skip_bad_rows)


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(READ[name])
    rows = read(path)
    found = list(rows.read(0))
    assert len(rows) == ROWS
    assert np.concatenate([part.labels_B for part in found]).tolist() == TABLE["click"].to_pylist()
    assert [column.name for column in rows.columns] == ["user", "city"]
    later = np.concatenate([part.ids_BC for part in rows.read(77)])
    np.testing.assert_array_equal(later, np.concatenate([part.ids_BC for part in found])[77:])


def tf_record() -> bytes:
    length = struct.pack("<Q", 3)
    crc = _crc32c(length)
    return length + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF) + b"abc\0\0\0\0"


def database() -> bytes:
    with sqlite3.connect(":memory:") as base:
        base.execute("create table rows (click)")
        return base.serialize()


def tarred() -> bytes:
    def write(out: io.BytesIO) -> None:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            archive.addfile(tarfile.TarInfo("a.csv"))

    return in_memory(write)


REFUSED: dict[str, tuple[bytes, str]] = {
    "svm": (b"1 3:1 17:0.5\n0 2:1e-3 # words\n-1 qid:7 1:1\n", "libsvm file; the way out: python .*pandas"),
    "svm.gz": (gzip.compress(b"1 3:1 17:1\n"), "libsvm file of ids; the way out: unpack it, then python"),
    "libfm": (b"1 3:1 17:1\n-1 2:1\n", r"libsvm file of ids; the way out: python .*columns=\['label', 'ids'\]"),
    "ffm": (b"1 0:3:1 1:17:0.5\n0 0:2:1\n", "libffm file"),
    "orc": (b"ORC\x0a\x01" + b"\0" * 20, "ORC file; the way out: python -c \"from pyarrow import orc"),
    "avro": (b"Obj\x01\x04", "Avro file; the way out: duckdb .*read_avro"),
    "tfrecord": (tf_record(), "TFRecord file"),
    "npy": (in_memory(lambda out: np.save(out, np.arange(3))), "NumPy file"),
    "npz": (in_memory(lambda out: np.savez(out, a=np.arange(3))), "NumPy archive"),
    "pickle": (pickle.dumps([1]), "pickle; .*if you trust its source"),
    "h5": (b"\x89HDF\r\n\x1a\n", "HDF5 file"),
    "feather v1": (b"FEA1\0\0", "Feather V1 file"),
    "sqlite": (database(), "SQLite database"),
    "xlsx": (zipped({"xl/workbook.xml": b"x", "docProps/app.xml": b"x"}), "Excel file"),
    "zip of two": (zipped({"a": b"x", "b": b"y"}), "zip archive of 2 files \\(a, b\\) instead of one"),
    "zip of none": (zipped({}), "zip archive of 0 files"),
    "array": (json.dumps(TABLE.to_pylist()).encode(), "JSON array; .*read_json"),
    "document": (json.dumps(TABLE.to_pylist()[0], indent=1).encode(), "JSON document over several lines"),
    "tar": (tarred(), "tar archive"),
    "html": (b"<!DOCTYPE html>\n<html>", "HTML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "parquet in gzip": (gzip.compress(PARQUET), "must be unpacked first: it is a Parquet file within a gzip file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_format_that_is_not_read_is_named_with_a_way_out(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    path = tmp_path / "it's a file"
    path.write_bytes(content)
    for reads in (kind_of, check_file, find_format):
        with pytest.raises(DataError, match=message):
            reads(path)


@pytest.mark.parametrize(
    "text",
    ["a,b\n1,2\n", "ORC,b\n1\n", "PAR1,b\n1\n", "BZh,b\n1\n", "[id],[b]\n1\n", "{id},b\n1\n", "a:b,c\n1:2,3\n", "", "3\n"],
)
def test_texts_that_begin_like_something_else_are_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    assert kind_of(tmp_path / "a") == "text"


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress, lambda data: zipped({"a": data})]
)
def test_packed_files_are_read_in_pieces_and_damage_is_told(
    tmp_path: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "CHUNK_BYTES", 100)
    text = np.random.default_rng(1).bytes(3000)
    path = tmp_path / "packed"
    path.write_bytes(pack(text))
    assert b"".join(chunks(path)) == text
    assert b"".join(chunks(path, 1234)) == text[1234:]
    assert 0 < plain_bytes(path) < 10 * len(text)
    path.write_bytes(pack(text)[:-30])
    with pytest.raises(DataError, match="must be a complete"):
        list(chunks(path))


def test_json_columns_have_one_type_in_the_whole_file(tmp_path: Path) -> None:
    lines = [{"click": n % 2, "user": f"u{n % 3}"} for n in range(50)]
    lines += [{"click": n % 2, "user": "2024-01-01", "price": n if n < 80 else n / 2} for n in range(50, 100)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    inferred = infer(path, "click").schema
    assert {column.column for column in (*inferred.sparse, *inferred.dense)} == {"user", "price"}
    assert len(FileRows([path], inferred, False)) == 100


def test_whole_numbers_of_json_keep_their_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 64)
    path = tmp_path / "a.jsonl"
    ids = [1, 2**63 + 1, 2**64 - 1, 5]
    path.write_text("".join(f'{{"click": {n % 2}, "user": {ids[n % 4]}}}\n' for n in range(12)))
    opened = JsonLinesFile(path, False)
    assert [value for batch in opened.batches(["user"]) for value in batch["user"].to_pylist()] == ids * 3
    path.write_text(f'{{"user": {2**64}}}\n')
    with pytest.raises(DataError, match="whole numbers must have 64 bits, got 18446744073709551616; write them as texts"):
        JsonLinesFile(path, False)


def test_a_line_that_is_no_object_is_named_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(JSON + "\n[1]\n{half\n" + JSON)
    with pytest.raises(DataError, match=rf"a\.jsonl, row {ROWS + 1}: each line must be a JSON object, got '\[1\]'"):
        read(path)
    rows = read(path, Reading(skip_bad_rows=True))
    assert (len(rows), rows.bad_rows) == (2 * ROWS, 2)
    path.write_text('{"click": 1, "user": 1}\n{"click": 0, "user": "x"}\n')
    with pytest.raises(DataError, match=r"a column must have values of one type, .*user"):
        read(path)


def test_ratings_are_recognised_by_their_values(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text("1::0114508::8::1381006850\n2::0499549::5::1376753198\n")
    assert find_format(path) == "movietweetings"
    path.write_text("1::1193::5::978300760\n1::661::3::978302109\n")
    with pytest.raises(UsageError, match=r"ratings up to 5, as MovieLens has; .*sed 's/::/,/g'"):
        find_format(path)
    with pytest.raises(DataError, match=r"must have one character between fields, its first line has '::'"):
        infer(path, "rating >= 4")
