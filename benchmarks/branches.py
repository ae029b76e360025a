"""What ten branches of a run take on the disk: right after branching, and after each has trained on with checkpoints of its own.

One run trains to a checkpoint of all its rows; ten branches begin there, each with another learning rate, and train on. Bytes are
those that the file system has given to all directories together, a file with several names counted once.

    python -m benchmarks.branches --policy hotline --rows 500000 --branches 10 --steps 30
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import load_config
from adaptive_rec.run.branching import make_branch
from adaptive_rec.run.training_run import TrainingRun
from benchmarks.common.command import parser


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--policy", default="hotline")
    line.add_argument("--rows", type=int, default=500_000, help="the most rows of a table of Criteo Kaggle's")
    line.add_argument("--branches", type=int, default=10)
    line.add_argument("--steps", type=int, default=30, help="steps of the run, and of each branch after it")
    line.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = line.parse_args()
    settings = [
        f"knobs.policy={args.policy}", f"run.steps={args.steps}", f"data.max_table_rows={args.rows}", "data.source=synthetic",
        "data.synthetic.samples=2000000", "data.synthetic.test_samples=2000", "eval.count=0", "checkpoint.every_seconds=0",
        "run.device=cpu", *args.set,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(dir=".") as folder:
        print(json.dumps(measure(Path(folder), settings, args.branches, args.steps), indent=1))


def measure(folder: Path, settings: list[str], branches: int, steps: int) -> dict[str, Any]:
    train(TrainingRun(load_config("criteo_kaggle", {}, settings), folder / "run"))
    one = disk_bytes([folder / "run"])
    outs = [folder / f"branch-{number}" for number in range(branches)]
    began = time.perf_counter()
    for number, out in enumerate(outs):
        make_branch(
            folder / "run", None, out, {}, [f"knobs.lr_factor={0.5 + number / 10}", f"run.steps={2 * steps}"], ""
        )
    seconds = (time.perf_counter() - began) / branches
    after = disk_bytes([folder / "run", *outs])
    for out in outs:
        train(TrainingRun(load_config(str(out / "config.toml"), {}), out, resume=True))
    trained = disk_bytes([folder / "run", *outs])
    return {
        "run_bytes": one, "branched": after / one, "trained_on": trained / one, "seconds_per_branch": seconds,
        "own_bytes_per_branch": (trained - one) / branches,
    }  # fmt: skip


def train(run: TrainingRun) -> None:
    for _ in run.events():
        pass
    run.finish()


def disk_bytes(folders: list[Path]) -> int:
    """Return the bytes that all files in some folders take, each file once."""
    found = {}
    for path in (path for folder in folders for path in folder.rglob("*")):
        about = os.lstat(path)
        found[about.st_dev, about.st_ino] = 512 * about.st_blocks
    return sum(found.values())


if __name__ == "__main__":
    main()
