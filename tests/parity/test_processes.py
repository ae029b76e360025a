"""Several ranks equal one on the same batches: losses to 1e-12 relative and rows to 1e-11 in float64.

The ranks are threads here, whose messages are late by a seed; `tests/cli/test_processes.py` trains in processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.embedding.peers import lines, whole_tables
from adaptive_rec.embedding.peers.host_transport import HostTransport
from tests.cells import own_some
from tests.parity.test_parity import assert_equal, plain

CHANGES = {
    5: [{"hot_budget_bytes": 20_000}], 20: [{"prefetch_depth": 0}], 21: [{"prefetch_depth": 5}], 40: [{"policy": "hybrid"}],
    60: [{"policy": "hotline", "hot_budget_bytes": 500_000}], 75: [{"reclassify_every": 7, "prefetch_depth": 1}],
}  # fmt: skip
"""Knobs that change on the way, by step."""

STEPS, MANY = 24, 200
"""Fewer than in one process: what is wrong between ranks shows within 24, see the planted faults. Slow tests make many."""


def in_time(cases: list[Any], others: list[Any]) -> list[Any]:
    """Cases over few steps, and in `make check` these and others over many."""
    few = [(*case, STEPS) for case in cases]
    return [*few, *(pytest.param(*case, MANY, marks=pytest.mark.slow) for case in [*cases, *others])]


def slower(changes: dict[int, Any], times: int) -> dict[int, Any]:
    return {step * times: what for step, what in changes.items()}


SKIPS = [
    "knobs.stale_metric=step_length", "knobs.min_probe_touches=1", "knobs.min_touch_ratio=0", "knobs.probe_ratio=0.25",
    "knobs.guard_max_logloss_increase=1", "knobs.alpha=0.3", "knobs.reclassify_every=16",
]  # fmt: skip
"""Settings under which much is skipped in a short run."""


@pytest.mark.parametrize(
    ("ranks", "policy", "optimizer", "bags", "depth", "churn", "steps"),
    in_time(
        [
            (3, "hotline", "rowwise_adagrad", "sum", 2, True),
        ],
        [
            (2, "device_only", "adagrad", "mean", 8, False),
            (2, "hotline", "sgd", "one-hot", 0, False),
            (3, "hybrid", "lazy_adam", "mean", 1, False),
            (2, "hotline", "lazy_adam", "sum", 4, True),
            (3, "hotline", "adagrad", "one-hot", 3, True),
        ],
    ),
)  # fmt: skip
def test_several_ranks_equal_one(
    train: Any, ranks: int, policy: str, optimizer: str, bags: str, depth: int, churn: bool, steps: int
) -> None:
    outcome = train(policy, optimizer, bags, budget_bytes=200_000, depth=depth, churn=churn, ranks=ranks, steps=steps)

    assert_equal(outcome, plain(train, optimizer, bags, steps=steps))


@pytest.mark.parametrize(("ranks", "bags"), [(2, "mean"), pytest.param(3, "sum", marks=pytest.mark.slow)])
def test_several_ranks_equal_one_where_owners_pool_all_bags(
    train: Any, ranks: int, bags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "ROW_BYTES", 1_000_000)

    outcome = train("hotline", "adagrad", bags, budget_bytes=200_000, depth=2, ranks=ranks, steps=STEPS)

    assert_equal(outcome, plain(train, "adagrad", bags, steps=STEPS))


@pytest.mark.parametrize(
    ("ranks", "bags", "device"),
    [
        (2, "mean", "direct"),
        (3, "sum", "late"),
        pytest.param(3, "one-hot", "direct", marks=pytest.mark.slow),
        pytest.param(2, "sum", "late", marks=pytest.mark.slow),
    ],
)
def test_several_ranks_equal_one_where_each_owns_some_tables_whole(
    train: Any, ranks: int, bags: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And bags of all tables are pooled, whole or in parts, where there are bags."""
    monkeypatch.setattr(whole_tables, "choose_homes", own_some)
    monkeypatch.setattr(lines, "ROW_BYTES", 1_000_000)

    outcome = train("hotline", "adagrad", bags, device, 200_000, depth=2, churn=True, ranks=ranks, steps=STEPS)

    assert set(outcome.runtime.store.peers.home_T) == set(range(-1, ranks))
    assert_equal(outcome, plain(train, "adagrad", bags, steps=STEPS))


@pytest.mark.parametrize(
    ("ranks", "times"), [pytest.param(ranks, times, marks=pytest.mark.slow) for ranks, times in ((2, 1), (2, 2), (3, 2))]
)
def test_several_ranks_equal_one_while_knobs_change(train: Any, ranks: int, times: int) -> None:
    settings = {"budget_bytes": 200_000, "depth": 2, "at": slower(CHANGES, times), "steps": 100 * times}
    outcome = train("hotline", "adagrad", "sum", ranks=ranks, **settings)

    assert_equal(outcome, plain(train, "adagrad", "sum", steps=100 * times))
    assert outcome.runtime.knobs.reclassify_every == 7


