"""Every pair of values of the product's axes, see ``tests.matrix``: a cell whose knobs change while it trains ends as the
plain cell whose knobs change at the same steps."""

from __future__ import annotations

from pathlib import Path

from tests.cells import assert_same, plain_cell, train
from tests.matrix import Case, cells

CHANGES = {2: {"prefetch_depth": 0}, 4: {"prefetch_depth": 4, "reclassify_every": 2}}
FEWER_HOT_ROWS = {7: {"hot_budget_bytes": 700}}
"""Not where all rows must be hot, see ``tests.cells.settings_of``."""


@cells("policies")
def test_a_cell_whose_knobs_change_trains_as_its_plain_cell_does(case: Case, tmp_path: Path, small_segments: None) -> None:
    at = CHANGES if case["ranks"] > 1 else {**CHANGES, **FEWER_HOT_ROWS}
    ours, plain = (train(one, tmp_path / name, at=at) for name, one in (("ours", case), ("plain", plain_cell(case))))
    assert_same(ours, plain, case)
    assert (ours.runtime.knobs.prefetch_depth, ours.runtime.knobs.reclassify_every) == (4, 2)
    assert case["ranks"] > 1 or ours.runtime.knobs.hot_budget_bytes == 700
    assert ours.totals["samples_trained"] == plain.totals["samples_trained"]
