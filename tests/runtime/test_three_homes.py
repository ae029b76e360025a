"""Runs on a simulated device with rows in host memory and on a disk, from the command line: what is refused, and runs that are
killed, resumed, and moved between homes."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.cli import main
from adaptive_rec.config import tree
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.cold.cascade import Cascade
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.errors import DiskError
from adaptive_rec.live.shared_state import StateReader
from adaptive_rec.live.telemetry import Event
from adaptive_rec.memory.rows import IN_MEMORY
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.assemble import assemble, plan_memory
from adaptive_rec.runtime.dense_optimizer import build_dense_optimizer
from adaptive_rec.runtime.run_options import RunOptions
from tests import forked
from tests.checkpoint.contents import newest_contents
from tests.doubles.late_streams import LateStreams

HOMES = ["run.host_memory=24KiB", "knobs.hot_budget_bytes=8KiB"]


@pytest.fixture
def simulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs find a device, which is simulated, unless they are to be on a CPU."""
    monkeypatch.setattr(
        assembling, "choose_device", lambda config: torch.device("cpu" if config.run.device == "cpu" else "cuda")
    )
    monkeypatch.setattr("adaptive_rec.embedding.staged.cuda_streams.CudaStreams", lambda *_: LateStreams(3))
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


def rows_of(out: Path) -> dict[str, Any]:
    """The rows, and the dense part, of the newest checkpoint."""
    return {name: value for name, value in newest_contents(out).items() if name.startswith(("C", "dense"))}


@pytest.mark.parametrize(("device", "may_be", "shared"), [("cuda", True, False), ("auto", True, False), ("auto", False, True),
                                                          ("cpu", True, True)])  # fmt: skip
def test_host_memory_sets_the_budget_of_hot_rows_on_a_cpu_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, may_be: bool, shared: bool
) -> None:
    monkeypatch.setattr(tree, "may_have_cuda", lambda: may_be)
    on_disk, on_device = ["run.host_memory=8MiB"], [f"run.device={device}"]
    expected = 7 << 20 if shared else 24 << 10
    assert load_config("tiny", {}, [*on_disk, *on_device]).knobs.hot_budget_bytes == expected
    (tmp_path / "own.toml").write_text('[run]\nhost_memory = "8MiB"\n')
    default = load_config(None, {}, []).knobs.hot_budget_bytes
    found = load_config(str(tmp_path / "own.toml"), {}, on_device)
    assert found.knobs.hot_budget_bytes == (7 << 20 if shared else default), "the device may be named in another layer"


def test_hot_rows_on_a_device_may_take_more_than_the_host_memory(simulated_device: None, tmp_path: Path) -> None:
    settings = ["run.host_memory=6KiB", "knobs.hot_budget_bytes=8KiB", "run.steps=30"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path / "rows"))
    runtime.mailbox.change_knobs(hot_budget_bytes=16 << 10)
    assert [report.kind for report in runtime.run() if isinstance(report, Event) and report.kind == "knobs"] == [
        "knobs"
    ]
    assert runtime.store.hot.tier.hot_rows * 36 > 8 << 10


@pytest.mark.parametrize(("method", "thread"), [("append", "homing"), ("read", "prefetch-stage")])
@pytest.mark.timeout(120)
def test_an_error_of_the_disk_in_a_worker_ends_the_run_soon(
    simulated_device: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, thread: str
) -> None:
    whole, calls = getattr(DiskTier, method), 0

    def fails_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += threading.current_thread().name.startswith(thread)
        if calls == 20:
            raise DiskError("the disk broke")
        return whole(*arguments)

    monkeypatch.setattr(DiskTier, method, fails_once)
    settings = ["run.host_memory=8KiB", "knobs.hot_budget_bytes=4KiB", "run.steps=200", "run.classify_threads=1"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path / "rows"))
    before = threading.active_count()
    with pytest.raises(DiskError, match="the disk broke"):
        list(runtime.run())
    assert 0 < runtime.step_number < 60
    assert threading.active_count() <= before, "no worker is left behind"


def test_the_plan_has_the_rows_in_memory_to_the_byte(simulated_device: None, tmp_path: Path) -> None:
    config = load_config("tiny", {}, HOMES)
    runtime = assemble(config, options=RunOptions(rows=tmp_path / "rows"))
    store, free = runtime.store, 1 << 40
    assert isinstance(store.cold, Cascade)
    plan = plan_memory(
        config, runtime.source, runtime.policy, runtime.dense.model, build_dense_optimizer, torch.device("cpu"),
        {"host": free, "device": free, "disk": free}, first_batch=True,
    )  # fmt: skip
    parts = {(part.name, part.place): part.bytes for part in plan.parts}
    memory = store.cold.memory
    behind = sum(array[-1].nbytes for pool in range(len(store.space.pools)) for array in memory.arrays(pool))
    lines = sum(array.nbytes for pool in range(len(store.space.pools)) for array in memory.arrays(pool)) - behind
    records = sum(rows.nbytes + 2 * len(rows) for rows in memory.row_of_slot)
    assert parts[IN_MEMORY, "host"] == lines + records > 20_000
    assert 20_000 < lines <= 24 << 10
    addresses = [log.address_R for log in store.cold.types.logs]
    places = [store.index.slot_of_row, store.index.changed_R, memory.slot_of_row, *addresses]
    assert parts["places of rows", "host"] == sum(array.nbytes for array in places)
    assert parts["staging", "host"] == 2 * parts["staging", "device"]


