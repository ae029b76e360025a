"""A run of ranks with a device each that is saved, resumed, steered and refused. Devices and messages are late by a seed.

Two tests train in processes that torchrun starts: on devices that are prompt, and, where there are two GPUs, on these.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.peers.rank_peers import RankPeers
from adaptive_rec.errors import ConfigError, MemoryPlanError, TrainingError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import assemble, check_group
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_streams import LateStreams
from tests.doubles.late_threads import LateThreads
from tests.runtime import device_ranks
from tests.runtime.test_processes import config
from tests.runtime.test_resumed_ranks import tables_of, trained


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have this machine four GPUs, which are late devices. Returns the numbers of those that ranks take."""
    seeds, taken = itertools.count(), []
    monkeypatch.setattr("adaptive_rec.runtime.assemble.choose_device", lambda config: torch.device("cuda"))
    monkeypatch.setattr("adaptive_rec.embedding.staged.cuda_streams.CudaStreams", lambda device, graphs: LateStreams(next(seeds)))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


@pytest.mark.parametrize("steps", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_a_checkpoint_of_ranks_with_devices_goes_on_under_any_number(tmp_path: Path, gpus: list[int], steps: int) -> None:
    whole = trained(tmp_path / "whole", 1, f"run.steps={steps}")
    trained(tmp_path / "2", 2, f"run.steps={steps // 2}", f"checkpoint.every_steps={steps // 6}")
    assert len(gpus) == 2  # a run of one process takes the present one

    for ranks in (1, 3):
        out = shutil.copytree(tmp_path / "2", tmp_path / f"2-{ranks}")
        summary = trained(out, ranks, f"run.steps={steps}", resume=True)
        assert summary["row_updates"] == whole["row_updates"]
        assert summary["train_logloss"] == pytest.approx(whole["train_logloss"], rel=1e-12)
        assert summary["eval"]["auc"] == pytest.approx(whole["eval"]["auc"], rel=1e-9)
        for one, other in zip(tables_of(tmp_path / "whole"), tables_of(out), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


def test_a_loss_that_is_not_finite_ends_all_ranks_at_one_step(memory_source: Any, gpus: list[int]) -> None:
    whole = assemble(config())
    batches = list(whole.batches())[:40]
    dense_BX = batches[3].dense_BX.copy()
    dense_BX[-1, 0] = np.nan  # a sample of the last rank
    batches[3] = batches[3].__class__(dense_BX, batches[3].ids_N, batches[3].offsets, batches[3].labels_B)
    source = memory_source(batches, whole.source.tables, whole.source.features)

    def of_rank(group: Group) -> tuple[str, int]:
        runtime = assemble(config("knobs.report_every=100"), source, group=group)
        with pytest.raises(TrainingError) as caught:
            list(runtime.run())
        return str(caught.value), runtime.step_number

    one, other = LateThreads.train(2, of_rank)
    assert one == other
    assert "those of step 4 are not" in one[0]
    assert "dense feature 0 of sample 15" in one[0]


def test_batches_smaller_than_the_number_of_ranks(memory_source: Any, gpus: list[int]) -> None:
    whole = assemble(config("run.batch_size=2", "run.steps=7"))
    batches = list(whole.batches())

    def losses(group: Group) -> list[float]:
        source = memory_source(batches, whole.source.tables, whole.source.features)
        runtime = assemble(config("run.batch_size=2"), source, group=group)
        return [report.loss for report in runtime.run() if isinstance(report, Snapshot)]

    alone = losses(Alone())
    for several in LateThreads.train(4, losses):
        np.testing.assert_allclose(several, alone, rtol=1e-12)


def test_a_budget_that_one_rank_cannot_place_is_refused_by_all(gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tier, answers, short_of_memory = HotRows._make_tier, [], []

    def short(self: HotRows, capacities: list[int]) -> Any:
        if self in short_of_memory and sum(capacities) > 40:
            raise torch.OutOfMemoryError("rank 1 has no room")
        return tier(self, capacities)

    monkeypatch.setattr(HotRows, "_make_tier", short)

    def of_rank(group: Group) -> tuple[Runtime, list[str]]:
        runtime, kinds = assemble(config("knobs.hot_budget_bytes=600", "run.steps=25"), group=group), []
        if group.rank == 1:
            short_of_memory.append(runtime.store.hot)
        for report in runtime.run():
            if isinstance(report, Event):
                kinds.append(f"{report.step} {report.kind}")
            elif group.rank == 0 and report.step == 10:
                runtime.mailbox.send(Command("change_knobs", {"hot_budget_bytes": 100_000}, answers.append))
            elif group.rank == 0 and report.step == 20:
                runtime.mailbox.send(Command("change_knobs", {"hot_budget_bytes": 400}, answers.append))
        return runtime, kinds

    found = LateThreads.train(2, of_rank)
    assert [kinds for _, kinds in found][0] == [kinds for _, kinds in found][1]
    assert {runtime.knobs.hot_budget_bytes for runtime, _ in found} == {400}
    assert {runtime.step_number for runtime, _ in found} == {25}
    assert "rank 1 has no room" in str(answers[0])
    assert answers[1]["step"] == 21


def test_a_step_that_one_device_has_no_room_for_ends_the_run(gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    gather = RankPeers.gather

    def short(self: RankPeers, *arguments: Any) -> None:
        if self.group.rank == 1 and self._index.placement.version > 2:
            raise torch.OutOfMemoryError("no room")
        gather(self, *arguments)

    monkeypatch.setattr(RankPeers, "gather", short)
    with pytest.raises(MemoryPlanError, match="device's memory must hold a step.*seen by rank 1.*no room"):
        LateThreads.train(2, lambda group: list(assemble(config(), group=group).run()))


def test_a_stop_waits_for_no_batch_that_another_rank_has_dropped(gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits for the requests of a batch that rank 1, which is slower, has not begun to stage."""
    stage = RankPeers.stage

    def slow(self: RankPeers, work: Any) -> None:
        stage(self, work)
        time.sleep(0.03 * (self.group.rank == 1))

    monkeypatch.setattr(RankPeers, "stage", slow)

    def of_rank(group: Group) -> int:
        runtime = assemble(config("knobs.prefetch_depth=5"), group=group)
        for report in runtime.run():
            if group.rank == 0 and isinstance(report, Snapshot) and report.step == 9:
                runtime.mailbox.send(Command("stop"))
        assert runtime.evaluate() is not None
        return runtime.step_number

    assert LateThreads.train(3, of_rank) == [10, 10, 10]


def test_more_processes_than_gpus_are_refused(gpus: list[int]) -> None:
    policy = load_policy("hotline")
    check_group(config(), policy, 4)
    with pytest.raises(ConfigError, match="run.device=cuda needs a GPU for each process.*got 5 processes and 4 GPUs"):
        check_group(config(), policy, 5)


@pytest.mark.slow
def test_ranks_in_processes_equal_one(tmp_path: Path) -> None:
    in_processes(tmp_path, "prompt")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs on this machine")
def test_ranks_on_two_gpus_equal_one(tmp_path: Path) -> None:
    in_processes(tmp_path, "cuda")


def in_processes(folder: Path, device: str) -> None:
    """Train with two ranks that torchrun starts, and compare their rows with those of one process on a CPU."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(device_ranks.__file__)
    variables = {**os.environ, "PYTHONPATH": str(script.parents[2]), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(script), str(folder), device], check=True, env=variables, timeout=240)

    runtime = assemble(config(*device_ranks.SETTINGS, "run.device=cpu"))
    list(runtime.run())
    for table, spec in enumerate(runtime.store.space.tables):
        expected, whole = runtime.store.contents.export(table)[0], np.full((spec.rows, spec.dim), np.nan)
        for rank in range(2):
            found = np.load(folder / f"{rank}.npz")
            whole[found[f"ids{table}"]] = found[f"rows{table}"]
        np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-10)
