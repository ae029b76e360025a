"""On a device cold rows are sent, and results are those of plain PyTorch. The device is that of `late_streams.py`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive_rec.embedding.cold.cascade import Cascade
from adaptive_rec.embedding.staged.device_step import DeviceStep
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.modules.api import bag, collection_tables, options, wrap
from adaptive_rec.modules.loop.step_parts import StepParts
from tests.doubles.late_streams import LateStreams

from . import raw_keys
from .cases import few_or_many_steps
from .training import CASES, QUICK_WINDOWS, Loop, assert_moved, assert_same, fewer_rows, plain


class ReadableStreams(LateStreams):
    """Copies are late as ever, but what was computed can be read: the loop computes with it at once, outside of any queue."""

    def launch(self, work: Callable[[], object]) -> None:
        with self._lock:
            inside = self._running
            super().launch(work)
            if not inside:
                self.host_waits(self.compute_event())


@pytest.fixture
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = options.setup_from

    def on_device(given: Any, place: torch.device) -> options.Setup:
        return replace(plain(given, place), streams=ReadableStreams(seed=3))

    for module in (bag, collection_tables, wrap):
        monkeypatch.setattr(module, "setup_from", on_device)


FEW, MANY = 20, 40
each_size = few_or_many_steps(FEW, MANY)


@pytest.mark.usefixtures("_device")
@few_or_many_steps(
    FEW,
    MANY,
    model=[("dlrm", "adagrad"), ("dlrm", "sparse_adam"), ("two_tower", "sgd"), ("deepfm", "adagrad")],
    prefetch=[True, False],
)
def test_a_loop_on_a_device_equals_plain_pytorch(model: tuple[str, str], prefetch: bool, steps: int) -> None:
    """A table that is used twice is updated once; tables of several dims travel in one flight."""
    case, rule = model
    ours = Loop(CASES[case], rule, {}, prefetch=prefetch).run(steps)
    assert ours.runtime.store.path.stages_ahead
    assert_same(ours, plain(case, rule, steps))
    assert_moved(ours.runtime)
    assert ours.runtime.store.index.traffic.host_to_device_bytes > 0
    assert (ours.runtime.stats().looked_up_ahead_ratio == 1) is prefetch


@pytest.mark.usefixtures("_device")
@each_size
def test_evaluating_between_steps_does_not_change_prefetched_rows(steps: int) -> None:
    """Evaluation between two steps, and a batch that is looked up and never trained."""
    loop = Loop(CASES["dlrm"], "adagrad", {}, prefetch=True)

    def look_first(model: Any, batch: Any, own: Loop) -> torch.Tensor:
        with torch.no_grad():
            before = own.case.loss(model, batch)
        loss = own.forward_backward(model, batch, own)
        assert loss.item() == before.item()
        return loss

    loop.step = look_first
    ours = loop.run(steps)
    assert_same(ours, plain("dlrm", "adagrad", steps))


@pytest.mark.usefixtures("_device")
@each_size
def test_a_table_loaded_after_a_step_is_read_by_the_next_one(steps: int) -> None:
    """Though the next batches were sent ahead with its former rows, and none of them was hot."""
    losses = []
    for given in (None, {"policy": "hybrid"}):
        loop = Loop(CASES["dlrm"], "adagrad", given, prefetch=given is not None)

        def load_behind(model: Any, batch: Any, own: Loop) -> torch.Tensor:
            loss = own.forward_backward(model, batch, own)
            own.update()
            own.zero_grad()
            if own.number == 5:
                state = model.state_dict()
                model.load_state_dict({name: value / 2 for name, value in state.items()})
            return loss

        loop.step = load_behind
        losses.append(loop.run(steps).losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


@pytest.mark.usefixtures("_device")
@each_size
def test_a_nested_prefetch_loop_looks_up_in_its_forward_calls(steps: int) -> None:
    loop = Loop(CASES["dlrm"], "adagrad", {}, prefetch=True)

    def look_around(model: Any, batch: Any, own: Loop) -> torch.Tensor:
        loss = own.forward_backward(model, batch, own)
        if own.number % 7 == 3:
            with torch.no_grad():
                for held_out in own.runtime.prefetch(own.case.batches(3), sparse=own.case.lookups):
                    own.case.loss(model, held_out)
        return loss

    loop.step = look_around
    ours = loop.run(steps)
    assert_same(ours, plain("dlrm", "adagrad", steps))
    assert ours.runtime.stats().looked_up_ahead_ratio == 1


@pytest.mark.usefixtures("_device")
@each_size
def test_a_failed_step_leaves_nothing_behind(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is short once, before anything was updated: the batch is left out, and that is all."""
    joined, left_out = StepParts._whole, 5

    def too_large(self: Any, pool: int, parts: list[torch.Tensor]) -> torch.Tensor:
        if self._steps_T.max() == left_out and not hasattr(self, "broke_off"):
            self.broke_off = True
            raise torch.OutOfMemoryError("no memory")
        return joined(self, pool, parts)

    losses, weights = [], []
    for given in (None, {"policy": "hybrid"}):
        monkeypatch.setattr(StepParts, "_whole", too_large)
        loop = Loop(CASES["dlrm"], "adagrad", given and {**given, "update": "backward"}, prefetch=given is not None)

        def leave_one_out(model: Any, batch: Any, own: Loop) -> torch.Tensor:
            if own.number != left_out:
                return own.forward_backward(model, batch, own)
            loss = own.case.loss(model, batch)
            if own.runtime is not None:
                with pytest.raises(torch.OutOfMemoryError):
                    loss.backward()
            own.zero_grad()
            return loss

        loop.step = leave_one_out
        trained = loop.run(steps)
        losses.append(trained.losses)
        weights.append(trained.weights)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("_device")
