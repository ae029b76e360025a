"""A process that is killed at random moments and started again ends its run as the uninterrupted one does."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.checkpoint.history import names_in_use
from adaptive_rec.config.tree import load_config
from adaptive_rec.run.training_run import TrainingRun
from tests import forked
from tests.checkpoint.contents import newest_contents
from tests.settings import AS_IN_MEMORY

LEAST_STEPS, STEPS_A_KILL = 180, 20
"""A run that is killed must come to its next checkpoint before it gets any further."""
SETTINGS = [
    "run.device=cpu", "run.threads=1", "data.epochs=100", "knobs.reclassify_every=20", "knobs.action=drop",
    "knobs.target_skip_ratio=0.6", "knobs.stale_metric=max_abs",
]  # fmt: skip
RUN = ["tiny", "--no-serve", "--json", "--set=checkpoint.every_steps=9", *(f"--set={setting}" for setting in SETTINGS)]
ON_DISK = ["run.host_memory=1MiB", "knobs.hot_budget_bytes=16KiB", *AS_IN_MEMORY]
WAIT_SECONDS = 120
STARTED_SECONDS = 1.0
"""By then a run trains."""


def start(out: Path, log: Path, policy: str, steps: int, more: Sequence[str]) -> Any:
    words = (
        [*RUN, "--policy", policy, f"--set=run.steps={steps}", *(f"--set={setting}" for setting in more)]
        if not (out / "config.toml").exists()
        else ["--no-serve", "--json"]
    )
    with open(log, "ab") as output:
        command = ["train", *words, "--resume", "--out", str(out)]
        return forked.start(command, output.fileno(), dict(os.environ), first="tests.tiny_segments")


def step_of(out: Path) -> int:
    """How far a run has come, by its newest checkpoint, whole or not."""
    folder = out / "checkpoints"
    names = [name for name in os.listdir(folder) if name.startswith("step-")] if folder.exists() else []
    return max((int(name[5:14]) for name in names), default=0)


def kill_and_go_on(
    out: Path, kills: int, steps: int, end: int, dice: random.Random, policy: str, more: Sequence[str]
) -> list[int]:
    """Start a run again and again, and kill it when it has come a random part of the way, or a random time after its start; then
    let it end. Returns the steps of the newest checkpoints at each kill."""
    log, at = out.parent / "log.txt", []
    for number in range(kills):
        target = step_of(out) + dice.randrange(1, max(2, (end - step_of(out)) // (kills - number + 1)))
        patience = WAIT_SECONDS if not number or dice.random() < 0.75 else dice.random() * STARTED_SECONDS
        process, deadline = start(out, log, policy, steps, more), time.monotonic() + patience
        while step_of(out) < target and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(dice.random() * 0.05)
        process.kill()
        assert process.wait() == -9, f"the run was over before it was killed: {log.read_text()}"
        at.append(step_of(out))
    process = start(out, log, policy, steps, more)
    assert process.wait(WAIT_SECONDS) == 0, log.read_text()
    return at


def final_state(out: Path) -> dict[str, Any]:
    return newest_contents(out) | {"quality": json.loads((out / "summary.json").read_text())["eval"]}


def check(
    tmp_path: Path, kills: int, policy: str, more: Sequence[str] = (), least_steps: int = LEAST_STEPS
) -> None:
    seed = int(os.environ.get("ADAPTIVE_REC_KILL_SEED", random.randrange(1 << 30)))
    print(f"seed of the kills: {seed} (ADAPTIVE_REC_KILL_SEED={seed} makes them again)")
    steps = max(least_steps, STEPS_A_KILL * kills)
    in_memory = [setting for setting in more if not setting.startswith("run.host_memory")]
    settings = [*SETTINGS, f"knobs.policy={policy}", f"run.steps={steps}", *in_memory]
    straight = TrainingRun(load_config("tiny", {}, settings), tmp_path / "straight")
    list(straight.events())
    straight.finish()
    end = straight.runtime.step_number  # where samples are dropped, it comes earlier
    at = kill_and_go_on(tmp_path / "run", kills, steps, end, random.Random(seed), policy, more)
    print(f"killed when the newest checkpoints were of steps {at}")
    assert any(at), "some were killed when they had come somewhere"
    wanted, got = final_state(tmp_path / "straight"), final_state(tmp_path / "run")
    assert wanted["state"]["step"] == end > steps // 3
    assert {name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name)} == set()


@pytest.mark.parametrize(("kills", "least_steps"), [(1, 120), pytest.param(5, LEAST_STEPS, marks=pytest.mark.slow)])
def test_a_run_killed_some_times_ends_as_the_uninterrupted_one(tmp_path: Path, kills: int, least_steps: int) -> None:
    check(tmp_path, kills, "slipstream", least_steps=least_steps)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("policy", ["adaptive", "slipstream_released"])
def test_a_run_killed_many_times_ends_as_the_uninterrupted_one(tmp_path: Path, policy: str) -> None:
    """`ADAPTIVE_REC_KILLS` of them, half for each policy."""
    check(tmp_path, int(os.environ.get("ADAPTIVE_REC_KILLS", "100")) // 2, policy)


def check_on_disk(tmp_path: Path, kills: int, policy: str) -> None:
    """The run with rows on a disk ends as the uninterrupted one in memory, and what killed processes left is removed."""
    check(tmp_path, kills, policy, ON_DISK)
    log, rows = tmp_path / "log.txt", tmp_path / "run" / "rows"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert start(tmp_path / "run", log, policy, summary["steps"], ()).wait(WAIT_SECONDS) == 0, log.read_text()
    folder = tmp_path / "run" / "checkpoints"
    named = {
        path
        for name in names_in_use(DISK, folder, 2)
        if (disk := read_manifest(DISK, folder / name).disk) is not None
        for path, _ in disk[0].segments(folder / name)
    }
    assert set(rows.resolve().rglob("*.rows")) == named


@pytest.mark.slow
def test_a_run_with_rows_on_a_disk_killed_twice_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    check_on_disk(tmp_path, 2, "hotline")


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("policy", ["hotline", "slipstream"])
def test_a_run_with_rows_on_a_disk_killed_many_times_ends_as_the_uninterrupted_one(tmp_path: Path, policy: str) -> None:
    """`ADAPTIVE_REC_KILLS` of them, half for each policy."""
    check_on_disk(tmp_path, int(os.environ.get("ADAPTIVE_REC_KILLS", "100")) // 2, policy)
