"""The contract of policies in odd worlds, and under no budget and one beyond all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.matrix import Case, always, grid
from tests.policies.test_contract import (
    DEVICES,
    POLICIES,
    USERS,
    arranged,
    assert_contract,
    assert_equal_tables,
)
from tests.policies.worlds import WORLDS


def rotated(cases: Sequence[Case]) -> list[Case]:
    """Each policy meets some of the other values, each of them meets some policies, and the devices take turns."""
    first, second, _ = list(cases[0])
    ones, others = ([*dict.fromkeys(case[axis] for case in cases)] for axis in (first, second))
    turns = {"direct": 0, "late": 1}
    return [
        case
        for case in cases
        if (ones.index(case[first]) + others.index(case[second])) % 3 == 0
        and (ones.index(case[first]) + others.index(case[second]) // 3) % 2 == turns[case["device"]]
    ]


@grid(always, rotated, policy=POLICIES, name=list(WORLDS), device=DEVICES)
def test_odd_worlds_keep_the_contract(watch: Any, plain: Any, policy: str, name: str, device: str) -> None:
    changes = ("run.split=always", "knobs.action=drop", "knobs.hot_budget_bytes=1500", "knobs.prefetch_depth=3")
    seen = watch(policy, *changes, device=device, world=WORLDS[name])
    assert_contract(seen)
    if seen.runtime.policy.exact:
        assert_equal_tables(seen, plain(arranged(seen) or WORLDS[name]))
    if name == "no row comes back" and policy in ("hybrid", "hotline", "slipstream", "random_skip"):
        assert seen.totals["samples_popular"] == 0


@grid(always, lambda cases: rotated(cases)[::2], policy=POLICIES, budget_bytes=[0, 1, 1 << 50], device=DEVICES)
def test_a_budget_of_nothing_and_one_beyond_all_rows_keep_the_contract(
    watch: Any, policy: str, budget_bytes: int, device: str
) -> None:
    seen = watch(
        policy, f"knobs.hot_budget_bytes={budget_bytes}", "knobs.action=drop", "run.split=always", device=device
    )
    assert_contract(seen)
    rows = seen.runtime.store.space.rows
    if policy == "device_only" or (policy == USERS and budget_bytes > 1):
        assert seen.runtime.store.hot.tier.hot_rows == rows
    elif policy in ("hybrid", "xdl") or budget_bytes <= 1:
        assert seen.runtime.store.hot.bytes == 0
    else:
        assert 0 < seen.runtime.store.hot.tier.hot_rows <= sum(seen.runtime.store.hot.tier.capacities) == rows
