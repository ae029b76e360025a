"""A wrapped model trains to the losses and rows of plain PyTorch, whatever tiers its rows are in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError

from .cases import few_or_many_steps
from .training import CASES, QUICK_WINDOWS, RULES, Loop, assert_moved, assert_same, data, plain

STEPS, FEW = 50, 12


@few_or_many_steps(FEW, STEPS, case=CASES, rule=RULES)
def test_a_model_trains_to_the_same_losses(case: str, rule: str, steps: int) -> None:
    ours = Loop(CASES[case], rule, {}, prefetch=True).run(steps)
    assert_same(ours, plain(case, rule, steps))
    assert_moved(ours.runtime)
    assert ours.runtime.step_number == ours.runtime.stats().steps == steps


@few_or_many_steps(
    FEW,
    STEPS,
    options=[
        {"policy": "hotline"},
        {"policy": "hotline", "reclassify_every": 1, "budget": 3000},
        {"policy": "hotline", "budget": "1GiB"},
        {"policy": "hotline", "budget": 0},
        {"policy": "hybrid"},
        {"policy": "slipstream", "target_skip_ratio": 0.0, "action": "freeze"},
    ],
    prefetch=[True, False],
)
def test_losses_are_the_same_under_any_exact_policy_and_budget(options: dict[str, Any], prefetch: bool, steps: int) -> None:
    ours = Loop(CASES["dlrm"], "adagrad", options, prefetch=prefetch).run(steps)
    assert_same(ours, plain("dlrm", "adagrad", steps))
    if options["policy"] != "hybrid" and options.get("budget") not in (0, "1GiB"):
        assert_moved(ours.runtime)


@few_or_many_steps(FEW, STEPS, case=CASES, prefetch=[False, True])
def test_losses_are_the_same_with_updates_in_the_backward_pass(case: str, prefetch: bool, steps: int) -> None:
    ours = Loop(CASES[case], "adagrad", {"update": "backward"}, prefetch=prefetch).run(steps)
    assert_same(ours, plain(case, "adagrad", steps))
    assert_moved(ours.runtime)


@few_or_many_steps(FEW, STEPS, case=["two_tower", "kjt"])
def test_losses_are_the_same_without_prefetching(case: str, steps: int) -> None:
    ours = Loop(CASES[case], "sparse_adam", {}).run(steps)
    assert_same(ours, plain(case, "sparse_adam", steps))
    assert_moved(ours.runtime)


@few_or_many_steps(FEW, STEPS, depth=[0, 1, 7])
def test_losses_are_the_same_at_any_prefetch_depth(depth: int, steps: int) -> None:
    ours = Loop(CASES["two_tower"], "adagrad", {"prefetch_depth": depth}, prefetch=True).run(steps)
    assert_same(ours, plain("two_tower", "adagrad", steps))


@pytest.mark.parametrize(
    ("rule", "steps"), [("adagrad", FEW), *(pytest.param(rule, STEPS, marks=pytest.mark.slow) for rule in RULES)]
)
def test_a_learning_rate_scheduler_keeps_working(rule: str, steps: int) -> None:
    ours = Loop(CASES["dlrm"], rule, {}, prefetch=True, scheduled=True).run(steps)
    assert_same(ours, plain("dlrm", rule, steps, scheduled=True))
    assert ours.losses != plain("dlrm", rule, steps).losses


def test_an_approximate_policy_only_leaves_out_updates_of_stale_rows() -> None:
    skipping = {"policy": "slipstream", "target_skip_ratio": 0.9, "min_touch_ratio": 0.0, "probe_ratio": 0.5}
    ours, exact = Loop(CASES["dlrm"], "adagrad", skipping, prefetch=True).run(STEPS), plain("dlrm", "adagrad", STEPS)
    assert ours.losses[:5] == pytest.approx(exact.losses[:5], rel=1e-12)
    assert ours.losses != pytest.approx(exact.losses, rel=1e-12)
    assert ours.losses == pytest.approx(exact.losses, rel=0.05)


# Knobs ---------------------------------------------------------------------------------------------------------------


def test_knobs_turned_between_steps_change_where_rows_are_and_nothing_else() -> None:
    turns = {
        8: {"hot_budget_bytes": "8KiB"}, 16: {"policy": "hybrid"}, 24: {"policy": "hotline", "hot_budget_bytes": "64KiB"},
        30: {"prefetch_depth": 0, "reclassify_every": 2}, 45: {"hot_budget_bytes": 0},
    }  # fmt: skip
    bytes_at = {}

    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        if loop.runtime is not None:
            bytes_at[loop.number] = loop.runtime.stats().device_bytes
            if loop.number in turns:
                loop.runtime.set_knobs(**turns[loop.number])
        return loop.forward_backward(model, batch, loop)

    ours = Loop(CASES["dlrm"], "adagrad", {}, prefetch=True, step=step).run(STEPS)
    assert_same(ours, plain("dlrm", "adagrad", STEPS))
    assert bytes_at[8] > 8 << 10 >= max(bytes_at[step] for step in range(10, 17))
    assert bytes_at[44] > 8 << 10
    assert bytes_at[STEPS - 1] == 0


@pytest.mark.parametrize("policy", ["cdlrm", "fae", "xdl", "oracle"])
def test_a_policy_that_cannot_work_here_is_refused_by_name(policy: str) -> None:
    with pytest.raises(AdaptiveRecError, match=policy):
        Loop(CASES["dlrm"], "adagrad", {"policy": policy})
    loop = Loop(CASES["dlrm"], "adagrad", {})
    with pytest.raises(AdaptiveRecError, match=policy):
        loop.runtime.set_knobs(policy=policy)
    loop.run(3)


def test_a_single_bag_trains_like_a_wrapped_one() -> None:
    torch.manual_seed(3)
    theirs = nn.EmbeddingBag(500, 8, mode="sum", sparse=True)
    ours = adaptive_rec.AdaptiveEmbeddingBag(
        500, 8, mode="sum", _weight=theirs.weight.detach().clone(), budget="8KiB", optimizer="adagrad", lr=0.1,
        knobs=QUICK_WINDOWS,
    )  # fmt: skip
    optimizer = torch.optim.Adagrad(theirs.parameters(), lr=0.1)
    for batch in data.clicks(40, 32):
        ids, offsets = batch.bags[1][0] % 500, batch.bags[1][1]
        losses = []
        for bag in (theirs, ours):
            optimizer.zero_grad()
            losses.append(bag(ids, offsets).tanh().square().sum())
            losses[-1].backward()
            optimizer.step()
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-12)
    torch.testing.assert_close(ours.weight.detach().clone(), theirs.weight.detach(), rtol=0, atol=1e-12)
    assert_moved(ours.runtime)
