"""A run on a CUDA device when it has warmed up: who waits for whom, what memory it takes, what happens at the same time."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.replayed import ReplayedDense
from adaptive_rec.embedding.device import all_rows_bytes
from adaptive_rec.embedding.staged.path import StagedPath
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks.gpu import intervals

pytestmark = pytest.mark.gpu

SETTINGS = [
    "run.split=always", "run.device=cuda", "run.precision=float32", "run.batch_size=512", "run.steps=100",
    "data.table_rows=[1000000, 600000, 300000, 40000, 300]", "data.max_table_rows=1000000", "data.dense_features=4",
    "data.synthetic.samples=400000", "data.synthetic.test_samples=64", "data.synthetic.head_ratio=0.01",
    "data.synthetic.popular_ratio=0.5", "model.embedding_dim=16", "model.bottom_mlp=[64, 32]", "model.top_mlp=[64]",
    "optimizer.embedding=rowwise_adagrad", "optimizer.dense=SGD", "knobs.policy=hotline", "knobs.reclassify_every=10",
    "knobs.report_every=5", "knobs.hot_budget_bytes=2000000", "knobs.prefetch_depth=3", "knobs.sample_ratio=0.5",
]  # fmt: skip


def build(*changes: str) -> Runtime:
    return assemble(load_config(None, {}, [*SETTINGS, *changes]))


def snapshots(runtime: Runtime) -> Iterator[Snapshot]:
    for report in runtime.run():
        if isinstance(report, Snapshot):
            yield report


def record_all_sizes(runtime: Runtime) -> None:
    """Have the dense part record every size of micro-batch there may be, over lines that are all padding."""
    dense, streams = runtime.dense, runtime.store.path.streams  # type: ignore[attr-defined]
    assert isinstance(dense, ReplayedDense)
    for lines in dense._sizes:
        dense.begin_step()
        micro = dense.inputs(lines)
        for tensor in (micro.dense_SX, micro.labels_S, micro.scale_S, *micro.pooled):
            streams.launch(tensor.zero_)
        dense.run(micro)
    dense.begin_step()
    runtime.store.settle()
    assert all(bucket.replay is not None for bucket in dense._buckets.values())


# Waiting -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def forbid_waiting() -> Iterator[Callable[[], None]]:
    """From its call on, whatever makes the host wait for the device is an error, but for waiting for an event."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def test_waiting_is_an_error_where_it_is_forbidden(forbid_waiting: Callable[[], None]) -> None:
    """Else the next test proves nothing."""
    number = torch.ones((), device="cuda")
    forbid_waiting()
    with pytest.raises(RuntimeError, match="synchroniz"):
        number.item()


@pytest.mark.parametrize(
    ("policy", "action"),
    [("hotline", "freeze"), ("slipstream", "freeze"), ("slipstream", "drop"), ("hybrid", "freeze")],
)
def test_training_waits_for_events_only(policy: str, action: str, forbid_waiting: Callable[[], None]) -> None:
    """Probe steps, windows that end, migrations and reports included."""
    settings = [
        "knobs.probe_ratio=0.3",
        "knobs.min_probe_touches=1",
        "knobs.target_skip_ratio=0.3",
        "knobs.hysteresis=0.0",
    ]
    runtime = build(f"knobs.policy={policy}", f"knobs.action={action}", "run.steps=80", *settings)
    record_all_sizes(runtime)
    warm = last = None
    for last in snapshots(runtime):
        if last.step == 20:
            warm = last
            forbid_waiting()
    torch.cuda.set_sync_debug_mode("default")
    assert warm is not None
    assert last is not None
    assert last.step == 80
    gain = {key: last.totals[key] - warm.totals[key] for key in last.totals}
    assert gain["device_to_host_bytes"] > 0
    assert (gain["migrated_rows"] > 0) == (policy != "hybrid")
    skipped = gain["row_updates_skipped"] + gain["samples_seen"] - gain["samples_trained"]
    assert (skipped > 0) == (policy == "slipstream")


# Memory --------------------------------------------------------------------------------------------------------------

MIB = 1 << 20


@dataclass
class Memory:
    """What a run took at most, and what it says that it takes. The rest is the dense part's."""

    peak_bytes: int
    device_bytes: int
    staging_bytes: int
    tensors: int
    """That tier and slots consist of. For each the allocator may set 1 MiB more aside than was asked for."""


def budget_bytes(percent: int) -> int:
    store = build("knobs.hot_budget_bytes=0").store
    return all_rows_bytes(store.space, store.hot.row_bytes(False)) * percent // 100


