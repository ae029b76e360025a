"""Losses and gradients that are not finite: they update nothing, and the error or event names their source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.finite import IN_A_ROW_LIMIT, LATE_STEPS
from adaptive_rec.errors import ConfigError, TrainingError
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Alone
from tests.doubles.late_streams import LateStreams
from tests.matrix import Case, each, grid

SMALL = [
    "knobs.policy=hotline", "run.device=cpu", "run.threads=1", "run.batch_size=4", "run.steps=0", "data.table_rows=[9, 5]",
    "data.dense_features=2", "model.embedding_dim=4", "model.bottom_mlp=[8]", "model.top_mlp=[8]",
    "optimizer.embedding=sgd", "optimizer.dense=SGD", "knobs.report_every=1000", "knobs.hot_budget_bytes=100",
    "knobs.reclassify_every=3", "knobs.hysteresis=0.0", "knobs.sample_ratio=1.0",
]  # fmt: skip
TABLES = (TableSpec("items", 9, 4), TableSpec("users", 5, 4))
FEATURES = (FeatureSpec("item", 0), FeatureSpec("user", 1))
SAMPLES = 4


def batches(count: int, bad: dict[int, float] | None = None, bad_sample: int = 2) -> list[Batch]:
    """Batches 1, 2, ...; those named hold a dense feature of that value in one sample."""
    random = np.random.default_rng(5)
    made = []
    for number in range(1, count + 1):
        dense = random.random((SAMPLES, 2), dtype=np.float32)
        if number in (bad or {}):
            dense[bad_sample, 1] = (bad or {})[number]
        ids = np.stack([random.integers(0, table.rows, SAMPLES) for table in TABLES], axis=1)
        labels = random.integers(0, 2, SAMPLES).astype(np.float32)
        made.append(Batch.one_hot(dense, ids, labels, Position(0, 1, number * SAMPLES)))
    return made


def build(
    memory_source: Any, stream: list[Batch], *changes: str, late: int | None = None, options: RunOptions | None = None
) -> Runtime:
    streams = None if late is None else LateStreams(late)
    source = memory_source(stream, TABLES, FEATURES)
    return assemble(load_config(None, {}, [*SMALL, *changes]), source, streams, options=options)


def state(runtime: Runtime) -> list[np.ndarray]:
    """Everything that training changes: rows with their optimizer state, the dense part with its own."""
    tables = [part for table in range(len(TABLES)) for part in runtime.store.contents.export(table)]
    optimizer = [
        torch.as_tensor(v) for s in runtime.dense.optimizer.state.values() for v in s.values() if v is not None
    ]
    tensors = [*runtime.dense.model.state_dict().values(), *optimizer]
    return [*tables, *(tensor.detach().numpy().copy() for tensor in tensors)]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# On the CPU ----------------------------------------------------------------------------------------------------------


@grid(value=[np.nan, np.inf], split=["never", "always"], optimizer=["sgd", "rowwise_adagrad", "lazy_adam"])
def test_a_bad_number_stops_the_run_before_anything_is_updated(
    memory_source: Any, value: float, split: str, optimizer: str
) -> None:
    changes = (f"run.split={split}", f"optimizer.embedding={optimizer}", "optimizer.dense=Adam")
    runtime = build(memory_source, batches(12, {7: value}), *changes)
    with pytest.raises(TrainingError) as raised:
        list(runtime.run())
    ids = batches(12)[6].ids_N.reshape(SAMPLES, 2)[2]
    text = str(raised.value)
    assert "must stay finite, got " in text
    assert "in step 7 for sample 2 of 4 (1 such) of the batch up to sample 7 of epoch 0" in text
    assert f"looks up items id {ids[0]}, users id {ids[1]}" in text
    assert "dense feature 1 of sample 2" in text
    assert runtime.step_number == 6
    until_then = build(memory_source, batches(6), *changes)
    list(until_then.run())
    assert_same(state(runtime), state(until_then))


def poison(runtime: Runtime, at: int, change: Any) -> None:
    """Have the gradients of a step changed once they are known."""
    run, steps = runtime.dense.run, itertools.count(1)

    def poisoned(micro: Any) -> None:
        run(micro)
        if next(steps) == at:
            change(runtime.dense)

    runtime.dense.run = poisoned  # type: ignore[method-assign]


def test_gradients_are_looked_at_though_the_loss_is_a_number(memory_source: Any) -> None:
    runtime = build(memory_source, batches(5), "run.split=never")
    poison(runtime, 3, lambda dense: dense.gradients()[0][1, 1].fill_(-torch.inf))
    with pytest.raises(
        TrainingError, match=r"gradients must stay finite, got -inf in step 3 for sample 1 of 4 \(1 such\)"
    ):
        list(runtime.run())
    assert runtime.step_number == 2


def test_a_parameter_whose_gradient_overflows_is_named(memory_source: Any) -> None:
    runtime = build(memory_source, batches(5))
    name, parameter = list(runtime.dense.model.named_parameters())[-1]
    poison(runtime, 1, lambda dense: parameter.grad.fill_(torch.inf))
    with pytest.raises(TrainingError, match=f"that of parameter {name} is not in step 1, though those of all samples"):
        list(runtime.run())


def large_and_small_for_each(cases: Sequence[Case]) -> list[Case]:
    """The sizes on both sides of the limit for each optimizer, and the others for one."""
    return [case for case in cases if case["size"] in (1e18, 3e18) or case["optimizer"] == "sgd"]


@grid(
    lambda case: True, large_and_small_for_each,
    optimizer=list(NAMED_RULES), size=[1e13, 1e18, 3e18, 1e25],
)  # fmt: skip
def test_what_an_update_makes_of_large_gradients_is_finite_or_refused(
    memory_source: Any, optimizer: str, size: float
) -> None:
    runtime = build(memory_source, batches(2), f"optimizer.embedding={optimizer}", "run.split=never")
    poison(runtime, 2, lambda dense: [part.fill_(size) for part in dense.gradients()])
    refused = False
    try:
        list(runtime.run())
    except TrainingError:
        refused = True
    assert refused == (size > 2e18), "the square root of the largest float32 by 8 lookups, and by 32 numbers"
    assert all(np.isfinite(part).all() for part in state(runtime))


@pytest.mark.parametrize("split", ["never", "always"])
def test_a_batch_left_out_changes_nothing(memory_source: Any, split: str) -> None:
    """Results are those of the stream without it; it is counted and reported once."""
    changes = (f"run.split={split}", "run.on_nan=skip_batch")
    runtime = build(memory_source, batches(12, {7: np.nan}), *changes)
    left_out = [event for event in runtime.run() if isinstance(event, Event) and event.kind == "nan"]
    stream = batches(12)
    without = build(memory_source, stream[:6] + stream[7:], *changes)
    list(without.run())
    for mine, theirs in zip(state(runtime), state(without), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)  # rows are hot from other steps on: sums differ
    assert runtime.step_number == 12
    totals = runtime.reports.totals()
    assert totals["samples_seen"] - totals["samples_trained"] == SAMPLES
    assert totals["loss_sum"] == pytest.approx(without.reports.totals()["loss_sum"], rel=1e-5)
    (event,) = left_out
    assert event.step == 7
    ids = stream[6].ids_N.reshape(SAMPLES, 2)[2].tolist()
    assert event.details["lookups"] == [["items", ids[0]], ["users", ids[1]]]
    assert (event.details["sample"], event.details["bad_samples"], event.details["samples"]) == (2, 1, SAMPLES)
    assert event.text.startswith("batch left out: ")


def measured(runtime: Runtime) -> list[np.ndarray]:
    """What probe steps leave: how far hot rows moved, in how many steps, and the popular samples that were kept."""
    observer, slots = runtime.observer.state(), runtime.store.hot.tier.row_of_slot
    monitors = [part.numpy() for monitor in runtime.store.hot.tier.monitors for part in vars(monitor).values()]
    return [*slots, *monitors, *(np.array(observer[name]) for name in ("sample_rows", "sample_lengths", "probes"))]


@pytest.mark.parametrize("split", ["never", "always"])
def test_a_batch_left_out_at_a_probe_step_is_not_measured(memory_source: Any, split: str) -> None:
    """After a window that made rows hot, rows, monitors and counters are those of the stream without it, and it continues."""
    slipstream = ("knobs.policy=slipstream", "knobs.stale_metric=max_abs", "knobs.probe_ratio=1.0", "knobs.hot_budget_bytes=300")
    changes = (*slipstream, f"run.split={split}", "run.on_nan=skip_batch", "knobs.reclassify_every=4")
    stream = batches(12)
    runtime = build(memory_source, batches(12, {6: np.nan})[:7], *changes)
    list(runtime.run())
    without = build(memory_source, stream[:5] + stream[6:7], *changes)
    list(without.run())
    assert_same(state(runtime), state(without))
    assert_same(measured(runtime), measured(without))
    assert measured(runtime)[-1] == 2
    assert any(monitor.touches_H.any() for monitor in runtime.store.hot.tier.monitors)
    totals, expected = runtime.reports.totals(), without.reports.totals()
    left_out = {"steps", "samples_seen", "samples_popular", "lookups", "lookups_hot"}
    assert {name: totals[name] for name in totals.keys() - left_out} == {
        name: expected[name] for name in expected.keys() - left_out
    }
    assert totals["samples_seen"] == expected["samples_seen"] + SAMPLES
    whole = build(memory_source, batches(12, {6: np.nan}), *changes)
    list(whole.run())
    assert whole.step_number == 12
    assert whole.reports.totals()["samples_trained"] == 11 * SAMPLES
    assert all(np.isfinite(part).all() for part in [*state(whole), *measured(whole)])


@grid(lambda case: True, each, policy=["hybrid", "device_only"], on_nan=["stop", "skip_batch"])
def test_a_row_too_large_for_half_precision_ends_the_run_and_is_named(
    memory_source: Any, tmp_path: Path, policy: str, on_nan: str
) -> None:
    """No later step needs to meet it, and no checkpoint holds it."""
    changes = (f"knobs.policy={policy}", f"run.on_nan={on_nan}", "run.split=never", "run.row_precision=fp16")
    options = RunOptions(tmp_path, replayed={7: [Command("checkpoint")]})
    runtime = build(memory_source, batches(12), *changes, options=options)
    poison(runtime, 7, lambda dense: dense.gradients()[0][2, 1].fill_(-1e9))
    id_ = batches(12)[6].ids_N.reshape(SAMPLES, 2)[2, 1]
    rule = r"rows of half precision must stay within 65504, "
    with pytest.raises(TrainingError, match=rule + rf"id {id_} of table users \(1 in all\) does not after step 7; lower"):
        list(runtime.run())
    assert runtime.step_number == 6
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_a_row", [IN_A_ROW_LIMIT - 1, IN_A_ROW_LIMIT])
def test_too_many_batches_left_out_in_a_row_stop_the_run(memory_source: Any, in_a_row: int) -> None:
    bad = dict.fromkeys([2, *range(4, 4 + in_a_row)], np.nan)
    runtime = build(memory_source, batches(20, bad), "run.on_nan=skip_batch")
    if in_a_row < IN_A_ROW_LIMIT:
        assert sum(event.kind == "nan" for event in runtime.run() if isinstance(event, Event)) == 1 + in_a_row
    else:
        rule = f"must be fewer than {IN_A_ROW_LIMIT} in a row, this is one more: "
        with pytest.raises(TrainingError, match=rule):
            list(runtime.run())
    assert all(np.isfinite(part).all() for part in state(runtime))


@pytest.fixture(scope="module")
def at_a_step(memory_source: Any) -> tuple[Runtime, ClassifiedBatch]:
    """A run in the middle of a step of four samples, and its batch."""
    runtime = build(memory_source, batches(1))
    work = ClassifiedBatch(batches(1)[0], runtime.store.space)
    micro = runtime.dense.inputs(SAMPLES)
    for part in (micro.dense_SX, *micro.pooled, micro.labels_S, micro.scale_S):
        part.zero_()
    runtime.dense.run(micro)
    return runtime, work


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=32, max_size=32),
    st.lists(st.tuples(st.integers(0, 31), st.sampled_from([np.nan, np.inf, -np.inf])), max_size=3),
)
def test_one_pass_finds_every_number_that_is_none_and_no_other(
    at_a_step: tuple[Runtime, ClassifiedBatch], values: list[float], spoilt: list[tuple[int, float]]
) -> None:
    runtime, work = at_a_step
    gradients = np.array(values, dtype=np.float32)
    for place, value in spoilt:
        gradients[place] = value
    runtime.dense.step_loss.zero_()
    runtime.dense._step_losses = [torch.zeros(SAMPLES)]
    runtime.dense._gradients = [[torch.from_numpy(gradients.reshape(SAMPLES, 2, 4))]]
    if np.isfinite(gradients).all():
        assert runtime.finite.passes(work, np.arange(SAMPLES), 1)
    else:
        first = int(np.flatnonzero(~np.isfinite(gradients))[0]) // 8
        with pytest.raises(TrainingError, match=f"for sample {first} of 4 "):
            runtime.finite.passes(work, np.arange(SAMPLES), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_alone_that_is_no_number_is_found(at_a_step: tuple[Runtime, ClassifiedBatch], value: float) -> None:
    runtime, work = at_a_step
    losses = torch.tensor([0.5, 0.5, value, 0.5])
    runtime.dense.step_loss.copy_(losses.sum())
    runtime.dense._step_losses, runtime.dense._gradients = [losses], [[torch.zeros(SAMPLES, 2, 4)]]
    with pytest.raises(TrainingError, match=f"the loss must stay finite, got {value} in step 9 for sample 2 of 4"):
        runtime.finite.passes(work, np.arange(SAMPLES), 9)


def test_gradients_whose_squares_overflow_are_found_though_they_are_numbers(
    at_a_step: tuple[Runtime, ClassifiedBatch],
) -> None:
    runtime, work = at_a_step
    gradients = torch.zeros(SAMPLES, 2, 4, dtype=torch.float64)
    gradients[1] = 1e200
    runtime.dense.step_loss.zero_()
    runtime.dense._step_losses, runtime.dense._gradients = [torch.zeros(SAMPLES)], [[gradients]]
    with pytest.raises(TrainingError, match="gradients must be small enough .* for sample 1 of 4"):
        runtime.finite.passes(work, np.arange(SAMPLES), 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_sum_over_ranks_has_a_finite_square_too(
    ranks: int, at_a_step: tuple[Runtime, ClassifiedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank looks at its own part of the batch."""
    runtime, work = at_a_step

    group = Alone()
    group.ranks = ranks
    monkeypatch.setattr(runtime.dense, "group", group)
    gradients = torch.zeros(SAMPLES, 2, 4, dtype=runtime.dense.dtype)
    gradients[1, 0, 0] = 0.9 * (torch.finfo(runtime.dense.dtype).max / work.batch.lookups) ** 0.5
    runtime.dense.step_loss.zero_()
    runtime.dense._step_losses, runtime.dense._gradients = [torch.zeros(SAMPLES)], [[gradients]]
    if ranks == 1:
        assert runtime.finite.passes(work, np.arange(SAMPLES), 1)
    else:
        with pytest.raises(TrainingError, match="gradients must be small enough .* for sample 1 of 4"):
            runtime.finite.passes(work, np.arange(SAMPLES), 1)


