"""Columns of a matrix: the kernel beside its plain twin, whatever the threads."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.kernels.columns import pick_columns
from tests.kernels.reference import columns as plain


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize(("samples", "threads"), [(3, 1), (600, 2)])
def test_the_kernel_equals_its_plain_twin(dtype: type, samples: int, threads: int) -> None:
    dice = np.random.default_rng(samples)
    table_SN = dice.integers(-1000, 1000, (samples, 9)).astype(dtype)
    column_P = np.array([8, 0, -1, 3, 3, -1, 7])
    found = [np.full((samples, 10), 5, dtype) for _ in range(2)]
    for pick, out in zip((pick_columns, plain.pick_columns), found, strict=True):
        pick(table_SN, column_P, 2, out, threads)
    np.testing.assert_array_equal(*found)
    assert (found[0][:, [0, 1, 9]] == 5).all()
    assert (found[0][:, [4, 7]] == 0).all()
