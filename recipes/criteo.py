"""Criteo TSV files as raw rows. Blocks of lines are parsed on several threads and come out in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from adaptive_rec.data.criteo_file import CriteoLayout, ParsedRows, malformed
from adaptive_rec.data.lines import line_blocks, plain_bytes
from adaptive_rec.data.prepare.raw import RawBlock, SequenceColumns, SparseColumn
from adaptive_rec.kernels import parse

DENSE, CATEGORIES = 13, 26
CHUNKS_PER_BLOCK = 4


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
    schema = None
    has_times = False
    bad_of: Mapping[str, int] = {}
    dense_transform = "log(1 + max(count, 0)), a missing count is 0"

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int, labelled: bool = True) -> None:
        self._layout = CriteoLayout(path, DENSE, CATEGORIES, skip_bad_rows).opened(path, labelled)
        self.dense_names = tuple(f"I{i + 1}" for i in range(DENSE))
        self.columns = tuple(SparseColumn(f"C{i + 1}", f"C{i + 1}") for i in range(CATEGORIES))
        self.bad_rows = 0
        self.read_ratio = 0.0
        self._plain_bytes = plain_bytes(path)

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order; a malformed one raises DataError with its line, or is skipped."""
        workers = len(os.sched_getaffinity(0))
        lines = read_bytes = 0
        texts = joined(line_blocks(self._layout.path), CHUNKS_PER_BLOCK)
        with ThreadPoolExecutor(workers, "parse") as pool:
            for block, faults, block_lines, block_bytes in in_order(
                pool, partial(parse_block, self._layout), texts, workers
            ):
                self._report(faults, lines)
                lines, read_bytes = lines + block_lines, read_bytes + block_bytes
                self.read_ratio = min(1.0, read_bytes / self._plain_bytes)
                yield block
        self.read_ratio = 1.0

    def _report(self, faults: list[LineFault], lines_before: int) -> None:
        if faults and not self._layout.skip_bad_rows:
            first = faults[0]
            number = lines_before + first.line_of_block + 1
            raise malformed(self._layout, number, first.fault, first.column, first.line)
        self.bad_rows += len(faults)


ParsedBlock = tuple[RawBlock, list[LineFault], int, int]
"""The rows of a text, its malformed lines, the number of its lines and of its bytes."""


def parse_block(layout: CriteoLayout, text: bytes) -> ParsedBlock:
    """Parse whole lines."""
    lines, read_bytes = text.count(b"\n"), len(text)
    text = layout.labelled(text)
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
    return block, faults, lines, read_bytes


def in_order(
    pool: Executor, parse: Callable[[bytes], ParsedBlock], texts: Iterator[bytes], ahead: int
) -> Iterator[ParsedBlock]:
    """Parse the texts on the pool, `ahead` of them in advance, and yield the results in order."""
    parts: deque[Future[ParsedBlock]] = deque()
    for text in texts:
        parts.append(pool.submit(parse, text))
        if len(parts) > ahead:
            yield parts.popleft().result()
    while parts:
        yield parts.popleft().result()


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