def rings_of(store: Any) -> list[StagingRing]:
    return store.path.rings


def measure(budget: int) -> Memory:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    runtime = build(f"knobs.hot_budget_bytes={budget}", "run.steps=60")
    record_all_sizes(runtime)
    for _ in snapshots(runtime):
        pass
    store = runtime.store
    assert isinstance(store.path, StagedPath)
    tensors = 2 * len(store.space.pools) + sum(ring.slots for ring in rings_of(store))
    return Memory(torch.cuda.max_memory_allocated() - before, store.hot.bytes, store.path.staging_bytes, tensors)


@pytest.fixture(scope="module")
def without_budget() -> Memory:
    """The first run is not measured: it makes what stays for the process, such as the libraries' workspaces."""
    measure(0)
    return measure(0)


def test_without_a_budget_the_tier_takes_nothing(without_budget: Memory) -> None:
    assert without_budget.device_bytes == 0
    assert 0 < without_budget.staging_bytes < without_budget.peak_bytes


@pytest.mark.parametrize("percent", [1, 100])
def test_a_run_takes_the_tier_the_slots_and_what_the_dense_part_takes(percent: int, without_budget: Memory) -> None:
    rest = without_budget.peak_bytes - without_budget.staging_bytes
    budget = budget_bytes(percent)
    found = measure(budget)
    assert 0.95 * budget < found.device_bytes <= budget
    assert found.peak_bytes > found.device_bytes
    assert found.peak_bytes <= found.device_bytes + found.staging_bytes + rest + found.tensors * MIB, (found, rest)


def test_memory_does_not_grow_with_the_steps() -> None:
    runtime = build("run.steps=600", "knobs.report_every=100", f"knobs.hot_budget_bytes={20 * MIB}")
    record_all_sizes(runtime)
    store: Any = runtime.store
    peaks, held = {}, {}
    torch.cuda.reset_peak_memory_stats()
    for snapshot in snapshots(runtime):
        if snapshot.step in (200, 600):
            peaks[snapshot.step] = torch.cuda.max_memory_allocated()
            held[snapshot.step] = torch.cuda.memory_allocated() - store.path.staging_bytes
            torch.cuda.reset_peak_memory_stats()
    # Threads that are slow for once may have one slot more taken, of any kind.
    one_slot = max(2 * ring.device_bytes // max(ring.slots, 1) for ring in rings_of(store))
    assert peaks[600] <= peaks[200] + one_slot, (peaks, held)
    assert held[600] <= held[200] + 2 * MIB, (peaks, held)


# At the same time ----------------------------------------------------------------------------------------------------


def test_cold_rows_travel_while_kernels_run(tmp_path: Path) -> None:
    """How much of the time they do is for the benchmark to tell."""
    kinds_of_activity = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds_of_activity):  # it wants to have run before graphs are recorded
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    # A network large enough for the device to be behind the host: else it has nothing to do while rows come down.
    network = "model.top_mlp=[2048,2048,2048]"
    runtime = build("run.batch_size=4096", "run.steps=60", "knobs.report_every=10", network)
    record_all_sizes(runtime)
    profile = torch.profiler.profile(activities=kinds_of_activity)
    for snapshot in snapshots(runtime):
        if snapshot.step == 30:
            profile.start()
        if snapshot.step == 50:
            profile.stop()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    kinds = intervals.device_kinds(json.loads((tmp_path / "trace.json").read_text()))
    if not kinds["kernels"]:
        pytest.skip("the profiler sees nothing of this device: CUPTI is absent or not permitted")
    assert intervals.length(kinds["up"]) > 0
    assert intervals.length(kinds["down"]) > 0
    assert intervals.length(intervals.intersect(kinds["up"], kinds["kernels"])) > 0
    assert intervals.length(intervals.intersect(kinds["down"], kinds["kernels"])) > 0


# Results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["hybrid", "hotline", "device_only"])
def test_the_loss_goes_as_on_the_cpu(policy: str) -> None:
    losses = {}
    for device in ("cpu", "cuda"):
        settings = [f"knobs.policy={policy}", f"run.device={device}", "run.steps=100", "knobs.report_every=1"]
        losses[device] = [snapshot.loss for snapshot in snapshots(build(*settings))]
    assert len(losses["cuda"]) == 100
    assert np.mean(losses["cuda"][-20:]) < np.mean(losses["cuda"][:20]), "it learns"
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=0, atol=1e-3)
