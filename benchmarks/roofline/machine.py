"""What the memory of this machine gives: bytes in a row, and rows at random places of a table that no cache holds."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit, prange, set_num_threads
from numpy.typing import NDArray

from adaptive_rec.kernels.jit import FASTMATH
from adaptive_rec.kernels.prefetch import prefetch_row
from adaptive_rec.kernels.row_vectors import subtract_scaled, sum_rows

ROW_BYTES = (64, 128, 256, 512)
TABLE_BYTES = 2 << 30
TOUCHED_BYTES = 64 << 20
LINES = 256 << 20
_ROWS_AHEAD = 32
_JIT = {"nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
_PARTS = 8


@dataclass(frozen=True)
class Roof:
    """Rates of this machine's memory."""

    sequential: dict[int, dict[str, float]]
    """Bytes a second by threads: read, written."""
    rows: list[dict[str, Any]]
    """Nanoseconds of a random row: `bytes`, `threads`, `huge` pages or not, `read`, `changed`."""

    @staticmethod
    def read(values: dict[str, Any]) -> Roof:
        """Return what a file has kept, whose keys are texts."""
        return Roof({int(threads): speed for threads, speed in values["sequential"].items()}, values["rows"])

    def row(self, size: int, threads: int, what: str) -> float:
        """Seconds of a random row of `size` bytes in huge pages, interpolated between the measured sizes; below 64 bytes a row
        is a line of 64."""
        known = sorted((one["bytes"], one[what]) for one in self.rows if one["threads"] == threads and one["huge"])
        return float(np.interp(size, *zip(*known, strict=True))) / 1e9


@njit(parallel=True, **_JIT)
def _read_rows(table_RD, row_N, out_PD):
    for p in prange(_PARTS):
        for i in range(len(row_N) * p // _PARTS, len(row_N) * (p + 1) // _PARTS, _ROWS_AHEAD):
            end = min(i + _ROWS_AHEAD, len(row_N))
            for n in range(i, end):
                prefetch_row(table_RD, row_N[min(n + _ROWS_AHEAD, len(row_N) - 1)])
            sum_rows(table_RD, table_RD, row_N, i, end, out_PD, p)


@njit(parallel=True, **_JIT)
def _change_rows(table_RD, row_N, change_1D):
    for p in prange(_PARTS):
        for n in range(len(row_N) * p // _PARTS, len(row_N) * (p + 1) // _PARTS):
            prefetch_row(table_RD, row_N[min(n + _ROWS_AHEAD, len(row_N) - 1)])
            subtract_scaled(table_RD, row_N[n], np.float32(1e-3), change_1D, 0)


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Return the median time of a call, after one that does not count."""
    call()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return float(np.median(found))


def measure(threads: tuple[int, ...], rounds: int, small: bool) -> Roof:
    """Measure this machine; `small` is for rehearsals, with a table that caches hold."""
    shrink = 256 if small else 1
    sequential: dict[int, dict[str, float]] = {}
    line, before = torch.ones(LINES // 4 // shrink), torch.get_num_threads()
    for count in threads:
        torch.set_num_threads(count)
        sequential[count] = {
            "read": line.nbytes / seconds(line.sum, rounds),
            "written": line.nbytes / seconds(lambda: line.fill_(1.0), rounds),
        }
    torch.set_num_threads(before)
    rows, dice = [], np.random.default_rng(1)
    for huge in (True, False):
        memory = _table(TABLE_BYTES // shrink, huge)
        for size in ROW_BYTES:
            table_RD = memory.reshape(-1, size // 4)
            row_N = dice.integers(0, len(table_RD), TOUCHED_BYTES // shrink // size)
            out_PD, change_1D = np.zeros((_PARTS, size // 4), np.float32), np.ones((1, size // 4), np.float32)
            for count in threads:
                set_num_threads(count)
                read = seconds(lambda rows=table_RD, at=row_N, out=out_PD: _read_rows(rows, at, out), rounds)
                changed = seconds(lambda rows=table_RD, at=row_N, by=change_1D: _change_rows(rows, at, by), rounds)
                per_row = {"read": 1e9 * read / len(row_N), "changed": 1e9 * changed / len(row_N)}
                rows.append({"bytes": size, "threads": count, "huge": huge, **per_row})
        del table_RD, memory
    return Roof(sequential, rows)


def _table(size: int, huge: bool) -> NDArray[np.float32]:
    """Return memory of so many bytes, written once, in huge pages or in pages of 4 KiB."""
    mapped = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE if huge else getattr(mmap, "MADV_NOHUGEPAGE", 15))
    found = np.frombuffer(mapped, np.float32)
    found[:] = 1.0
    return found
