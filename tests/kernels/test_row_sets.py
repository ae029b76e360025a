"""Sets of rows as bits beside their plain twin."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.kernels.row_sets import are_in


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_found_as_by_the_plain_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, span = random.integers(0, 10**9), random.integers(1, 500)
    rows, others = (random.integers(first, first + span, random.integers(0, 200)) for _ in range(2))
    np.testing.assert_array_equal(are_in(rows, others), np.isin(rows, others))
