"""Parsing of Criteo's text, from bytes in memory to arrays: what must move, ours, and the CSV reader of pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from adaptive_rec.data.lines import line_blocks
from adaptive_rec.kernels import parse
from benchmarks.roofline.kernels import Kernel
from benchmarks.roofline.machine import Roof

INTEGERS, CATEGORIES = 13, 26
FEW_LINES = 256
"""Lines, with what is parsed from them, that a core's second cache holds."""


def text(path: Path, small: bool) -> bytes:
    """Return the lines of the Criteo sample, or some made up ones; nothing where there is no sample."""
    if small:
        numbers = np.random.default_rng(1).integers(0, 1 << 31, (4 * FEW_LINES, INTEGERS + CATEGORIES))
        made = (
            "\t".join(["1", *map(str, row[:INTEGERS]), *(f"{key:08x}" for key in row[INTEGERS:])]) for row in numbers
        )
        return "".join(f"{line}\n" for line in made).encode()
    return b"".join(line_blocks(path)) if path.exists() else b""


def parsing(lines: bytes, roof: Roof) -> Kernel:
    """All lines at a time, on one thread."""
    count = lines.count(b"\n")
    few = b"".join(lines.splitlines(keepends=True)[:FEW_LINES])
    whole, part = _parser(lines), _parser(few)
    numbers = 4 * (1 + INTEGERS + CATEGORIES)

    def in_cache(step: int) -> None:
        for _ in range(count // FEW_LINES):
            part(step)

    return Kernel(
        "parsing, one thread",
        f"{count} lines of {len(lines) / count:.0f} bytes read, {numbers} bytes of numbers written for each",
        len(lines) / roof.sequential[1]["read"] + count * numbers / roof.sequential[1]["written"],
        whole, in_cache, partial(_read_csv, lines) if find_spec("pyarrow") else None, rival_name="pyarrow",
    )  # fmt: skip


def _parser(lines: bytes) -> Callable[[int], None]:
    data, count = np.frombuffer(lines, np.uint8), lines.count(b"\n")
    labels_B, ints_BX = np.empty(count, np.float32), np.empty((count, INTEGERS), np.int32)
    values_BF = np.empty((count, CATEGORIES), np.uint32)

    def run(step: int) -> None:
        parsed, _, fault, column = parse.parse_rows(data, 0, labels_B, ints_BX, values_BF)
        if parsed != count:
            raise ValueError(f"all {count} lines must be parsed, got {parsed}: fault {fault} in column {column}")

    return run


def _read_csv(lines: bytes, step: int) -> object:
    """Read the columns with pyarrow on one thread. Categories stay texts, as it reads no hexadecimal numbers."""
    import pyarrow as arrow
    from pyarrow import csv

    names = [f"c{column}" for column in range(1 + INTEGERS + CATEGORIES)]
    types = [arrow.float32()] + [arrow.int32()] * INTEGERS + [arrow.string()] * CATEGORIES
    return csv.read_csv(
        arrow.BufferReader(lines),
        csv.ReadOptions(use_threads=False, column_names=names),
        csv.ParseOptions(delimiter="\t", quote_char=False),
        csv.ConvertOptions(column_types=dict(zip(names, types, strict=True))),
    )
