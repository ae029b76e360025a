"""Tables three times as large as memory, trained for half an hour: their rate beside the same dense part over tables in memory.

The machine may be given less memory than it has (--memory), page cache included, so that the tables fit on its disk. All rows are
written before the first step. The run takes turns with one whose tables are cut until they fit in memory. Memory that cannot be
freed must not grow from the middle to the end. A study that was measured on these sources with these arguments is not repeated.

    python -m benchmarks.disk_tier.study --memory 6GiB
    python -m benchmarks.disk_tier.study --memory 2GiB --minutes 2
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from adaptive_rec.config.data import CRITEO_KAGGLE_ROWS
from adaptive_rec.units import parse_size
from benchmarks.common.command import facts_of_call, parser
from benchmarks.common.machine import commit, fingerprint, here, versions
from benchmarks.common.results import bar, bar_rows, earlier, say, write
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import SEED
from benchmarks.disk_tier.limits import MemoryGroup
from benchmarks.disk_tier.processes import Process
from benchmarks.disk_tier.setup import ALL_COUNTED, IN_MEMORY, OURS, OUT, PLAIN_ZIPF, Setup

TABLES_OF_MEMORY = 3
"""Size of all rows with their optimizer state, in sizes of the memory."""

BASE_BYTES = 1 << 30
"""Memory for Python, torch and the dense part. Rows take half of the rest; the index of the disk and files that are read have the
other half."""

DIM = 64
ROW_BYTES = 4 * DIM + 4
"""A row under row-wise Adagrad."""

LOG_OVER_ROWS = 1.6
"""Free bytes that the disk must have, in bytes of all rows: headers of pages, and values that newer ones replace."""

REFERENCE_ROWS = 4_000_000
LEAST_RATE, MOST_GROWTH = 0.7, 0.02


def arguments() -> argparse.Namespace:
    parse = parser(__doc__, "benchmarks.disk_tier.study")
    parse.add_argument("--memory", default="", help="memory of the run, by default that of the machine")
    parse.add_argument("--minutes", type=float, default=30, help="minutes that the run trains")
    parse.add_argument("--steps", type=int, default=200, help="steps of a turn, and of a window")
    parse.add_argument("--batch-size", type=int, default=2048)
    parse.add_argument("--out", type=Path, default=OUT, help="folder of results, and of rows")
    args = parse.parse_args()
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    args.memory_bytes = parse_size(args.memory) if args.memory else whole
    if args.memory_bytes < 2 * BASE_BYTES:
        parse.error(f"argument --memory: must be at least 2GiB, got {args.memory}")
    args.rows = TABLES_OF_MEMORY * args.memory_bytes // ROW_BYTES
    return args


def check_disk(args: argparse.Namespace) -> None:
    """End where the disk is too small."""
    need, free = int(LOG_OVER_ROWS * args.rows * ROW_BYTES), shutil.disk_usage(args.out).free
    if need > free:
        most = int(free / LOG_OVER_ROWS / TABLES_OF_MEMORY) >> 20
        raise SystemExit(
            f"bench: the disk of {args.out} must have {need / 2**30:.0f} GiB free, {TABLES_OF_MEMORY} times the memory and "
            f"room for newer values, it has {free / 2**30:.0f}; --memory {most}MiB would fit"
        )


def table_rows(rows: int) -> str:
    """Return the setting of Criteo Kaggle's tables, grown or cut in proportion."""
    each = [max(1, of_table * rows // sum(CRITEO_KAGGLE_ROWS)) for of_table in CRITEO_KAGGLE_ROWS]
    return f"data.table_rows=[{','.join(map(str, each))}]"


def setup_of(name: str, args: argparse.Namespace) -> Setup:
    rows = args.rows if name == OURS else min(args.rows, REFERENCE_ROWS)
    settings = (
        PLAIN_ZIPF, ALL_COUNTED, table_rows(rows), f"data.max_table_rows={rows + 1}", f"model.embedding_dim={DIM}",
        f"knobs.reclassify_every={args.steps}",
    )  # fmt: skip
    ratio = (args.memory_bytes - BASE_BYTES) / 2 / (args.rows * ROW_BYTES)
    return Setup(name, "kaggle", "", args.batch_size, ratio, settings, str(args.out / "rows" / f"study-{name}"))


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train both runs in turns. Returns the figures of all turns."""
    runs: dict[str, list[dict[str, Any]]] = {OURS: [], IN_MEMORY: []}
    needed: list[int] = []
    processes: dict[str, Process] = {}
    try:
        for name in runs:
            processes[name] = Process(setup_of(name, args), args.memory_bytes if name == OURS else 0)
            processes[name].answer()
        say(f"  {args.rows:,} rows written, {processes[OURS].peak_bytes / 2**20:.0f} MiB needed")
        trained = 0.0
        while trained < 60 * args.minutes:
            for name, process in processes.items():
                runs[name].append(process.turn(args.steps))
            last = {name: turns[-1]["seconds"] for name, turns in runs.items()}
            trained += args.steps * last[OURS]
            needed.append(processes[OURS].group.needed_bytes)
            say(
                f"  {trained / 60:.1f} min, {args.steps * len(needed)} steps: {1e3 * last[OURS]:.1f} ms, in memory "
                f"{1e3 * last[IN_MEMORY]:.1f}; {needed[-1] / 2**20:.0f} MiB needed"
            )
        facts = {name: process.ask("facts") for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.close()
    return {"turns": runs, "needed_bytes": needed, "facts": facts}


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rate and growth of memory, held against their bounds."""
    seconds = {name: [turn["seconds"] for turn in turns] for name, turns in found["turns"].items()}
    rate = ratio_of_medians(seconds[IN_MEMORY], seconds[OURS])
    needed = found["needed_bytes"]
    middle, end = needed[len(needed) // 2], needed[-1]
    whole = statistics.fmean(seconds[IN_MEMORY]) / statistics.fmean(seconds[OURS])
    return [
        bar("rate beside tables in memory", rate["ratio"], LEAST_RATE, True, [rate["low"], rate["high"]]),
        bar("the same over all turns, the first ones included", whole, LEAST_RATE, True),
        bar("growth of memory from the middle to the end", end / middle - 1, MOST_GROWTH, False),
    ]


def main() -> int:
    args, began = arguments(), time.perf_counter()
    MemoryGroup("try").remove()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process and no group is left behind
    path = args.out / "study.json"
    expected = {"rows": args.rows, "minutes": args.minutes, "steps": args.steps, "batch_size": args.batch_size}
    about = {"fingerprint": fingerprint("disk_tier"), "here": here()}
    old = earlier(path, expected, about)
    if old is None:
        check_disk(args)
        size = args.rows * ROW_BYTES / 2**30
        say(f"{size:.1f} GiB of rows, {args.memory_bytes / 2**30:.1f} GiB of memory; batches drawn from seed 1")
        result = train(args)
        about |= {
            **facts_of_call("benchmarks.disk_tier.study", began),
            "commit": commit(),
            "versions": versions(),
            "seed": SEED,
        }
        old = {**expected, "about": about, "result": result}
        write(path, old)
    say("\n".join(bar_rows(bars(old["result"]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
