"""A recorded optimizer's step is the eager one, at whatever rate, after whatever was loaded; it is recorded where it may be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.recorded_step import CONSTANT_STEPS, RecordedStep, recordable
from adaptive_rec.dense.tf32 import use_tf32

STEPS = 3 * CONSTANT_STEPS


class RecordingStreams:
    """Runs everything at once. As a real recording, capture runs the work, several times."""

    def __init__(self) -> None:
        self.recordings = self.replays = 0

    def launch(self, work: Any) -> None:
        work()

    def capture(self, work: Any) -> Any:
        self.recordings += 1
        for _ in range(4):
            work()

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def trained(make: Any, options: dict[str, Any], recorded: bool, changes: Any = lambda number, optimizer: None) -> Any:
    """Parameters and state after some steps with made-up gradients, and the streams."""
    dice = torch.Generator().manual_seed(3)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=dice)) for shape in ((5, 4), (4,))]
    optimizer, streams, sums = make(parameters, lr=0.1, **options), RecordingStreams(), torch.zeros(1)

    def work() -> None:
        sums.add_(1)
        optimizer.step()

    step = RecordedStep(optimizer, work, lambda: [sums], streams) if recorded else work  # type: ignore[arg-type]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for number in range(STEPS):
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.copy_(torch.randn(parameter.shape, generator=dice))
        changes(number, optimizer)
        step()
    state = [value for of in optimizer.state.values() for value in of.values()]
    return [*(parameter.detach() for parameter in parameters), *state, sums], streams


RECORDED = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.Adagrad, {"foreach": True}),
    (torch.optim.Adagrad, {"foreach": False}),
]


@pytest.mark.parametrize(("make", "options"), RECORDED)
def test_a_recorded_step_is_the_eager_one_bit_for_bit(make: Any, options: dict[str, Any]) -> None:
    found, streams = trained(make, options, recorded=True)
    expected, _ = trained(make, options, recorded=False)
    assert (streams.recordings, streams.replays) == (1, STEPS - CONSTANT_STEPS)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def schedule(number: int, optimizer: Any) -> None:
    """The rate changes at every step for a while, then once."""
    optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * min(number, CONSTANT_STEPS // 2) + 0.02 * (number > STEPS - 3)


def reloads(number: int, optimizer: Any) -> None:
    if number == 2 * CONSTANT_STEPS:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("changes", [schedule, reloads])
def test_other_rates_and_a_loaded_state_end_a_recording(changes: Any) -> None:
    found, streams = trained(torch.optim.Adagrad, {}, True, changes)
    expected, _ = trained(torch.optim.Adagrad, {}, False, changes)
    assert streams.recordings == 1
    assert 0 < streams.replays < STEPS - CONSTANT_STEPS
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_only_a_step_that_no_counter_changes_is_recorded() -> None:
    def made(kind: Any, **options: Any) -> Any:
        return kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **options)

    assert recordable(made(torch.optim.Adam, capturable=True))
    assert not recordable(made(torch.optim.Adam))
    assert not recordable(made(torch.optim.Adagrad, lr_decay=0.1))
    assert not recordable(made(torch.optim.Rprop))
    _, streams = trained(torch.optim.Adagrad, {"lr_decay": 0.1}, recorded=True)
    assert streams.recordings == 0


def test_tf32_is_for_devices_and_is_off_for_every_other_precision() -> None:
    use_tf32(True)
    assert torch.backends.cuda.matmul.allow_tf32
    use_tf32(False)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert load_config(None, {}, ["run.precision=tf32"]).run.precision == "tf32"
