"""What a checkpoint costs a run: how long training stands still, what it loses while one is written, how many bytes are written.

Criteo Kaggle's tables (33.8 M rows of 16 components, row-wise Adagrad, 2.3 GB) under a synthetic stream with Zipf's skew: one
checkpoint of all rows, then one of changes after every so many steps. Reported for each: rows and bytes, bytes beside those of
the changed rows alone, the stall (all time that the training thread spent on it, waiting included) for each GB of rows, and the
time of a step while it was written beside that of the same run while none was. From these follows what a checkpoint takes of a
run at the default interval: (stall + seconds of writing x share of the speed lost) / 600 s.

    python -m benchmarks.checkpoints --policy hotline --checkpoints 5 --between 300
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from adaptive_rec.config.checkpoint import CheckpointConfig
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.run.training_run import TrainingRun
from benchmarks.common.command import parser
from benchmarks.common.machine import processor, versions

EVERY = 5
"""Steps from one look at the clock to the next."""


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--policy", default="hotline")
    line.add_argument("--checkpoints", type=int, default=5, help="of changes, after the one of all rows")
    line.add_argument("--between", type=int, default=300, help="steps from one to the next")
    line.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    line.add_argument("--out", type=Path, help="write the figures as JSON")
    args = line.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        found = measure(args, Path(folder))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run that is asked for checkpoints; steps are timed by the clock on the wall, in groups."""
    steps = (args.checkpoints + 3) * args.between
    settings = [
        f"knobs.policy={args.policy}", f"run.steps={steps}", "data.source=synthetic", "data.synthetic.samples=40000000",
        "data.synthetic.test_samples=20000", "eval.every_steps=0", f"knobs.report_every={EVERY}",
        "checkpoint.every_seconds=0", "run.device=cpu", *args.set,
    ]  # fmt: skip
    run = TrainingRun(load_config("criteo_kaggle", {}, settings), folder / "run")
    written, beside, alone = [], [], []
    last: tuple[float, bool] | None = None
    per_row = sum(
        part.shape[1] * part.itemsize for part in (run.runtime.store.host.weights[0], run.runtime.store.host.state[0])
    )
    for report in run.events():
        if isinstance(report, Event) and report.kind == "checkpoint":
            made = folder / "run/checkpoints" / report.details["checkpoint"]
            rows_bytes = sum(path.stat().st_size for path in made.glob("rows-*"))
            changed_bytes = report.details["rows"] * per_row
            written.append({**report.details, "rows_bytes": rows_bytes, "changed_bytes": changed_bytes})
        if not isinstance(report, Snapshot):
            continue
        now, busy = time.perf_counter(), any(thread.name == "checkpoint" for thread in threading.enumerate())
        if last is not None and last[1] == busy:
            (beside if busy else alone).append((now - last[0]) / EVERY)
        last = now, busy
        if report.step % args.between == 0 and report.step <= (args.checkpoints + 1) * args.between:
            run.runtime.mailbox.send(Command("checkpoint"))
            last = None
    shutil.rmtree(folder / "run")
    return {
        "machine": processor(), "versions": versions(), "policy": args.policy, "batch_size": run.config.run.batch_size,
        "step_seconds": {
            "alone": statistics.median(alone), "beside": statistics.median(beside), "groups": [len(alone), len(beside)],
        },
        "checkpoints": written,
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    alone, beside, groups = (found["step_seconds"][name] for name in ("alone", "beside", "groups"))
    interval = CheckpointConfig().every_seconds
    print(f"{found['machine']}; {found['policy']}, batches of {found['batch_size']}")
    print(f"step: {alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms while one is written ({groups} groups of {EVERY})")
    print("| of | rows | rows, MB | bytes / changed rows | stall, ms | ms / GB | written in, s | GB/s | of 600 s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for one in found["checkpoints"]:
        gigabytes = one["changed_bytes"] / 1e9
        lost = one["stall_seconds"] + one["seconds"] * (1 - alone / beside)
        size, stall = one["rows_bytes"] / one["changed_bytes"], one["stall_seconds"] * 1e3
        print(
            f"| {one['kind']} | {one['rows']:,} | {one['changed_bytes'] / 1e6:.0f} | {size:.3f} | {stall:.0f}"
            f" | {stall / gigabytes:.0f} | {one['seconds']:.2f} | {one['size_bytes'] / 1e9 / one['seconds']:.2f}"
            f" | {lost / interval:.2%} |"
        )


if __name__ == "__main__":
    main()
