"""Every pair of values of the product's axes, see ``tests.matrix``: a cell that is evaluated while it trains has the scores of
its plain cell, or ends as one that is never evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cells import assert_same, computes_alike, plain_cell, train
from tests.matrix import Case, cells

HELD_OUT = ["data.synthetic.test_samples=60"]


@cells("runtime")
def test_a_cell_that_is_evaluated_has_the_scores_of_its_plain_cell(case: Case, tmp_path: Path, small_segments: None) -> None:
    ours = train(case, tmp_path / "ours", settings=[*HELD_OUT, "eval.every_steps=5"])
    assert len(ours.scores) >= 2
    assert np.isfinite([*ours.scores.values()]).all()
    # Numbers of 32 bits drift from those of another device or more ranks: such a cell ends as itself, never evaluated.
    if case["precision"] != "float64" and not computes_alike(case):
        other = train(case, tmp_path / "other", settings=HELD_OUT)
        np.testing.assert_array_equal(ours.losses, other.losses)
        for mine, theirs in zip([*ours.rows, *ours.dense], [*other.rows, *other.dense], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    else:
        other = train(plain_cell(case), tmp_path / "other", settings=[*HELD_OUT, "eval.every_steps=5"])
        assert_same(ours, other, case)
        assert ours.scores.keys() == other.scores.keys()
        np.testing.assert_allclose([*ours.scores.values()], [*other.scores.values()], rtol=1e-12)
