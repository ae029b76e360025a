"""Criteo TSV files as raw rows: blocks of lines are parsed on several threads and come out in their order."""

from __future__ import annotations

import gzip
import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adaptive_rec.data.criteo_file import CriteoLayout, ParsedRows, line_blocks, malformed
from adaptive_rec.data.prepare.raw import RawBlock, SequenceColumns, SparseColumn
from adaptive_rec.data.zst import ZstdDecompressor, ZstdError
from adaptive_rec.kernels import parse

DENSE, CATEGORIES = 13, 26
CHUNKS_PER_BLOCK = 4
PROBE_BYTES = 1 << 20


@dataclass
class LineFault:
    """A malformed line."""

    line_of_block: int
    """From 0 on."""
    fault: int
    column: int
    line: bytes


class CriteoReader:
    """A Criteo TSV file, Kaggle or Terabyte: dense features log(1 + count), keys as they stand, missing ones 0."""

    sequence: SequenceColumns | None = None
    dense_transform = "log(1 + max(count, 0)), a missing count is 0"

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int) -> None:
        self._layout = CriteoLayout(path, DENSE, CATEGORIES, skip_bad_rows)
        self.dense_names = tuple(f"I{i + 1}" for i in range(DENSE))
        self.columns = tuple(SparseColumn(f"C{i + 1}", f"C{i + 1}") for i in range(CATEGORIES))
        self.bad_rows = 0
        self.read_ratio = 0.0
        self._plain_bytes = plain_bytes(path)

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order; a malformed one raises DataError with its line, or is skipped."""
        workers = len(os.sched_getaffinity(0))
        lines = read_bytes = 0
        parts: deque[Future[tuple[RawBlock, list[LineFault], int, int]]] = deque()
        texts = joined(line_blocks(self._layout.path), CHUNKS_PER_BLOCK)
        with ThreadPoolExecutor(workers, "parse") as pool:
            for text in texts:
                parts.append(pool.submit(parse_block, self._layout, text))
                if len(parts) <= workers:
                    continue
                block, faults, block_lines, block_bytes = parts.popleft().result()
                self._tell(faults, lines)
                lines, read_bytes = lines + block_lines, read_bytes + block_bytes
                self.read_ratio = min(1.0, read_bytes / self._plain_bytes)
                yield block
            while parts:
                block, faults, block_lines, _ = parts.popleft().result()
                self._tell(faults, lines)
                lines += block_lines
                yield block
        self.read_ratio = 1.0

    def _tell(self, faults: list[LineFault], lines_before: int) -> None:
        if faults and not self._layout.skip_bad_rows:
            first = faults[0]
            number = lines_before + first.line_of_block + 1
            raise malformed(self._layout, number, first.fault, first.column, first.line)
        self.bad_rows += len(faults)


def parse_block(layout: CriteoLayout, text: bytes) -> tuple[RawBlock, list[LineFault], int, int]:
    """Parse whole lines; returns the rows, the malformed lines, the number of lines and of bytes."""
    lines = text.count(b"\n")
    rows = ParsedRows.empty(layout, lines)
    faults: list[LineFault] = []
    data = np.frombuffer(text, dtype=np.uint8)
    position = filled = 0
    while position < len(text):
        part = rows[filled:]
        count, position, fault, column = parse.parse_rows(data, position, part.labels_B, part.ints_BX, part.values_BF)
        filled += count
        if fault != parse.FINE:
            line = text[position : text.index(b"\n", position)]
            faults.append(LineFault(filled + len(faults), fault, column, line))
            position += len(line) + 1
    rows = rows[:filled]
    values_FB = np.ascontiguousarray(rows.values_BF.T)
    block = RawBlock(rows.dense_BX(), rows.labels_B, list(values_FB), [None] * layout.categories)
    return block, faults, lines, len(text)


def joined(texts: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The texts, `count` of them at a time."""
    group: list[bytes] = []
    for text in texts:
        group.append(text)
        if len(group) == count:
            yield b"".join(group)
            group = []
    if group:
        yield b"".join(group)


def plain_bytes(path: Path) -> int:
    """The size of a file after decompression: exact where it is plain, else judged by its first megabyte. At least 1."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(PROBE_BYTES) if path.suffix in (".gz", ".zst") else b""
    try:
        if path.suffix == ".gz":
            size = size * len(zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(start)) // max(1, len(start))
        elif path.suffix == ".zst":
            size = size * len(ZstdDecompressor().decompress(start)) // max(1, len(start))
    except (zlib.error, ZstdError, gzip.BadGzipFile):
        pass  # a damaged file is told when it is read
    return max(1, size)
