"""Does `adaptive` keep its promise: that skipping costs no more log loss than `guard_max_logloss_increase`?

    python -m benchmarks.staleness.promise --data FOLDER [--streams sessions jump ...] [--seeds 8] [--out FOLDER]

No constant of the guard was fitted to a stream, so each of them is one that was left out. A run is compared with the run of its
seed whose limit is 0, which skips nothing. The promise is kept where the one-sided 95 % bound of the mean difference (Student's t
over the seeds) is at most the limit. A run whose result is on disk is not made again. Results: JSON for each run, promise.md.

Planted logs are prepared on the first call, which takes pyarrow. Other data must lie prepared under OUT/data: globo,
movietweetings and taobao, by `adaptive-rec data prepare --format`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.offline.compare.statistics import t_quantile
from benchmarks.common.command import data_folder, parser
from benchmarks.staleness.__main__ import result_path, settings_of, train
from benchmarks.staleness.plan import HALF, PROMISE, PROMISE_STREAMS, PROMISE_VARIANTS, WHOLE, Stream, Variant
from benchmarks.staleness.planted import LOGS, prepare
from benchmarks.staleness.report import Runs, differences, mean

AT_DEFAULTS = (0.001, 0.05)
"""Limit and guard_ratio of the knobs."""


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--data", type=Path, default=data_folder(), help="folder of test data")
    line.add_argument("--streams", nargs="*", choices=PROMISE_STREAMS, default=list(PROMISE_STREAMS))
    line.add_argument("--variants", nargs="*", choices=PROMISE_VARIANTS, default=list(PROMISE_VARIANTS))
    line.add_argument("--seeds", type=int, default=8, help="seeds 1 to N")
    line.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    line.add_argument("--out", type=Path, default=Path("studies/staleness"), help="prepared data lie under data/ in it")
    line.add_argument("--one", nargs=3, metavar=("STREAM", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    args = line.parse_args()
    if args.one:
        make_run(args, *args.one)
        return
    for name in set(args.streams) & set(LOGS):
        prepare(name, args.out / "data")
    seeds = map(str, range(1, args.seeds + 1))
    jobs = [(stream, variant, seed) for seed in seeds for stream in args.streams for variant in args.variants]
    left = [job for job in jobs if not result_path(args.out / PROMISE, *job).exists()]
    print(f"{len(jobs)} runs, {len(left)} to make; seeds 1 to {args.seeds}", flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = sum(pool.map(lambda job: make_in_process(args, job), left))
    table = report(args.out / PROMISE)
    (args.out / "promise.md").write_text(table, encoding="utf-8")
    print(table)
    if failed:
        raise SystemExit(f"{failed} runs failed")


def make_in_process(args: argparse.Namespace, job: tuple[str, str, str]) -> bool:
    """Make a run in a process of its own. Whether it failed."""
    began = time.time()
    command = [sys.executable, "-m", "benchmarks.staleness.promise", "--data", args.data, "--out", args.out, "--one", *job]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    came = done.stdout.strip() if done.returncode == 0 else f"FAILED\n{done.stderr[-2000:]}"
    print(f"{' / '.join(job)}: {came} ({time.time() - began:.0f} s)", flush=True)
    return done.returncode != 0


def make_run(args: argparse.Namespace, stream_name: str, variant_name: str, seed: str) -> None:
    stream, own = PROMISE_STREAMS[stream_name], PROMISE_VARIANTS[variant_name]
    if variant_name in ("harsh", "harsh, lower limit"):
        limit, ratio = limits(stream, variant_name)
        own = (*own, f"knobs.guard_max_logloss_increase={limit}", f"knobs.guard_ratio={ratio}")
    settings = [*settings_of(stream, Variant(variant_name, own), args), f"run.seed={seed}"]
    train(settings, result_path(args.out / PROMISE, stream_name, variant_name, seed))


def limits(stream: Stream, variant: str) -> tuple[float, float]:
    """Return the limit and the guard_ratio of a variant's runs."""
    return {"defaults": AT_DEFAULTS, "harsh, lower limit": HALF}.get(variant, stream.looser)


# Report --------------------------------------------------------------------------------------------------------------


def report(out: Path) -> str:
    """Return the table of what is in `out`."""
    lines = [
        "| stream | variant | limit, guard_ratio | seeds | samples | trained | dAUC (least, 95 %) | dlogloss (most, 95 %) "
        "| kept |",
        "|---" * 9 + "|",
    ]
    for name, stream in PROMISE_STREAMS.items():
        whole = load(out, name, WHOLE)
        for variant in PROMISE_VARIANTS:
            runs = load(out, name, variant)
            if variant == WHOLE or len(runs.keys() & whole.keys()) < 2:
                continue
            limit, ratio = limits(stream, variant)
            lost, auc = differences(runs, whole, "logloss"), differences(runs, whole, "auc")
            guarded = variant != "harsh, no guard"
            cells = [
                name, variant, f"{limit:g}, {ratio:g}" if guarded else "", str(len(lost)), f"{mean(runs, 'samples'):,.0f}",
                f"{mean(runs, 'trained'):.4f}", f"{1e3 * auc.mean():+.2f}e-3 ({-1e3 * most(-auc):+.2f}e-3)",
                f"{1e3 * lost.mean():+.2f}e-3 ({1e3 * most(lost):+.2f}e-3)",
                ("yes" if most(lost) <= limit else "NO") if guarded else "",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def load(out: Path, stream: str, variant: str) -> Runs:
    """Results by seed."""
    one = result_path(out, stream, variant, "*")
    found = {path.stem.rpartition("-")[2]: path for path in one.parent.glob(one.name)}
    return {int(seed): json.loads(path.read_text()) for seed, path in found.items() if seed.isdigit()}


def most(values: NDArray[np.float64]) -> float:
    """One-sided 95 % bound of the mean, high."""
    return float(values.mean() + t_quantile(0.95, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


if __name__ == "__main__":
    main()
