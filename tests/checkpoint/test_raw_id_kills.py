"""A run on a CSV file with raw ids that lose their rows, killed at steps one after the other, ends as the uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.run.training_run import TrainingRun
from tests.checkpoint.contents import newest_contents
from tests.settings import AS_IN_MEMORY

KILLED = """
import os, sys, threading, time
from numba.core.registry import cpu_target
from adaptive_rec.cli import warm
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.runtime.steps import TrainingSteps

row_log._LEAST_SEGMENT_BYTES, row_log._KEPT_BYTES = 8192, 0
make, execute = TrainingSteps.make, warm.execute

def execute_and_kill(order):
    def kill():
        time.sleep(order["kill_after_seconds"])
        os.kill(os.getpid(), 9)

    def killed(self, work, probe):
        if self._state.step + 1 == order["kill_at"]:
            threading.Thread(target=kill).start()
        make(self, work, probe)

    TrainingSteps.make = killed
    return execute(order)

warm.execute = execute_and_kill
cpu_target.typing_context.refresh()  # half a second, at the first kernel of a process
cpu_target.target_context.refresh()
sys.exit(warm.serve())
"""
"""A process that forks for each command line; the fork is killed soon after it has begun a step. Forks load no libraries."""

STEPS, BATCH, ROWS = 236, 32, 60
SETTINGS = [
    "data.ids=raw", f"data.max_table_rows={ROWS}", "data.shared_rows=3", f"run.batch_size={BATCH}", f"run.steps={STEPS}",
    "run.device=cpu", "run.threads=1", "model.bottom_mlp=[8]", "model.top_mlp=[8]", "knobs.admit_after=2",
    "knobs.evict_ratio=0.25", "knobs.reclassify_every=20", "knobs.sample_ratio=1", "knobs.hot_budget_bytes=8KiB",
    "checkpoint.every_steps=7", *AS_IN_MEMORY,
]  # fmt: skip
KILL_SECONDS = 0.03
"""Longer than a step and what follows it."""


def settings_of(folder: Path) -> list[str]:
    """Write a CSV file whose ids are others after every 70 steps, more than its tables have rows. Returns the settings to train
    on it."""
    dice, rows = random.Random(4), ["label,user,item,price"]
    for row in range((STEPS + 30) * BATCH):
        age = row // (70 * BATCH) * 10**9
        user, item = (age + int(dice.paretovariate(0.5)) % 300 for _ in range(2))
        rows.append(f"{dice.randrange(2)},{user},item {item},{dice.random():.3f}")
    (folder / "clicks.csv").write_text("\n".join(rows) + "\n")
    schema = folder / "schema.toml"
    schema.write_text('label = "label"\ndense = ["price"]\nsparse = [{ column = "user", type = "integer" }, "item"]\n')
    return [*SETTINGS, f"data.source={folder / 'clicks.csv'}", f"data.schema_file={schema}"]


def final_state(out: Path) -> dict[str, Any]:
    return newest_contents(out) | {"quality": json.loads((out / "summary.json").read_text())["eval"]}


def check(folder: Path, kills: Iterable[int], *where: str, under: Sequence[str] = ()) -> None:
    """`under`: settings of both runs, `where`: of the killed one."""
    seed = int(os.environ.get("ADAPTIVE_REC_KILL_SEED", random.randrange(1 << 30)))
    print(f"seed of the kills: {seed} (ADAPTIVE_REC_KILL_SEED={seed} makes them again)")
    dice, settings = random.Random(seed), [*settings_of(folder), *under]
    straight = TrainingRun(load_config("tiny", {}, settings), folder / "straight")
    list(straight.events())
    evicted = straight.finish()["keys"]["evicted"]
    assert evicted > 50 or "knobs.policy=fae" in under
    assert straight.runtime.step_number == STEPS
    words = ["tiny", *(f"--set={setting}" for setting in [*settings, *where])]
    log = folder / "log.txt"
    with subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as warm:
        assert warm.stdin
        assert warm.stdout
        for step in [*kills, 0]:  # 0: at none
            begun = (folder / "run" / "config.toml").exists()
            command = ["train", *([] if begun else words), "--no-serve", "--json", "--resume", "--out", str(folder / "run")]
            seconds = KILL_SECONDS * dice.random()
            order = {"words": command, "log": str(log), "kill_at": step, "kill_after_seconds": seconds}
            warm.stdin.write(json.dumps(order) + "\n")
            warm.stdin.flush()
            code = int(warm.stdout.readline())
            assert code == (-9 if step else 0), f"killed at step {step}, after {seconds:.6f} s: {log.read_text()}"
    wanted, got = final_state(folder / "straight"), final_state(folder / "run")
    assert {name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name)} == set()


@pytest.mark.slow
def test_a_run_with_raw_ids_killed_three_times_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """While ids are about to leave, when their rows are cleared, and when the rows are given to others."""
    check(tmp_path, (95, 160, 215))


@pytest.mark.slow
@pytest.mark.parametrize(
    "under",
    [
        ["knobs.policy=cdlrm", "knobs.evict_ratio=0", "knobs.evict_after=30", "knobs.lookahead_batches=9"],
        ["knobs.policy=fae", "knobs.evict_ratio=0"],
    ],
    ids=["cdlrm", "fae"],
)
def test_a_run_under_a_policy_that_arranges_the_stream_ends_as_the_uninterrupted_one(tmp_path: Path, under: list[str]) -> None:
    """Killed before the first checkpoint, in a window, while ids are about to leave, when their rows are given to others."""
    check(tmp_path, (3, 95, 160, 215), under=under)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("where", ["run.host_memory=0", "run.host_memory=1MiB"], ids=["memory", "disk"])
def test_a_run_with_raw_ids_killed_at_each_of_60_steps_ends_as_the_uninterrupted_one(tmp_path: Path, where: str) -> None:
    check(tmp_path, range(161, 221), where)
