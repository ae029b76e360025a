"""The study of staleness rules: does skipping what a rule calls stale lose less than skipping as much at random?

    python -m benchmarks.staleness --data FOLDER [--streams stationary drifting criteo globo] [--seeds 8] [--out FOLDER]
    python -m benchmarks.staleness --data FOLDER --timed --streams stationary --seeds 3

Every run trains on the same stream from the same initialisation in the same order as the run of its seed that skips nothing,
and is scored on the same held-out samples. A run whose result is on disk is not made again. Results: JSON for each run,
table.md, frontier.svg. `--timed` makes runs one at a time, all variants of a seed in turn, for the seconds they take: on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.command import data_folder, parser
from benchmarks.common.results import write
from benchmarks.staleness.plan import STREAMS, TIMED, VARIANTS, Stream, Variant


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--data", type=Path, default=data_folder(), help="folder of test data")
    line.add_argument("--streams", nargs="*", choices=STREAMS, default=list(STREAMS))
    line.add_argument(
        "--variants", nargs="*", choices=[variant.name for variant in VARIANTS], help="some of them only"
    )
    line.add_argument("--seeds", type=int, default=8, help="seeds 1 to N")
    line.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    line.add_argument("--timed", action="store_true", help="runs one at a time, for their seconds only")
    line.add_argument("--out", type=Path, default=Path("studies/staleness"))
    line.add_argument("--one", nargs=3, metavar=("STREAM", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    args = line.parse_args()
    if args.one:
        make_run(args, *args.one)
        return
    out = args.out
    if args.timed:
        args.jobs, args.out = 1, out / TIMED
    chosen = [variant for variant in VARIANTS if args.variants is None or variant.name in args.variants]
    wanted = [
        (stream, variant.name, str(seed))
        for seed in range(1, args.seeds + 1) for stream in args.streams for variant in chosen
    ]  # fmt: skip
    left = [job for job in wanted if not result_path(args.out, *job).exists()]
    print(f"{len(wanted)} runs, {len(left)} to make; seeds 1 to {args.seeds}", flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = sum(pool.map(lambda job: make_in_process(args, job), left))
    from benchmarks.staleness.report import report

    report(out)
    if failed:
        raise SystemExit(f"{failed} runs failed")


def result_path(out: Path, stream: str, variant: str, seed: str) -> Path:
    return out / stream / f"{variant.replace(' ', '-').replace(',', '')}-{seed}.json"


def make_in_process(args: argparse.Namespace, job: tuple[str, str, str]) -> bool:
    """Make a run in a process of its own. Whether it failed."""
    began = time.time()
    command = [sys.executable, "-m", "benchmarks.staleness", "--data", args.data, "--out", args.out, "--one", *job]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=Path.cwd(), check=False)
    told = done.stdout.strip() if done.returncode == 0 else f"FAILED\n{done.stderr[-2000:]}"
    print(f"{' / '.join(job)}: {told} ({time.time() - began:.0f} s)", flush=True)
    return done.returncode != 0


def make_run(args: argparse.Namespace, stream_name: str, variant_name: str, seed: str) -> None:
    stream, variant = STREAMS[stream_name], next(one for one in VARIANTS if one.name == variant_name)
    settings = [*settings_of(stream, variant, args), f"run.seed={seed}"]
    train(settings, result_path(args.out, stream_name, variant_name, seed))


def train(settings: list[str], path: Path) -> None:
    """Train and score; leave what came out as JSON."""
    from adaptive_rec.system.openmp import wait_briefly

    wait_briefly(os.environ)
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.live.telemetry import Event
    from adaptive_rec.runtime.assemble import assemble

    runtime = assemble(load_config(None, {}, settings))
    events = [
        report.as_dict() for report in runtime.run() if isinstance(report, Event) and report.kind in ("guard", "memory")
    ]
    evaluation = runtime.evaluate()
    assert evaluation is not None
    counts = runtime.state.counts()
    result: dict[str, Any] = {
        "settings": settings,
        "auc": evaluation.quality.auc,
        "logloss": evaluation.quality.logloss,
        "calibration": evaluation.quality.calibration,
        "trained": counts["samples_trained"] / counts["samples_seen"],
        "popular": counts["samples_popular"] / counts["samples_seen"],
        "hot_lookups": counts["lookups_hot"] / counts["lookups"],
        "samples": counts["samples_seen"],
        "seconds": runtime.recorder.seconds,
        "events": events,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, result)
    print(f"AUC {result['auc']:.5f}, logloss {result['logloss']:.5f}, trained {result['trained']:.3f}")


def settings_of(stream: Stream, variant: Variant, args: argparse.Namespace) -> list[str]:
    own = ["run.steps=0", "run.threads=1", "run.device=cpu", *stream.settings]
    if stream.file:
        path = args.data / stream.file if (args.data / stream.file).exists() else args.out / "data" / stream.file
        own.append(f"data.source={json.dumps(str(path))}")
    return [*own, *variant.settings]


if __name__ == "__main__":
    main()
