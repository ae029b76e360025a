"""Every pair of values of the product's axes, see ``tests.matrix``: a cell trains as the same policy does with all rows in
memory, in one process, on the CPU; and one whose policy skips nothing, as plain steps do."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.policy.find import load_policy
from tests.cells import assert_same, plain_cell, train
from tests.matrix import Case, cells


@cells("parity")
def test_a_cell_trains_as_its_plain_cell_does(case: Case, tmp_path: Path, small_segments: None) -> None:
    ours, plain = train(case, tmp_path / "ours"), train(plain_cell(case), tmp_path / "plain")
    assert_same(ours, plain, case)
    policy = load_policy(case["policy"])
    assert ours.totals["samples_seen"] == plain.totals["samples_seen"] > 0
    if policy.exact:
        assert ours.totals["samples_trained"] == ours.totals["samples_seen"]
        assert ours.totals["row_updates_skipped"] == 0
    if policy.exact and not policy.reorders_stream and case["policy"] != "hybrid":
        steps = train(plain_cell({**case, "policy": "hybrid"}), tmp_path / "hybrid")
        assert_same(ours, steps, {**case, "device": "other"})
    if case["policy"] in ("hotline", "device_only"):
        assert ours.totals["lookups_hot"] > 0
    if case["policy"] in ("hotline", "slipstream", "random_skip", "adaptive"):
        assert ours.totals["migrated_rows"] > 0
    if case["policy"] in ("slipstream", "random_skip"):
        assert ours.totals["samples_trained"] < ours.totals["samples_seen"]
