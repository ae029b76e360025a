"""Every pair of values of the product's axes, see ``tests.matrix``: a cell that is saved and resumed by a fresh run on the way
ends as the unbroken one of all rows in memory, in one process, on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cells import assert_same, computes_alike, plain_cell, train
from tests.matrix import Case, cells


@cells("checkpoint")
def test_a_resumed_cell_ends_as_an_unbroken_plain_one(case: Case, tmp_path: Path, small_segments: None) -> None:
    # Numbers of 32 bits drift from those of another device or more ranks: such a cell ends as itself, unbroken.
    drifts = case["precision"] != "float64" and not computes_alike(case)
    resumed = train(case, tmp_path / "ours", stops=(5,))
    unbroken = train(case if drifts else plain_cell(case), tmp_path / "unbroken")
    assert 0 < len(resumed.losses) < len(unbroken.losses)
    unbroken.losses = unbroken.losses[-len(resumed.losses) :]
    if drifts:
        np.testing.assert_array_equal(resumed.losses, unbroken.losses)
        for mine, theirs in zip([*resumed.rows, *resumed.dense], [*unbroken.rows, *unbroken.dense], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    else:
        assert_same(resumed, unbroken, case)
    assert resumed.totals["samples_seen"] == unbroken.totals["samples_seen"]