@pytest.mark.slow
def test_the_same_ranks_repeat_bit_by_bit(train: Any) -> None:
    once, again = (train("hotline", "lazy_adam", "mean", depth=depth, ranks=2, steps=30) for depth in (0, 4))

    for one, other in zip(once.tables + once.dense, again.tables + again.dense, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("ranks", "policy", "action", "bags", "threshold", "steps"),
    [
        pytest.param(2, "slipstream", "drop", "sum", "search", 60, marks=pytest.mark.slow),
        pytest.param(3, "slipstream", "drop", "sum", "search", MANY, marks=pytest.mark.slow),
        pytest.param(2, "slipstream", "freeze", "one-hot", "search", MANY, marks=pytest.mark.slow),
        pytest.param(3, "random_skip", "freeze", "sum", "search", MANY, marks=pytest.mark.slow),
        pytest.param(2, "slipstream", "subsample", "mean", "0.1", MANY, marks=pytest.mark.slow),
        pytest.param(2, "random_skip", "subsample", "one-hot", "search", MANY, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_several_ranks_skip_what_one_skips(
    train: Any, ranks: int, policy: str, action: str, bags: str, threshold: str, steps: int
) -> None:
    """All rows fit the device tier, so one rank and several have the same hot rows."""
    settings = [f"knobs.action={action}", f"knobs.stale_threshold={threshold}", *SKIPS]
    arguments = {"budget_bytes": 1 << 30, "depth": 2, "settings": settings, "steps": steps}
    one, several = (train(policy, "rowwise_adagrad", bags, ranks=number, **arguments) for number in (1, ranks))

    assert_equal(several, one)
    of_one, of_several = (outcome.runtime.mailbox.newest for outcome in (one, several))
    assert of_one.totals["row_updates_skipped"] + of_one.totals["samples_seen"] - of_one.totals["samples_trained"] > 0
    assert of_several.stale_rows == of_one.stale_rows
    for count in ("samples_trained", "row_updates", "row_updates_skipped", "hot_row_updates"):
        assert of_several.totals[count] == of_one.totals[count], count


@pytest.mark.slow
def test_rounded_transport_halves_the_bytes_and_stays_near(train: Any) -> None:
    exact, rounded = (
        train("hotline", "sgd", "sum", budget_bytes=200_000, depth=2, ranks=2, steps=30, precision="float32",
              settings=[f"run.transport={transport}"])
        for transport in ("exact", "bf16")
    )  # fmt: skip

    sent = [outcome.runtime.store.group.meter.sent_bytes for outcome in (exact, rounded)]
    assert 0.45 < sent[1]["gradients"] / sent[0]["gradients"] < 0.55
    assert sent[1]["rows"] < 0.65 * sent[0]["rows"]
    assert 0 < np.abs(rounded.losses - exact.losses).max() < 0.01


def forget_the_late_rows(transport: type[HostTransport], patch: pytest.MonkeyPatch) -> None:
    """Answer with rows as they were one step before: rows that were sent early, and not again after their update."""
    fetch = transport._asked_vectors
    before: dict[tuple[int, int], NDArray[Any]] = {}

    def stale(self: HostTransport, owned: Any, pool: int, way: Any) -> Any:
        weights, key = self._path._cold.types.weights, (self._group.rank, pool)
        now = weights[pool]
        weights[pool], before[key] = before.get(key, now), now.copy()
        try:
            return fetch(self, owned, pool, way)
        finally:
            weights[pool] = now

    patch.setattr(transport, "_asked_vectors", stale)


def sum_twice(transport: type[HostTransport], patch: pytest.MonkeyPatch) -> None:
    """Add a rank's gradients twice at one rank in one step."""
    summed = transport._sum

    def twice(self: HostTransport, work: Any, update: Any, pool: int) -> NDArray[Any]:
        factor = 2.0 if update.step == 7 and self._group.rank == 1 else 1.0
        return factor * summed(self, work, update, pool)

    patch.setattr(transport, "_sum", twice)


def mistake_an_owner(transport: type[HostTransport], patch: pytest.MonkeyPatch) -> None:
    """Answer one request in one step with another row's values."""
    fetch = transport._asked_vectors

    def shifted(self: HostTransport, owned: Any, pool: int, way: Any) -> Any:
        rows = fetch(self, owned, pool, way)
        if self._group.rank == 0 and pool == 0 and not getattr(self, "_done", False):
            self._done = True  # type: ignore[attr-defined]
            rows[[0, 1]] = rows[[1, 0]]
        return rows

    patch.setattr(transport, "_asked_vectors", shifted)


@pytest.mark.parametrize("fault", [forget_the_late_rows, sum_twice, mistake_an_owner])
def test_planted_faults_are_found(train: Any, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(train, "sgd", "one-hot", steps=STEPS)
    fault(HostTransport, monkeypatch)

    outcome = train("hybrid", "sgd", "one-hot", depth=2, ranks=2, steps=STEPS)

    with pytest.raises(AssertionError):
        assert_equal(outcome, expected)
