"""`adaptive-rec data prepare` on generated Criteo TSV: rows a second, and the most memory it held.

.venv/bin/python -m benchmarks.prepare --rows 20000000     # one column of half as many ids; needs 15 GB of disk
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import njit

from adaptive_rec.config.data import CRITEO_KAGGLE_ROWS
from adaptive_rec.kernels.synthetic import hash_at, mix64, unit
from benchmarks.common.command import parser

BLOCK_ROWS = 1 << 16
LARGE_COLUMN = 2
ROW_BYTES = 1 + 13 * 11 + 26 * 9 + 1
LARGE_RATIO = 0.505
"""Ids of the largest column for each row. Some hash values coincide, so that a little over half is left of them."""


@njit(nogil=True, cache=False)
def write_number(value, base, digits, out, p):
    """Digits of `value` at byte `p`; returns the byte after them."""
    start = p
    while value or p == start:
        digit = value % base
        out[p] = digits[digit]
        value //= base
        p += 1
    for k in range((p - start) // 2):
        out[start + k], out[p - 1 - k] = out[p - 1 - k], out[start + k]
    return p


@njit(nogil=True, cache=False)
def write_rows(first, rows, key, cardinality_F, large_ids, digits, out):
    """Text of rows: one in ten values is missing, ids of a column are popular by a power law. Returns its bytes."""
    p = 0
    ten, sixteen = np.uint64(10), np.uint64(16)
    for row in range(first, first + rows):
        row_key = hash_at(key, row)
        out[p] = 48 + (unit(hash_at(row_key, 99)) < 0.25)
        p += 1
        for x in range(13):
            out[p] = 9
            p += 1
            u = unit(hash_at(row_key, x))
            if u > 0.1:
                p = write_number(np.uint64((1.0 / u) ** 3), ten, digits, out, p)
        for f in range(26):
            out[p] = 9
            p += 1
            u = unit(hash_at(row_key, 13 + f))
            if f == LARGE_COLUMN:
                number = np.uint64(row * 7919 % large_ids)
            elif u < 0.1:
                continue
            else:
                number = np.uint64(cardinality_F[f] ** ((u - 0.1) / 0.9))
            p = write_number(mix64(number * np.uint64(32) + np.uint64(f)) >> np.uint64(32), sixteen, digits, out, p)
        out[p] = 10
        p += 1
    return p


def generate(path: Path, first_row: int, rows: int, large_ids: int) -> None:
    """Write rows of one stream to a file, each one of `large_ids` ids of column C3 in turn."""
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    cardinality_F = np.array(CRITEO_KAGGLE_ROWS, dtype=np.float64)

    def block(first: int) -> bytes:
        out = np.empty(BLOCK_ROWS * ROW_BYTES, dtype=np.uint8)
        count = min(BLOCK_ROWS, first_row + rows - first)
        return out[: write_rows(first, count, np.uint64(1), cardinality_F, large_ids, digits, out)].tobytes()

    starts = range(first_row, first_row + rows, BLOCK_ROWS)
    with path.open("wb") as file, ThreadPoolExecutor(2) as pool:
        for k in range(0, len(starts), 8):
            for text in pool.map(block, starts[k : k + 8]):
                file.write(text)


def measure(sources: list[Path], out: Path, options: list[str]) -> dict[str, float]:
    """Prepare in a process of its own; seconds, and the most anonymous memory seen every 20 ms."""
    command = [sys.executable, "-m", "adaptive_rec", "data", "prepare", *map(str, sources), "--out", str(out), *options]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "COLUMNS": "120"})
    peak_kib = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        peak_kib = max(
            peak_kib, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0
        )
        time.sleep(0.02)
    if process.wait():
        raise SystemExit(f"data prepare ended with {process.returncode}")
    seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_anonymous_bytes": 1024 * peak_kib,
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--rows", type=int, default=2_000_000)
    line.add_argument("--files", type=int, default=2, help="rows are spread over as many files")
    line.add_argument("--folder", type=Path, default=Path("/tmp/adaptive-rec-prepare"))
    line.add_argument("--keep", action="store_true", help="leave the generated files and what was made of them")
    args, options = line.parse_known_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    sources = [args.folder / f"day_{day}.tsv" for day in range(args.files)]
    for day, path in enumerate(sources):
        if not path.exists():
            rows = args.rows // args.files
            generate(path, day * rows, rows, int(args.rows * LARGE_RATIO))
    out = args.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    result = measure(sources, out, options)
    meta = json.loads((out / "meta.json").read_text())
    result |= {"rows": meta["rows"], "rows_per_second": meta["rows"] / result["seconds"]}
    result |= {
        "largest_table_rows": max(table["rows"] for table in meta["tables"]),
        "cores": len(os.sched_getaffinity(0)),
    }
    result["source_bytes"] = sum(path.stat().st_size for path in sources)
    print(json.dumps(result, indent=1))
    if not args.keep:
        shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
