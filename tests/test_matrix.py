"""The cover of the product's axes holds what it says."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.policy.find import BUILT_IN, load_policy
from tests.matrix import (
    ARRANGING,
    AXES,
    OWN_LOOP,
    OWN_LOOP_ELSEWHERE,
    SUITES,
    cover,
    drawn,
    each,
    left_to_check,
    pairs_of,
    pairwise,
    possible_pairs,
    product,
    refusal_of,
    share,
)


def test_the_axes_name_all_policies_and_which_of_them_arrange() -> None:
    assert set(AXES["policy"]) == set(BUILT_IN)
    found = {name for name in BUILT_IN if (policy := load_policy(name)).arranges_stream or policy.request_per_table}
    assert found == set(ARRANGING)


def test_every_possible_pair_is_run_in_make_test() -> None:
    """By one of the suites; what a suite leaves to `make check` is run there by that suite, and by another one here."""
    of_loop = {axis: ("runtime",) if axis == "loop" else values for axis, values in AXES.items()}
    run = {suite: set().union(*map(pairs_of, share(suite))) for suite in SUITES}
    assert set().union(*run.values()) == possible_pairs(of_loop)
    for suite in SUITES:
        left = left_to_check(suite)
        assert left, "a part of the cover has not all pairs"
        assert not left & run[suite]
        assert left <= set().union(*(run[other] for other in SUITES if other != suite))
        assert (Path(__file__).parent / suite / "test_cells.py").exists()
    assert all(refusal_of(case) is None for case in [*cover(), *cover("own"), *drawn(50, 1)])


def test_the_axes_of_a_loop_of_one_s_own_are_covered_or_name_their_tests() -> None:
    assert {*OWN_LOOP, *OWN_LOOP_ELSEWHERE, "loop"} == set(AXES)
    assert all((Path(__file__).parent / file).exists() for file in OWN_LOOP_ELSEWHERE.values())
    axes = {"loop": ("own",)} | {axis: AXES[axis] for axis in OWN_LOOP}
    assert {frozenset(p) for case in cover("own") for p in pairs_of(case)} == {frozenset(p) for p in possible_pairs(axes)}


def test_some_cases_have_all_pairs_or_all_values_of_the_product() -> None:
    cases = product({"a": range(4), "b": "xyz", "c": [True, False]}, lambda case: case["a"] != 3 or case["c"])
    pairs = set().union(*map(pairs_of, cases))
    assert set().union(*map(pairs_of, pairwise(cases))) == pairs
    assert 12 <= len(pairwise(cases)) <= 14 < len(cases)
    values = {item for case in cases for item in case.items()}
    assert {item for case in each(cases) for item in case.items()} == values
    assert len(each(cases)) == 4
