"""What doubles/host_kernels.py owes beyond its results (see test_cuda.py): the same calls, and what a monitor measures."""

from __future__ import annotations

import inspect
from types import ModuleType

import numpy as np
import pytest
import torch

from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels import row_update
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.tracking.delta import UpdateDeltaMonitor
from tests.doubles import host_kernels
from tests.kernels.reference import cuda as reference

CALLS = ["gather_pooled", "sum_pieces", "apply_rows", "movement", "copy_rows", "take_rows", "fill_lines"]


@pytest.mark.parametrize("call", CALLS)
def test_both_modules_have_the_same_calls(call: str, interpreted_kernels: ModuleType) -> None:
    assert inspect.signature(getattr(host_kernels, call)) == inspect.signature(getattr(interpreted_kernels, call))


def public(module: ModuleType) -> set[str]:
    return {name for name, _ in inspect.getmembers(module, inspect.isfunction) if not name.startswith("_")}


def test_neither_module_has_a_call_that_the_other_lacks(interpreted_kernels: ModuleType) -> None:
    own = {name for name in public(host_kernels) if getattr(host_kernels, name).__module__ == host_kernels.__name__}
    assert own == set(CALLS)
    assert set(CALLS) <= public(interpreted_kernels)


@pytest.mark.parametrize("rule", [rule.code for rule in NAMED_RULES.values()])
@pytest.mark.parametrize("step", [1, 2, 5000])
def test_rows_are_updated_as_by_the_kernel_of_the_cpu(rule: int, step: int) -> None:
    """It is that kernel, but Adam's correction arrives as a number instead of a step."""
    random = np.random.default_rng(step)
    row_rule = RowRule(rule, 1e-8, 0.9, 0.999)
    width = row_rule.state_width(4)
    tiers = [np.abs(random.normal(size=(6, columns))) for columns in (4, width, 4, width)]
    mine = [torch.from_numpy(tier.copy()) for tier in tiers]
    grad_UD, source_U = random.normal(size=(5, 4)), np.array([3, ~2, 0, ~5, ~0])
    active_U = np.array([True, True, False, True, True])
    row_update.apply_rows(
        rule, row_rule.at(step, 0.05), source_U, grad_UD, active_U,
        row_update.TierArrays(*tiers),
    )

    hyper_5 = torch.tensor([0.05, 1e-8, 0.9, 0.999, row_rule.bias_correction(step)], dtype=torch.float64)
    one_each, source = torch.arange(6, dtype=torch.int32), torch.from_numpy(source_U.astype(np.int32))
    host_kernels.apply_rows(
        rule, hyper_5, one_each, torch.from_numpy(grad_UD), source, torch.from_numpy(active_U), *mine, None, None
    )
    for tensor, tier in zip(mine, tiers, strict=True):
        np.testing.assert_allclose(tensor.numpy(), tier, rtol=1e-13, atol=0)


def test_movement_is_what_a_monitor_measures() -> None:
    random = torch.Generator().manual_seed(3)
    monitor = UpdateDeltaMonitor(9, 5)
    weights = torch.randn((9, 5), generator=random)
    slots = torch.tensor([1, 4, 7])
    before = weights[slots]
    weights[slots] += torch.randn((3, 5), generator=random)
    monitor.observe(slots, before, weights[slots])
    out = torch.empty((9, 4))
    host_kernels.movement(monitor.record_HR, weights, out)
    torch.testing.assert_close(out, monitor.measure(weights))
    np.testing.assert_allclose(out, reference.movement(monitor.record_HR.numpy(), weights.numpy()), rtol=1e-6)
