"""Rows of Criteo's shape, and the arrays of a prepared folder by pure Python."""

from __future__ import annotations

import gzip
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from adaptive_rec.data.prepare.checksums import StageProgress
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import Meta, load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from tests.kernels.reference.number_keys import number_keys
from tests.kernels.reference.parse import check_fields

SURELY_GOOD = re.compile(rb"[01](\t(-?[0-9]{1,9})?){13}(\t[0-9a-f]{0,8}){26}")
BAD_LINES = [
    b"1\tx\n",
    b"\n",
    b"2" + b"\t" * 39 + b"\n",
    b"1" + b"\t" * 38 + b"\tg\n",
    b"0" + b"\t1" * 38 + b"\t123456789\n",
]


def silent(_: StageProgress) -> None:
    pass


def made(folder: Path, *sources: Path, **options: Any) -> Meta:
    return prepare_folder(Request(tuple(sources), folder, **options), silent)


def row(i: int, **categories: str) -> bytes:
    """A row of Criteo's shape: its number as first dense feature, few values in the sparse columns."""
    ints = [str(i), "", str(-i), *["7"] * 10]
    sparse = [categories.get(f"C{f + 1}", f"{(i * (f + 3)) % (f + 2):x}") for f in range(26)]
    return "\t".join([str(i % 2), *ints, *sparse]).encode() + b"\n"


def rows(count: int, first: int = 0) -> bytes:
    return b"".join(row(i) for i in range(first, first + count))


def write(path: Path, text: bytes) -> Path:
    packed = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix)
    path.write_bytes(packed(text) if packed else text)
    return path


@dataclass
class PlainRows:
    """What a file's text holds, by pure Python."""

    dense: list[list[np.float32]]
    columns: list[list[int]]
    labels: list[list[int]]
    bad: int


@cache
def log_of(count: int) -> np.float32:
    """log(1 + count) in 32 bits, negative counts being 0."""
    value: np.float32 = np.log(np.float32(max(0, count)) + np.float32(1))
    assert abs(float(value) - math.log(1 + max(0, count))) < 1e-6 * (1 + float(value))
    return value


def plain_rows(text: bytes) -> PlainRows:
    rows = PlainRows([], [[] for _ in range(26)], [], 0)
    for line in text.removesuffix(b"\n").split(b"\n"):
        fields = line.removesuffix(b"\r").split(b"\t")
        if not SURELY_GOOD.fullmatch(line) and check_fields(fields, 13, 26)[0]:
            rows.bad += 1
            continue
        rows.labels.append([int(fields[0])])
        rows.dense.append([log_of(int(field or b"0")) for field in fields[1:14]])
        for column, field in zip(rows.columns, fields[14:], strict=True):
            column.append(int(field or b"0", 16))
    return rows


def assert_equals_plain(folder: Path, plain: PlainRows, min_count: int) -> Meta:
    meta = load_meta(folder)
    numbered = [number_keys(column, min_count) for column in plain.columns]
    sparse = np.array([ids for ids, _ in numbered], dtype=np.int32).T
    arrays = {
        kind: np.concatenate([np.load(folder / f"{source.name}_{kind}.npy") for source in meta.sources])
        for kind in ("dense", "sparse", "labels")
    }
    assert arrays["sparse"].tobytes() == sparse.tobytes()
    assert arrays["labels"].tobytes() == np.array(plain.labels, dtype=np.int32).tobytes()
    assert arrays["dense"].tobytes() == np.array(plain.dense, dtype=np.float32).tobytes()
    assert (meta.bad_rows, meta.rows) == (plain.bad, len(plain.labels))
    assert [table.rows for table in meta.tables] == [table_rows for _, table_rows in numbered]
    return meta
