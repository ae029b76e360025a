"""The measurement of growing costs on sizes of a moment."""

from __future__ import annotations

import argparse
import math

import pytest

from benchmarks import growth


def test_an_exponent_is_the_slope_between_two_sizes_and_is_left_out_where_there_is_none() -> None:
    assert growth.exponent((10.0, {"step ms": 2.0}), 1000.0, "step ms", 20.0) == " (+0.50)"
    assert growth.exponent((10.0, {"step ms": 0.0}), 1000.0, "step ms", 20.0) == ""
    assert growth.exponent(None, 1000.0, "step ms", 20.0) == ""


@pytest.mark.parametrize(("axis", "size"), [("raw_ids", 500), ("features", 3)])
def test_costs_are_measured(axis: str, size: int) -> None:
    costs = growth.AXES[axis](size, argparse.Namespace(steps=2))
    assert costs["step ms"] > 0
    assert all(math.isfinite(cost) and cost > 0 for cost in costs.values())
