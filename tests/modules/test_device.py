"""The same on a device: cold rows travel, and results are those of plain PyTorch. The device is that of `late_streams.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from adaptive_rec.embedding.late_streams import LateStreams
from adaptive_rec.modules import bag, collection, options, wrap

from .training import CASES, Loop, assert_moved, assert_same, plain


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
    plain = options.setup_of

    def on_device(given: Any, place: torch.device) -> options.Setup:
        return replace(plain(given, place), streams=ReadableStreams(seed=3))

    for module in (bag, collection, wrap):
        monkeypatch.setattr(module, "setup_of", on_device)


STEPS = 40


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("prefetch", [True, False], ids=["prefetch", "in line"])
@pytest.mark.parametrize(
    ("case", "rule"), [("dlrm", "adagrad"), ("dlrm", "sparse_adam"), ("two_tower", "sgd"), ("deepfm", "adagrad")]
)
def test_a_loop_on_a_device_equals_plain_pytorch(case: str, rule: str, prefetch: bool) -> None:
    """A table that is used twice is updated once; tables of several dims travel in one flight."""
    ours = Loop(CASES[case], rule, {}, prefetch=prefetch).run(STEPS)
    assert ours.runtime.store.stages_ahead
    assert_same(ours, plain(case, rule, STEPS))
    assert_moved(ours.runtime)
    assert ours.runtime.store.traffic.host_to_device_bytes > 0
    assert (ours.runtime.stats().looked_up_ahead_ratio == 1) is prefetch


@pytest.mark.usefixtures("_device")
def test_a_look_that_is_no_step_changes_nothing_of_what_is_on_its_way() -> None:
    """Evaluation between two steps, and a batch that is looked up and never trained."""
    loop = Loop(CASES["dlrm"], "adagrad", {}, prefetch=True)

    def look_first(model: Any, batch: Any, own: Loop) -> torch.Tensor:
        with torch.no_grad():
            before = own.case.loss(model, batch)
        loss = own.forward_backward(model, batch, own)
        assert loss.item() == before.item()
        return loss

    loop.step = look_first
    ours = loop.run(STEPS)
    assert_same(ours, plain("dlrm", "adagrad", STEPS))
