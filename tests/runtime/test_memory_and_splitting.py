"""A device whose memory is too small, and the choice between whole and split batches, which a replay takes from the journal."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import adaptive_rec.embedding.device as device_module
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.run import journal
from adaptive_rec.run.line_file import LineFile
from adaptive_rec.runtime import splitting
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.splitting import BLOCK_STEPS, BLOCKS
from tests.doubles.late_streams import LateStreams
from tests.settings import TINY

ADAGRAD = [
    *TINY, "knobs.policy=hotline", "run.steps=30", "data.synthetic.samples=8000", "optimizer.embedding=adagrad",
    "knobs.hot_budget_bytes=4000",
]  # fmt: skip

ROW_BYTES = 8 * (4 + 4)


class SmallDevice(LateStreams):
    """Has so many bytes, the device tier's among them, and says so as torch does."""

    def __init__(self) -> None:
        super().__init__(seed=5)
        self.limit = 1 << 40
        self.tier_bytes = 0
        self.allocated: list[weakref.ref[Tensor]] = []

    @property
    def in_use(self) -> int:
        return self.tier_bytes + sum(tensor.nbytes for weak in self.allocated if (tensor := weak()) is not None)

    def allocate(self, nbytes: int) -> Tensor:
        if self.in_use + nbytes > self.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {nbytes} bytes.\nmore lines")
        tensor = super().allocate(nbytes)
        self.allocated.append(weakref.ref(tensor))
        return tensor


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SmallDevice:
    small, make = SmallDevice(), HotRows._make_tier

    def limited(hot: HotRows, capacities: list[int]) -> Any:
        nbytes = sum(size * slots for size, slots in zip(hot.row_bytes(), capacities, strict=True))
        if hot.device == small.device and nbytes > small.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate the tier.")
        small.tier_bytes = nbytes
        return make(hot, capacities)

    monkeypatch.setattr(HotRows, "_make_tier", limited)
    return small


def build(device: LateStreams | None, *changes: str, options: RunOptions | None = None) -> Runtime:
    return assemble(load_config(None, {}, [*ADAGRAD, *changes]), None, device, options=options)


def run(runtime: Runtime, during: Callable[[Snapshot], None] = lambda _: None) -> tuple[list[float], list[Event]]:
    losses, events = [], []
    for report in runtime.run():
        if isinstance(report, Snapshot):
            losses.append(report.loss)
            during(report)
        elif isinstance(report, Event):
            events.append(report)
    return losses, events


def tables_of(runtime: Runtime) -> list[np.ndarray]:
    return [runtime.store.contents.export(table)[0] for table in range(len(runtime.store.space.tables))]


def made_again(events: list[Event], folder: Path, *changes: str) -> Runtime:
    """The same run, changes taken from the journal, times from nowhere."""
    for event in events:
        LineFile(folder / journal.NAME).append(journal.line_of(event))
    return build(LateStreams(seed=9), *changes, options=RunOptions(replayed=journal.commands(folder)))


# Memory --------------------------------------------------------------------------------------------------------------


def test_a_budget_that_does_not_fit_is_halved_before_the_run_with_a_warning(device: SmallDevice) -> None:
    device.limit = build(device, "knobs.hot_budget_bytes=64").store.path.staging_bytes + 1100
    gc.collect()
    runtime = build(device)
    assert runtime.knobs.hot_budget_bytes == 1000
    assert runtime.store.hot.bytes <= 1000
    device.limit = 1 << 40
    losses, events = run(runtime)
    warnings = [event.text for event in events if event.kind == "warning"]
    assert len(warnings) == 2
    assert "hot_budget_bytes 3.9KiB does not fit on the device, it is 2.0KiB instead" in warnings[0]
    assert "hot_budget_bytes 2.0KiB does not fit" in warnings[1]
    assert runtime.config.knobs.hot_budget_bytes == 1000, "what is written to the run's directory, and made again"
    np.testing.assert_allclose(losses, run(build(None))[0], rtol=1e-12)