def test_an_interrupted_update_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Some rows may have moved by then, so the error must reach the user."""
    loop, queue = Loop(CASES["dlrm"], "adagrad", {"update": "backward"}, prefetch=True), DeviceStep._update_pool

    def out(*given: Any) -> None:
        queue(*given)
        if loop.runtime.step_number == 5:
            raise torch.OutOfMemoryError("no memory")

    def catch(model: Any, batch: Any, own: Loop) -> torch.Tensor:
        if own.number != 5:
            return own.forward_backward(model, batch, own)
        loss = own.case.loss(model, batch)
        with pytest.raises(MemoryPlanError, match="must hold an update"):
            loss.backward()
        monkeypatch.undo()
        return loss

    monkeypatch.setattr(DeviceStep, "_update_pool", out)
    loop.step = catch
    loop.run(10)
    messages = [record.message for record in caplog.records if "broke off" in record.message]
    assert len(messages) == 1
    assert "the update of step 6 broke off: some of its rows may have had it and others not" in messages[0]


@pytest.mark.usefixtures("_device")
@few_or_many_steps(FEW, MANY, announced=["of others", "and skipped"])
def test_announced_rows_that_are_never_used_are_released_while_they_are_sent(
    announced: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is slow, so that batches are given up in the middle of it."""
    loop, dice = Loop(CASES["dlrm"], "adagrad", {}, prefetch=False), random.Random(5)
    stage = loop.runtime.store.path._stager.stage

    def late(*arguments: Any) -> Any:
        if threading.current_thread().name.startswith("prefetch"):
            time.sleep(dice.random() * 0.004)
        return stage(*arguments)

    monkeypatch.setattr(loop.runtime.store.path._stager, "stage", late)
    batches = list(CASES["dlrm"].batches(steps))
    others = {id(batch): other for batch, other in zip(batches, reversed(batches), strict=True)}

    def lookups(batch: Any) -> Any:
        return CASES["dlrm"].lookups(others[id(batch)] if announced == "of others" else batch)

    losses, expected = [], Loop(CASES["dlrm"], "adagrad")
    for number, batch in enumerate(loop.runtime.prefetch(batches, sparse=lookups)):
        time.sleep(dice.random() * 0.006)
        if announced == "and skipped" and number % 3 == 1:
            continue
        for one in (loop, expected):
            one.zero_grad()
            losses.append(one.forward_backward(one.model, batch, one).item())
            one.update()
    assert losses[::2] == pytest.approx(losses[1::2], rel=1e-12)
    store = loop.runtime.store
    store.settle()
    assert not store.path._in_flight._flights
    assert not [slot for slot in store.path.ring._slots if slot._users]


@few_or_many_steps(FEW, MANY, policy=["hotline", "device_only"], prefetch=[True, False])
def test_raw_ids_on_a_device_train_as_in_memory(
    policy: str, prefetch: bool, steps: int, request: pytest.FixtureRequest
) -> None:
    """New rows travel ahead of their step, and those that are on the device before an id has them begin alike."""
    batches, found = [raw_keys.keys_at(places) for places in raw_keys.drawn(steps)], []
    for device in (False, True):
        if device:
            request.getfixturevalue("_device")
        how = raw_keys.options(optimizer="adagrad", lr=0.1, policy=policy if device else "hybrid", knobs={"admit_after": 2})
        table: Any = bag.AdaptiveEmbeddingBag(raw_keys.ROWS, raw_keys.DIM, ids="raw", **how)
        items = table.runtime.prefetch(batches, sparse=lambda ids: ids) if prefetch else batches
        losses = raw_keys.train(raw_keys.Tower(table, torch.float64), items, None)
        assert table.runtime.store.path.stages_ahead is device
        found.append((losses, raw_keys.rows_by_key(table)))
    assert table.runtime.stats().migrated_rows > 0
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-12)
    assert found[1][1].keys() == found[0][1].keys()
    for key, row in found[0][1].items():
        torch.testing.assert_close(found[1][1][key], row, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("_device", "small_segments")
@few_or_many_steps(
    FEW, MANY, model=[("dlrm", "adagrad"), ("two_tower", "sparse_adam"), ("kjt", "sgd")], prefetch=[True, False]
)
def test_rows_on_a_disk_behind_a_device_are_those_in_memory(
    model: tuple[str, str], prefetch: bool, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer_rows(monkeypatch)
    case, rule = model
    on_disk = {"host_memory": "4KiB", "disk": tmp_path / "rows", "budget": "2KiB"}
    ours = Loop(CASES[case], rule, {**on_disk, **QUICK_WINDOWS}, prefetch=prefetch).run(steps)
    theirs = Loop(CASES[case], rule, {"budget": "2KiB", **QUICK_WINDOWS}, prefetch=prefetch).run(steps)
    assert ours.losses == theirs.losses
    mine, others = ours.model.state_dict(), theirs.model.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)
    store = ours.runtime.store
    assert isinstance(store.cold, Cascade)
    assert store.cold.memory.rows > 0
    assert ours.runtime.stats().disk["rows_written"] > 0
