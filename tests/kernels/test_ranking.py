"""Passes over rows that are ranked, beside their plain twins."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.kernels import ranking
from adaptive_rec.kernels.jit import MIN_LOOKUPS, usable_threads
from tests.kernels.reference import ranking as plain

SIZES = 0, 1, 1000, MIN_LOOKUPS + 7
THREADS = 1, usable_threads(2), usable_threads(3)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("size", SIZES)
def test_hot_rows_are_found_as_by_the_plain_twin(size: int, threads: int) -> None:
    random = np.random.default_rng(size)
    slot_of_row = random.integers(-3, 3, 500).astype(np.int32)
    rows = random.integers(0, 500, size)
    np.testing.assert_array_equal(ranking.are_hot(slot_of_row, rows, threads), plain.are_hot(slot_of_row, rows))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bounds", [(-np.inf, 0.25), (0.25, np.inf), (0.25, 0.5), (2.0, 1.0), (-np.inf, -np.inf)])
def test_places_are_found_as_by_the_plain_twin(bounds: tuple[float, float], size: int, threads: int) -> None:
    random = np.random.default_rng(size)
    scores = random.integers(0, 16, size) / 16
    scores[random.random(size) < 0.1] = -np.inf
    found = ranking.places_between(scores, *bounds, threads)
    np.testing.assert_array_equal(found, plain.places_between(scores, *bounds))
    assert found.dtype == np.int64
