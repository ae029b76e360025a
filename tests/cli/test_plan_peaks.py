"""What `plan` says a run will hold, against what it then held at its peak: within 5 % on runs of different kinds.

Minutes long: the runs are as long as their hot tiers take to fill, as a plan counts them full. Also a script: it prints the table
of docs/measurements.md, `python tests/cli/test_plan_peaks.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

NEAR = 0.05

CPU = ["run.device=cpu", "data.synthetic.test_samples=20000"]
AT_THE_END = ["checkpoint.every_seconds=0"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "tables of 2 GiB, row-wise Adagrad": (
        "criteo_kaggle",
        [*CPU, *AT_THE_END, "data.train_range=[0.0,0.9]", "data.test_range=[0.9,1.0]", "run.steps=400",
         "knobs.hot_budget_bytes=32MiB"],
    ),
    "rows of 16 bits, Adam, policy adaptive": (  # without trials: so short a run has none, and a plan counts their twins
        "synthetic",
        [
            *CPU, *AT_THE_END, "knobs.policy=adaptive", "run.steps=300", "run.batch_size=1024", "data.max_table_rows=500000",
            "model.embedding_dim=32", "run.row_precision=bf16", "optimizer.embedding=lazy_adam", "optimizer.embedding_lr=0.001",
            "optimizer.dense=Adam", "optimizer.dense_lr=0.001", "knobs.hot_budget_bytes=32MiB",
            "knobs.guard_max_logloss_increase=0",
        ],
    ),
    "a large dense part, bags of 214 ids, saved while it trains": (
        "mlperf_dcnv2",
        [*CPU, "run.steps=60", "run.batch_size=2048", "knobs.hot_budget_bytes=128MiB", "checkpoint.every_steps=40",
         "data.synthetic.test_samples=4096"],
    ),
    "float64, Adagrad, nothing hot": (
        "synthetic",
        [
            *CPU, *AT_THE_END, "knobs.policy=hybrid", "run.steps=300", "run.batch_size=1024", "run.precision=float64",
            "data.max_table_rows=1000000", "optimizer.embedding=adagrad",
        ],
    ),
}  # fmt: skip


def adaptive_rec(command: str, preset: str, settings: list[str], *more: str) -> Any:
    chosen = [word for setting in settings for word in ("--set", setting)]
    # By a shell: Linux counts the memory of whoever starts a program as the program's own peak.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    words = [*shell, sys.executable, "-m", "adaptive_rec", command, preset, *chosen, *more, "--json"]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def compare(preset: str, settings: list[str], out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A plan and the summary of the run. A short run compiles the kernels first: the compiler holds a hundred megabytes."""
    adaptive_rec("train", preset, [*settings, "run.steps=20"], "--no-serve", "--out", str(out.with_name("first")))
    planned = adaptive_rec("plan", preset, settings, "--samples", "0")
    return planned, adaptive_rec("train", preset, settings, "--no-serve", "--out", str(out))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUNS)
def test_a_plan_is_within_five_percent_of_the_peak(name: str, tmp_path: Path) -> None:
    planned, made = compare(*RUNS[name], tmp_path / "run")
    slots = sum(pool["slots"] for pool in planned["hot"])
    assert made["hot_rows"] >= 0.95 * slots, "the run is too short to fill its hot tier"
    assert planned["notes"], "it was rehearsed"
    assert planned["needed_bytes"]["host"] == pytest.approx(made["peak_rss_bytes"], rel=NEAR)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_data_in_memory_are_in_the_plan(criteo_sample: Path, tmp_path: Path) -> None:
    settings = ["run.device=cpu", *AT_THE_END, f"data.source={criteo_sample}"]
    rounds = [compare("criteo_sample", settings, tmp_path / f"{k}" / "run") for k in range(3)]
    planned, made = mean(plan["needed_bytes"]["host"] for plan, _ in rounds), mean(run["peak_rss_bytes"] for _, run in rounds)
    # Nearly all of it is the process itself, which varies by tens of megabytes from one start to the next, here and in the plan.
    assert planned == pytest.approx(made, rel=2 * NEAR)


def main() -> None:
    """Print a line of the table for each run."""
    import tempfile

    print("| run | tables | plan | peak | plan beside peak |\n|---|---|---|---|---|")
    for name, (preset, settings) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            planned, made = compare(preset, settings, Path(folder) / "run")
        tables = sum(part["bytes"] for part in planned["parts"] if part["name"] == "tables")
        sizes = [
            f"{size / 2**20:,.0f} MiB" for size in (tables, planned["needed_bytes"]["host"], made["peak_rss_bytes"])
        ]
        error = planned["needed_bytes"]["host"] / made["peak_rss_bytes"] - 1
        print(f"| {name} | {' | '.join(sizes)} | {error:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
