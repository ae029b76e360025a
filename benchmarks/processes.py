"""Several processes beside one: bytes that a rank sends for each sample, and samples a second.

    python -m benchmarks.processes CRITEO_TSV                     1 and 2 processes, in turns; about five minutes
    python -m benchmarks.processes CRITEO_TSV --processes 8 --rounds 1

Every run trains in processes of its own by `adaptive-rec train`, for some steps of batches of 2,048 samples a rank. Bytes are
those that `summary.json` counts: requests, rows and gradients sent to other ranks, not the sum of the dense gradients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command import parser
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import SEED

KINDS = ("requests", "rows", "gradients")


def run(data: str, processes: int, batch: int, steps: int, settings: list[str]) -> dict[str, Any]:
    """Train once. Returns the summary."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [
            "train", "criteo_kaggle", f"--data={data}", f"--processes={processes}", f"--steps={steps}", f"--out={out}",
            "--no-serve",
            "--set=checkpoint.every_seconds=0", "--set=eval.max_samples=2048", "--set=data.epochs=100", "--set=run.device=cpu",
            f"--set=run.batch_size={batch}", *(f"--set={setting}" for setting in settings),
        ]  # fmt: skip
        subprocess.run([sys.executable, "-m", "adaptive_rec", *words], check=True, capture_output=True)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def main() -> None:
    parse = parser(__doc__, "benchmarks.processes")
    parse.add_argument("data")
    parse.add_argument("--processes", type=int, nargs="+", default=[2])
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--steps", type=int, default=60)
    parse.add_argument("--samples", type=int, default=2048, help="samples of a batch: of each rank, or with --whole of all ranks")
    parse.add_argument("--whole", action="store_true", help="all runs train the same batches")
    parse.add_argument("--set", action="append", default=[])
    arguments = parse.parse_args()
    dice = np.random.default_rng(SEED)
    numbers = [1, *arguments.processes]
    seconds: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(arguments.rounds):
        for number in dice.permutation(numbers).tolist():
            batch = arguments.samples * (1 if arguments.whole else number)
            summary = run(arguments.data, number, batch, arguments.steps, arguments.set)
            seconds[number].append(summary["seconds"] / summary["samples_seen"])
            if number > 1:
                of_rank = summary["samples_seen"] / number
                parts = {kind: summary["sent_bytes"][kind] / of_rank for kind in KINDS}
                text = ", ".join(f"{kind} {value:.0f}" for kind, value in parts.items())
                print(f"{number} processes: {sum(parts.values()):.0f} bytes a sample and rank ({text})", flush=True)
    for number in arguments.processes:
        found = ratio_of_medians(seconds[1], seconds[number])
        print(
            f"{number} processes: {1 / np.median(seconds[number]):,.0f} samples/s, {found['ratio']:.3f} of one process "
            f"({found['low']:.3f}-{found['high']:.3f})"
        )


if __name__ == "__main__":
    main()