def test_memory_that_ends_after_rows_were_updated_ends_the_run(
    device: SmallDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was repeated then would update its rows twice."""
    counted = list[int]()

    def short(observer: Observer, step: int, work: Any, knobs: Any) -> None:
        counted.append(step)
        if len(counted) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate lists.\nmore lines")

    monkeypatch.setattr(Observer, "count_lookups", short)
    with pytest.raises(MemoryPlanError, match=r"must hold an update; .*: CUDA out of memory. Tried to allocate lists.$"):
        run(build(device, "knobs.policy=hotline"))
    assert len(counted) == len(set(counted)) == 3


@pytest.mark.parametrize("policy", ["device_only", "hybrid"])
def test_a_policy_that_wants_no_less_stops_cleanly_before_the_run(device: SmallDevice, policy: str) -> None:
    device.limit = -1
    with pytest.raises(MemoryPlanError, match=f"must hold what policy {policy} wants"):
        build(device, f"knobs.policy={policy}")


LARGER = ["data.table_rows=[3000, 2000, 9]", "data.synthetic.samples=8000", "knobs.hot_budget_bytes=200000"]


@pytest.mark.parametrize("split", ["always", pytest.param("never", marks=pytest.mark.slow)])
def test_a_step_that_runs_out_of_memory_is_made_with_half_the_budget(
    device: SmallDevice, tmp_path: Path, split: str
) -> None:
    """From step 12 on there is no memory for staging slots, and those there were are gone: hot rows must give theirs up.
    No value changes, nothing is counted twice, and the run can be made again."""
    settings = [*LARGER, f"run.split={split}"]
    runtime = build(device, *settings)

    def shrink(snapshot: Snapshot) -> None:
        if snapshot.step == 12:
            device.limit = device.tier_bytes + runtime.store.path.rings[-1].device_bytes + 1000
            runtime.store.path.free_memory()

    losses, events = run(runtime, shrink)
    changes = [event for event in events if event.kind == "knobs"]
    assert [event.details["changed"]["hot_budget_bytes"]["new"] for event in changes] == [100_000]
    assert changes[0].step == 12
    assert any("the hot budget is halved: CUDA out of memory" in event.text for event in events)
    assert "more lines" not in str([event.text for event in events])
    assert runtime.store.hot.bytes <= 100_000
    assert runtime.tally.counters.steps == 30
    plain = build(None, *LARGER)
    np.testing.assert_allclose(losses, run(plain)[0], rtol=1e-12)
    for mine, theirs in zip(tables_of(runtime), tables_of(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)

    again = made_again(events, tmp_path, *settings)
    assert run(again)[0] == losses
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(tables_of(again), tables_of(runtime), strict=True))


@pytest.mark.slow
def test_where_nothing_is_left_to_give_up_the_run_stops_with_the_rule(device: SmallDevice) -> None:
    runtime = build(device)

    def shrink(snapshot: Snapshot) -> None:
        if snapshot.step == 12:  # slots are larger than all hot rows
            device.limit = device.tier_bytes + runtime.store.path.rings[-1].device_bytes
            runtime.store.path.free_memory()

    with pytest.raises(MemoryPlanError, match=r"must hold a step; lower run.batch_size"):
        run(runtime, shrink)
    assert runtime.state.phase == "failed"
    tables_of(runtime)  # rows can still be read


def test_memory_that_gives_out_in_an_update_stops_the_run(device: SmallDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are updated by then, so the step cannot be made again."""
    runtime = build(device)

    def out(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(runtime.dense, "step", out)
    with pytest.raises(MemoryPlanError, match="must hold an update; lower knobs.hot_budget_bytes"):
        run(runtime)


@pytest.mark.parametrize(
    ("policy", "at"),
    [
        ("hotline", 0),
        ("slipstream", 20),
        *(pytest.param("hotline", at, marks=pytest.mark.slow) for at in (5, 15, 20)),
        *(pytest.param("slipstream", at, marks=pytest.mark.slow) for at in (0, 5, 15)),
    ],
)
def test_a_run_that_gave_up_memory_is_made_again_wherever_that_was(
    device: SmallDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, at: int
) -> None:
    """Before the first step, and in the step after a window's end too."""
    settings = [*LARGER, f"knobs.policy={policy}", "knobs.probe_ratio=0.5", "knobs.min_probe_touches=1"]
    runtime, failed = build(device, *settings), []
    make = runtime.steps.make

    def short(work: Any, probe: bool) -> None:
        if runtime.step_number == at and not failed:
            failed.append(at)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        make(work, probe)

    monkeypatch.setattr(runtime.steps, "make", short)
    losses, events = run(runtime)
    assert failed
    again = made_again(events, tmp_path, *settings)
    assert run(again)[0] == losses
    assert again.knobs == runtime.knobs
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(tables_of(again), tables_of(runtime), strict=True))


def test_moving_rows_at_a_windows_end_needs_no_memory_that_is_not_there(device: SmallDevice) -> None:
    runtime = build(device, *LARGER, "knobs.policy=slipstream", "knobs.probe_ratio=1.0")

    def fill(snapshot: Snapshot) -> None:
        if snapshot.step == 4:
            room = 150_000  # more than batches ahead want, late as they may be; less than the three chunks of rows that move
            device.limit = device.in_use - runtime.store.path.ring.device_bytes + room

    _, events = run(runtime, fill)
    assert [event.kind for event in events if event.kind in ("knobs", "warning")] == []
    assert sum(event.details["promoted"] for event in events if event.kind == "reclassified") > 50


def test_an_evaluation_that_needs_too_much_memory_says_what_to_lower(device: SmallDevice) -> None:
    runtime = build(device, "eval.every_steps=10", "eval.batch_size=64")

    def fill(snapshot: Snapshot) -> None:
        if snapshot.step == 9:
            device.limit = device.in_use + 1000

    with pytest.raises(MemoryPlanError, match=r"must hold an evaluation; lower eval.batch_size"):
        run(runtime, fill)


def test_batches_that_cannot_be_sent_ahead_give_one_warning(device: SmallDevice) -> None:
    runtime = build(device, "knobs.prefetch_depth=12")

    def fill(snapshot: Snapshot) -> None:
        if snapshot.step == 3:
            assert runtime.pipeline is not None
            runtime.pipeline.settle()  # all of them have memory then, which is all there will be
            device.limit = device.in_use + (1 << 15)  # copies that are queued still hold what they copy to
            runtime.store.path.ring.close()

    losses, events = run(runtime, fill)
    warnings = [event.text for event in events if event.kind == "warning" and "cannot be sent ahead" in event.text]
    assert len(warnings) <= 1
    assert len(losses) == 30


def test_a_larger_budget_that_does_not_fit_is_refused_and_training_continues(
    device: SmallDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is counted as it is really held: what failed half-way must be gone before the old tier is made again."""
    held: list[weakref.ref[Tensor]] = []
    zeros = torch.zeros

    def counted(*args: Any, **settings: Any) -> Tensor:
        tensor = zeros(*args, **settings)
        in_use = sum(other.nbytes for weak in held if (other := weak()) is not None)
        if in_use + tensor.nbytes > 300_000:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        held.append(weakref.ref(tensor))
        return tensor

    runtime = build(device, *LARGER)
    monkeypatch.setattr(torch, "zeros", counted)
    monkeypatch.setattr(device_module, "_zeros", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype))
    refused: list[Any] = []

    def ask(snapshot: Snapshot) -> None:
        if snapshot.step == 8:
            runtime.mailbox.send(Command("change_knobs", {"hot_budget_bytes": 320_000}, refused.append))

    losses, _ = run(runtime, ask)
    assert "the old ones stay: CUDA out of memory" in str(refused[0])
    assert runtime.knobs.hot_budget_bytes == 200_000
    np.testing.assert_allclose(losses, run(build(None, *LARGER))[0], rtol=1e-12)


def test_a_step_that_was_broken_off_leaves_nothing_behind(device: SmallDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that continues afterwards takes no rows from batches that will never be trained."""
    runtime = build(device, "knobs.policy=hybrid")
    broken = runtime.dense.run

    def interrupted(micro: Any) -> None:
        if runtime.step_number == 7:
            raise KeyboardInterrupt
        broken(micro)

    monkeypatch.setattr(runtime.dense, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(runtime)
    monkeypatch.undo()
    monkeypatch.setattr(runtime.mailbox, "_closed", "")
    run(runtime)
    plain = build(None, "knobs.policy=hybrid")
    run(plain)
    for mine, theirs in zip(tables_of(runtime), tables_of(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


# Splitting -----------------------------------------------------------------------------------------------------------


def measuring(runtime: Runtime, split_is_quick: bool, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """On a device it would measure; here the clock is set to what each way costs."""
    clock = {"seconds": 0.0}
    make = runtime.steps.make

    def timed(work: Any, probe: bool) -> None:
        clock["seconds"] += 1.0 if runtime.splitting.at(runtime.step_number) == split_is_quick else 2.0
        make(work, probe)

    monkeypatch.setattr(runtime.steps, "make", timed)
    monkeypatch.setattr(type(runtime.recorder), "seconds", property(lambda _: clock["seconds"]))
    runtime.splitting.measured = True
    return runtime


@pytest.fixture(params=[8, pytest.param(BLOCK_STEPS, marks=pytest.mark.slow)])
def block_steps(request: pytest.FixtureRequest) -> Iterator[int]:
    """Steps of a block of a trial, of which less than a half are not timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "BLOCK_STEPS", request.param)
        patch.setattr(splitting, "UNTIMED_STEPS", splitting.UNTIMED_STEPS * request.param // BLOCK_STEPS)
        yield request.param


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_way_that_is_quicker_is_chosen_journaled_and_made_again(
    quick: bool, block_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = f"run.steps={5 + block_steps * BLOCKS + 2 * block_steps}"
    runtime = measuring(build(LateStreams(seed=2), steps), quick, monkeypatch)
    losses, events = run(runtime)
    (choice,) = [event for event in events if event.kind == "split"]
    fast, slow = (choice.details[f"{way}_seconds"] for way in (("split", "whole") if quick else ("whole", "split")))
    assert (fast, slow) == (1.0, 2.0)
    assert choice.details["split"] == runtime.splitting.chosen == quick
    assert choice.step == 5 + block_steps * BLOCKS, "after the first full window and a trial"
    assert ("run first" if quick else "run whole") in choice.text
    monkeypatch.undo()

    again = made_again(events, tmp_path, steps)
    again.splitting.measured = True
    replayed, repeated = run(again)
    assert replayed == losses, "bit for bit: the same steps were split"
    assert [event.details for event in repeated if event.kind == "split"] == [choice.details]


@pytest.mark.slow
def test_another_budget_asks_for_another_trial(block_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = 10 + (BLOCKS + 1) * block_steps
    runtime = measuring(build(LateStreams(seed=2), f"run.steps={2 * changed}"), True, monkeypatch)

    def turn(snapshot: Snapshot) -> None:
        if snapshot.step == changed:
            runtime.mailbox.send(Command("change_knobs", {"hot_budget_bytes": 2000}))

    _, events = run(runtime, turn)
    assert [event.kind for event in events if event.kind in ("split", "knobs")] == ["split", "knobs", "split"]
