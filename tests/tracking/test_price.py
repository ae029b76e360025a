"""Prices of trials: means of blocks, their errors, and the bound."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.offline.compare.statistics import t_quantile
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.price import Pooled, Price, price_of, t_bound


def test_a_price_is_of_block_means() -> None:
    dice, pooled = np.random.default_rng(5), Pooled()
    first, second = (dice.normal(1e-3, 2e-3, 120) for _ in range(2))
    price_of(first, 80, pooled, 5, 10, None)
    price = price_of(second, 80, pooled, 5, 10, first)
    within = [part.reshape(-1, 8).mean(axis=1) for each in (first, second) for part in (each[40:80], each[104:120])]
    variance = sum(((part - part.mean()) ** 2).sum() for part in within) / 10
    assert (price.during, price.after) == (pytest.approx(second[40:80].mean()), pytest.approx(second[104:].mean()))
    assert price.error_during == pytest.approx(np.sqrt(variance / 5))
    assert price.error_after == pytest.approx(np.sqrt(variance / 2))
    assert (price.chance, price.chance_after) == (pytest.approx(first[40:80].mean()), pytest.approx(first[104:].mean()))
    assert price.quantile == pytest.approx(t_quantile(0.95, 10), rel=1e-3)
    assert Price.of(Saved(price.state(), "price")) == price


def test_the_quantile_is_students() -> None:
    for freedom in (3, 4, 5, 8, 20, 100):
        assert t_bound(freedom) == pytest.approx(t_quantile(0.95, freedom), rel=5e-3)


def test_a_bound_covers_the_truth() -> None:
    dice, missed = np.random.default_rng(7), 0
    for _ in range(400):
        price = price_of(dice.normal(2e-3, 3e-3, 120), 80, Pooled(), 5, 10, None)
        missed += price.during + price.quantile * price.error_during < 2e-3
    assert missed < 0.09 * 400, "5 % were wanted"
