"""Statistics against printed tables, plain arithmetic and simulated seeds."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from adaptive_rec.offline.compare.statistics import difference, holm, interval, t_quantile, t_share_below

T_TABLE = {(0.975, 1): 12.7062, (0.975, 2): 4.3027, (0.975, 4): 2.7764, (0.95, 9): 1.8331, (0.995, 30): 2.7500}
"""From printed tables."""


@pytest.mark.parametrize(("share", "freedom"), T_TABLE)
def test_t_is_that_of_the_tables(share: float, freedom: int) -> None:
    assert t_quantile(share, freedom) == pytest.approx(T_TABLE[share, freedom], abs=5e-5)


@pytest.mark.parametrize("freedom", [1, 2, 3, 6, 11])
def test_t_is_the_integral_of_its_density(freedom: int) -> None:
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    width, end = 1e-3, 3.7
    middles = ((n + 0.5) * width for n in range(round(end / width)))
    area = sum(scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2) * width for t in middles)
    assert t_share_below(end, freedom) == pytest.approx(0.5 + area, abs=1e-6)
    assert t_share_below(-end, freedom) == pytest.approx(0.5 - area, abs=1e-6)


def test_intervals_hold_the_mean_in_95_percent_of_cases() -> None:
    dice = random.Random(1)
    held = 0
    for _ in range(1000):
        found = interval([dice.gauss(7, 2) for _ in range(4)])
        assert found.low is not None
        assert found.high is not None
        held += found.low < 7 < found.high
    assert 0.93 < held / 1000 < 0.97


def test_paired_differences_are_those_of_plain_arithmetic() -> None:
    ours, base = [0.71, 0.74, 0.69, 0.75], [0.70, 0.72, 0.69, 0.72]
    gains = [one - other for one, other in zip(ours, base, strict=True)]
    found = difference(ours, base)
    half = 3.1824 * stdev(gains) / 2  # t at 97.5 % with 3 degrees of freedom, over the root of 4
    assert found.mean == pytest.approx(fmean(gains))
    assert [found.low, found.high] == pytest.approx([found.mean - half, found.mean + half], abs=1e-6)
    stats = pytest.importorskip("scipy.stats", reason="scikit-learn, of the extra dev, brings scipy")
    assert found.chance == pytest.approx(stats.ttest_rel(ours, base).pvalue)


def test_ratios_are_shares_whatever_the_unit() -> None:
    found = difference([50.0, 60.0, 44.0], [100.0, 110.0, 90.0], ratio=True)
    assert found.mean == pytest.approx(((50 * 60 * 44) / (100 * 110 * 90)) ** (1 / 3) - 1)
    assert difference([0.5, 0.6, 0.44], [1.0, 1.1, 0.9], ratio=True).low == pytest.approx(found.low)


def test_a_common_shift_of_seeds_is_no_noise() -> None:
    """Paired by seed: the seeds differ by much more than the policies do."""
    base = [0.60, 0.70, 0.80]
    found = difference([0.6101, 0.7100, 0.8099], base)
    assert found.chance is not None
    assert found.chance < 0.001
    alone = interval([0.6101, 0.7100, 0.8099])
    assert alone.low is not None
    assert alone.low < 0.6


def test_fewer_than_three_seeds_give_no_interval() -> None:
    found = difference([1.0, 1.1], [2.0, 2.1])
    assert (found.low, found.high, found.chance) == (None, None, None)
    assert interval([1.0, 5.0]).low is None


def test_equal_in_every_seed_is_certain() -> None:
    assert difference([0.5] * 3, [0.5] * 3).chance == 1.0
    assert difference([0.75] * 3, [0.5] * 3).chance == 0.0


def test_holm_multiplies_by_the_number_still_in_question() -> None:
    assert holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert holm([0.9, 0.5]) == [1.0, 1.0]


def test_holm_keeps_false_findings_rare() -> None:
    dice = random.Random(2)
    alone = together = 0
    for _ in range(300):
        chances = [difference([dice.gauss(0, 1) for _ in range(3)], [0.0] * 3).chance for _ in range(8)]
        alone += any(p is not None and p < 0.05 for p in chances)
        together += any(p is not None and p < 0.05 for p in holm(chances))
    assert alone / 300 > 0.2
    assert together / 300 < 0.08