def test_a_served_run_shows_which_cold_rows_are_in_memory(simulated_device: None, tmp_path: Path) -> None:
    config = load_config("tiny", {}, [*HOMES, "run.steps=30"])
    runtime = assemble(config, options=RunOptions(rows=tmp_path / "rows"))
    writer = runtime.publisher.open()
    reader = StateReader(writer.fd, writer.layout)
    assert (reader.placement(lambda arrays: arrays.memory_slot.copy()) == -1).all()
    for _ in runtime.run():
        pass
    slots = reader.placement(lambda arrays: arrays.memory_slot.copy())
    np.testing.assert_array_equal(slots, runtime.store.cold.memory.slot_of_row)  # type: ignore[union-attr]
    assert 0 < np.count_nonzero(slots >= 0) < len(slots)


def train(out: Path, steps: int, *words: str) -> dict[str, Any]:
    settings = [f"--set=run.steps={steps}", "--set=checkpoint.every_steps=7", "--set=run.split=never"]
    assert main(["train", "tiny", "--no-serve", *settings, *words, "--out", str(out)]) == 0
    return dict(json.loads((out / "summary.json").read_text()))


def test_a_run_resumes_in_three_homes_in_memory_on_a_cpu_and_in_three_homes_again(
    simulated_device: None, tmp_path: Path
) -> None:
    homes, memory = [f"--set={each}" for each in HOMES], "--set=run.host_memory=0"
    train(tmp_path / "plain", 40, "--set=knobs.hot_budget_bytes=8KiB")
    run = tmp_path / "run"
    first = train(run, 16, *homes)
    assert 0 < first["memory_rows"] < first["total_rows"] - first["hot_rows"]
    train(run, 24, *homes, "--resume")
    train(run, 30, memory, "--resume")
    last = train(run, 40, *homes, "--resume")

    assert rows_of(run) == rows_of(tmp_path / "plain")
    assert 0 < last["memory_rows"]
    train(run, 44, *homes, "--set=run.device=cpu", "--resume")
    for words in (["eval"], ["checkpoint", "verify"]):
        assert main([*words, str(run)]) == 0
    assert main(["checkpoint", "export", str(run), "--out", str(tmp_path / "tables"), "--as", "npy"]) == 0


@pytest.mark.parametrize(("kills", "steps"), [(1, 60), pytest.param(2, 150, marks=pytest.mark.slow)])
def test_a_run_in_three_homes_that_is_killed_ends_as_the_uninterrupted_one(
    simulated_device: None, tmp_path: Path, kills: int, steps: int
) -> None:
    seed = int(os.environ.get("ADAPTIVE_REC_KILL_SEED", random.randrange(1 << 30)))
    print(f"seed of the kills: {seed} (ADAPTIVE_REC_KILL_SEED={seed} makes them again)")
    dice, out = random.Random(seed), tmp_path / "run"
    settings = ["run.threads=1", "run.split=never", "data.epochs=100", "checkpoint.every_steps=9", f"run.steps={steps}"]
    words = ["tiny", "--no-serve", "--json", *(f"--set={each}" for each in settings)]
    assert main(["train", *words, "--set=knobs.hot_budget_bytes=8KiB", "--out", str(tmp_path / "plain")]) == 0

    command = ["train", *words, *(f"--set={each}" for each in HOMES), "--resume", "--out", str(out)]

    def start(log: Any) -> Any:
        return forked.start(command, log.fileno(), dict(os.environ), first="tests.runtime.simulated_device")

    def newest_step() -> int:
        names = [path.name for path in (out / "checkpoints").glob("step-*")]
        return max((int(name[5:14]) for name in names), default=0)

    with open(tmp_path / "log.txt", "wb") as log:
        for _ in range(kills):
            target, process = newest_step() + dice.randrange(1, steps * 2 // 5), start(log)
            end = time.monotonic() + 120
            while newest_step() < target and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(dice.random() * 0.02)
            process.kill()
            assert process.wait() == -9, f"the run was over before it was killed: {(tmp_path / 'log.txt').read_text()}"
    assert main(command) == 0
    assert rows_of(out) == rows_of(tmp_path / "plain")
