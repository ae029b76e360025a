"""Rows of 16 bits: where a row is changes nothing, to the bit, though every update throws dice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec import checkpoint
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.row_types import as_tensor
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.errors import CheckpointError, TrainingError
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy import AccessView, Policy, Wish
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests.doubles.late_streams import LateStreams
from tests.matrix import always, each, grid, only
from tests.settings import DEVICES

SETTINGS = [
    "knobs.policy=hybrid", "run.split=never", "run.device=cpu", "run.threads=1", "run.batch_size=32", "run.steps=30",
    "data.table_rows=[400, 30, 7]", "data.dense_features=2", "data.synthetic.samples=3200", "data.synthetic.test_samples=64",
    "data.synthetic.lookups_per_feature=2", "model.embedding_dim=4", "model.table_dims=[4, 3, 4]", "model.bottom_mlp=[8]",
    "model.top_mlp=[8]", "knobs.reclassify_every=3", "knobs.hysteresis=0.0", "knobs.hot_budget_bytes=1500",
    "knobs.report_every=1",
]  # fmt: skip
PRECISIONS, RULES = ["bf16", "fp16"], list(NAMED_RULES)
precisions = pytest.mark.parametrize("row_precision", PRECISIONS)
in_turn = grid(always, lambda cases: [cases[0], cases[-1]], rule=RULES, row_precision=PRECISIONS)
"""The rule without state and the one with most, in each of the types; tests/parity/test_cells.py has the others."""


class ChurningHotline(Hotline):
    """In every window other rows are wanted on the device."""

    def place(self, view: AccessView) -> Wish:
        rows = np.concatenate([view.candidate_rows, view.hot_rows])
        return Wish(rows, np.random.default_rng(view.step).random(len(rows)))


def build(*changes: str, policy: Policy | None = None, streams: Streams | None = None) -> Runtime:
    return assemble(load_config(None, {}, [*SETTINGS, *changes]), streams=streams, policy=policy)


def outcome(runtime: Runtime) -> list[Any]:
    """Losses, then what every table holds."""
    losses = np.array([event.loss for event in runtime.run() if isinstance(event, Snapshot)])
    return [losses, *tables_of(runtime)]


def tables_of(runtime: Runtime) -> list[Any]:
    return [part for table in range(3) for part in runtime.store.contents.export(table)]


def assert_same(mine: list[Any], other: list[Any]) -> None:
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_array_equal(a, b)


@in_turn
def test_the_tier_a_row_lives_in_changes_no_bit(rule: str, row_precision: str) -> None:
    settings = f"optimizer.embedding={rule}", f"run.row_precision={row_precision}"
    plain = outcome(build(*settings))
    runtime = build(*settings, policy=ChurningHotline())
    assert_same(outcome(runtime), plain)
    assert runtime.store.index.traffic.migrated_rows > 100
    everything = build(*settings, "knobs.policy=device_only")
    assert_same(outcome(everything), plain)
    assert everything.reports.totals()["lookups_hot"] == everything.reports.totals()["lookups"]


@precisions
def test_rounded_rows_stay_near_exact_ones(row_precision: str) -> None:
    exact = build()
    losses, *rows = outcome(exact)
    rounded = outcome(build(f"run.row_precision={row_precision}"))
    np.testing.assert_allclose(rounded[0], losses, rtol=0.02)
    assert (rounded[0] != losses).any()
    numbers = as_tensor(rounded[1]).float().numpy()
    np.testing.assert_allclose(numbers, rows[0], atol=0.05)
    assert np.corrcoef(numbers.ravel(), rows[0].ravel())[0, 1] > 0.99


@in_turn
def test_a_resumed_run_ends_where_a_straight_one_does(tmp_path: Path, rule: str, row_precision: str) -> None:
    settings = f"optimizer.embedding={rule}", f"run.row_precision={row_precision}"
    straight = build(*settings)
    outcome(straight)
    first = build(*settings, "run.steps=20", "knobs.policy=hotline")
    outcome(first)
    assert first.store.hot.tier.hot_rows > 0
    folder = checkpoint.save(first.parts, tmp_path)
    second = build(*settings)
    checkpoint.load(second.parts, folder)
    assert_same(tables_of(second), tables_of(first))
    outcome(second)
    assert_same(tables_of(second), tables_of(straight))


@precisions
def test_a_checkpoint_holds_them_under_their_own_name(tmp_path: Path, row_precision: str) -> None:
    from safetensors.torch import load_file

    runtime = build(f"run.row_precision={row_precision}", "run.steps=3")
    outcome(runtime)
    folder = checkpoint.save(runtime.parts, tmp_path)
    found = load_file(folder / "rows-00000.safetensors")
    assert found["weight"].dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[row_precision]
    assert found["optimizer_state"].dtype == torch.float32
    weights = as_tensor(tables_of(runtime)[0])
    assert torch.equal(found["weight"][: len(weights)], weights)
    with pytest.raises(CheckpointError, match=f"row_precision of checkpoint .* must be '{row_precision}', got 'float32'"):
        checkpoint.load(build().parts, folder)


@grid(always, only("bf16"), row_precision=PRECISIONS)
def test_slipstream_records_their_movement_in_8_bits(row_precision: str) -> None:
    runtime = build(f"run.row_precision={row_precision}", "knobs.policy=slipstream", "knobs.stale_metric=max_abs")
    outcome(runtime)
    for monitor, weights in zip(runtime.store.hot.tier.monitors, runtime.store.hot.tier.weights, strict=True):
        assert monitor.record_HR.dtype == torch.int8
        assert weights.itemsize == 2
    assert runtime.store.hot.tier.hot_rows > 0


def test_the_movement_of_a_row_is_found_in_32_bits() -> None:
    from adaptive_rec.tracking.delta import UpdateDeltaMonitor

    monitor = UpdateDeltaMonitor(1, 1)
    slots, small = torch.tensor([0]), 2.0**-9
    before = torch.tensor([[1.0]], dtype=torch.bfloat16)
    after = torch.tensor([[-small]], dtype=torch.bfloat16)
    monitor.observe(slots, before, after)
    assert monitor.measure(after)[:, 3].tolist() == [(1 + small) ** 2]
    assert monitor.measure(before).dtype == torch.float32


@grid(always, each, classify=["host", "device"], row_precision=PRECISIONS)
def test_a_device_has_the_rows_of_the_cpu(classify: str, row_precision: str) -> None:
    """Every bit: the dice depend on seed, step and row only, and a segment of one piece is summed in the same order."""
    settings = "optimizer.embedding=sgd", f"run.row_precision={row_precision}"
    churned = f"run.classify={classify}", "knobs.prefetch_depth=3"
    runtime = build(*settings, *churned, policy=ChurningHotline(), streams=LateStreams(seed=3))
    assert_same(outcome(runtime)[1:], outcome(build(*settings))[1:])
    assert runtime.store.index.traffic.migrated_rows > 100
    assert runtime.store.path.classifies == (classify == "device")


@grid(always, only("lazy_adam", "cuda"), rule=RULES[1:], device=DEVICES[1:], row_precision=PRECISIONS)
def test_on_a_device_neither_tier_nor_timing_changes_a_bit(rule: str, device: str, row_precision: str) -> None:
    """Rules with state differ from the CPU's by roundings of float32, as Adam's correction is part of the rate there."""

    def streams(seed: int) -> Streams:
        return LateStreams(seed=seed) if device == "late" else CudaStreams(torch.device("cuda"))

    settings = f"optimizer.embedding={rule}", f"run.row_precision={row_precision}", "knobs.prefetch_depth=3"
    runtime = build(*settings, "run.classify=device", policy=ChurningHotline(), streams=streams(3))
    assert_same(outcome(runtime), outcome(build(*settings, "knobs.policy=device_only", streams=streams(4))))
    assert runtime.store.index.traffic.migrated_rows > 100


@pytest.mark.slow
def test_a_device_resumes_them(tmp_path: Path) -> None:
    settings = "run.row_precision=bf16", "knobs.policy=hotline"
    straight = build(*settings, streams=LateStreams(seed=1))
    outcome(straight)
    first = build(*settings, "run.steps=20", streams=LateStreams(seed=2))
    outcome(first)
    folder = checkpoint.save(first.parts, tmp_path)
    second = build(*settings, streams=LateStreams(seed=3))
    checkpoint.load(second.parts, folder)
    outcome(second)
    assert_same(tables_of(second), tables_of(straight))


def test_a_device_saves_no_rows_that_are_too_large(tmp_path: Path) -> None:
    settings = "run.row_precision=fp16", "knobs.policy=hotline", "optimizer.embedding_lr=1e9", "run.steps=1"
    runtime = build(*settings, streams=LateStreams(seed=1))
    assert [event for event in runtime.run() if isinstance(event, Snapshot)]
    too_large = r"rows of half precision must stay within 65504, one of table .* no longer does"
    with pytest.raises(CheckpointError, match=too_large):
        checkpoint.save(runtime.parts, tmp_path)
    with pytest.raises(TrainingError, match=too_large):
        tables_of(runtime)


@in_turn
def test_steps_of_64_bits_round_rows_alike_on_a_device_and_on_a_disk(tmp_path: Path, rule: str, row_precision: str) -> None:
    """The sums of a step differ by 1e-16, which hardly ever lies between a number and its dice: no bit of a row differs."""
    settings = f"optimizer.embedding={rule}", f"run.row_precision={row_precision}", "run.precision=float64"
    plain = build(*settings)
    losses, *rows = outcome(plain)
    assert plain.store.cold.types.weights[0].dtype.itemsize == 2
    assert plain.store.cold.types.state[0].dtype == np.float64
    on_disk = "run.host_memory=1MiB", f"run.disk={tmp_path}"
    for more, streams in (((), LateStreams(seed=3)), (on_disk, None)):
        found = outcome(build(*settings, *more, policy=ChurningHotline(), streams=streams))
        np.testing.assert_allclose(found[0], losses, rtol=1e-12)
        for mine, other in zip(found[1::2], rows[::2], strict=True):
            np.testing.assert_array_equal(mine, other)
        for mine, other in zip(found[2::2], rows[1::2], strict=True):
            np.testing.assert_allclose(mine, other, rtol=0, atol=1e-11)