# On a device ---------------------------------------------------------------------------------------------------------


@grid(lambda case: True, each, at=[1, 7, 25, 30], seed=range(4))
def test_on_a_device_the_run_stops_a_few_steps_later_and_names_the_step(memory_source: Any, at: int, seed: int) -> None:
    stream = batches(30, {at: np.nan})
    runtime = build(memory_source, stream, late=seed)
    with pytest.raises(TrainingError, match=f"those of step {at} are not") as raised:
        list(runtime.run())
    ids = stream[at - 1].ids_N.reshape(SAMPLES, 2)[2]
    assert f"dense feature 1 of sample 2 is no finite number (it looks up items id {ids[0]}," in str(raised.value)
    assert at <= runtime.step_number <= min(30, at + 2 * LATE_STEPS)


def test_on_a_device_a_gradient_that_is_no_number_is_found_too(memory_source: Any) -> None:
    stream = batches(30)
    runtime = build(memory_source, stream, late=1)
    spoilt, steps = runtime.dense.step, itertools.count(1)

    def step(factor: float) -> None:
        if next(steps) == 5:
            runtime.store.hot.launch(lambda: runtime.dense._step_length.fill_(torch.inf))
        spoilt(factor)

    runtime.dense.step = step  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="those of step 5 are not, .*; lower the learning rates"):
        list(runtime.run())


@pytest.mark.parametrize("seed", range(3))
def test_on_a_device_nothing_is_saved_of_a_step_gone_wrong(memory_source: Any, tmp_path: Path, seed: int) -> None:
    """A checkpoint that is requested before the run has found the fault finds it."""
    answers: list[Any] = []
    options = RunOptions(tmp_path, replayed={6: [Command("checkpoint", answer=answers.append)]})
    runtime = build(memory_source, batches(30, {6: np.nan}), late=seed, options=options)
    with pytest.raises(TrainingError, match="those of step 6 are not"):
        list(runtime.run())
    assert runtime.step_number == 6
    [answer] = answers
    assert str(answer).startswith("losses and gradients must stay finite, those of step 6 are not")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_sound_steps_is_written(memory_source: Any, tmp_path: Path) -> None:
    runtime = build(memory_source, batches(9), late=2)
    list(runtime.run())
    assert checkpoint.save(runtime.parts, tmp_path).is_dir()


def test_a_device_leaves_no_batch_out(memory_source: Any) -> None:
    with pytest.raises(ConfigError, match="run.on_nan must be stop on a device, .* got skip_batch; set run.device=cpu"):
        build(memory_source, batches(2), "run.on_nan=skip_batch", late=1)
