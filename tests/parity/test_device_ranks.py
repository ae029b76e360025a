"""Ranks with a device each equal one process on the CPU, as ranks without do: see `test_processes.py`.

The devices are late by a seed, and so is the link between them: see `LateStreams`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptive_rec.embedding.peers import lines
from adaptive_rec.embedding.peers.device_lines import DeviceLines
from adaptive_rec.embedding.staged.path import StagedPath
from tests.doubles.late_streams import LateLink
from tests.parity.test_parity import assert_equal, plain
from tests.parity.test_processes import CHANGES, SKIPS, STEPS, in_time, slower


@pytest.mark.parametrize(
    ("ranks", "policy", "optimizer", "bags", "depth", "churn", "steps"),
    in_time(
        [
            (2, "hotline", "sgd", "one-hot", 0, True),
        ],
        [
            (3, "hybrid", "lazy_adam", "mean", 1, False),
            (3, "hotline", "rowwise_adagrad", "sum", 2, True),
            (2, "device_only", "adagrad", "mean", 4, False),
            (2, "hotline", "lazy_adam", "sum", 4, True),
            (3, "hotline", "adagrad", "one-hot", 3, True),
            (3, "device_only", "sgd", "mean", 2, False),
            (2, "hotline", "rowwise_adagrad", "one-hot", 1, True),
        ],
    ),
)  # fmt: skip
def test_ranks_with_devices_equal_one_process(
    train: Any, ranks: int, policy: str, optimizer: str, bags: str, depth: int, churn: bool, steps: int
) -> None:
    outcome = train(policy, optimizer, bags, "late", 200_000, depth, churn=churn, ranks=ranks, steps=steps)

    assert_equal(outcome, plain(train, optimizer, bags, steps=steps))
    assert outcome.runtime.store.peers.link is not None
    totals = outcome.runtime.mailbox.newest.totals
    assert totals["lookups_hot"] > 0 or policy == "hybrid"
    assert (totals["device_to_host_bytes"] > 0) == (policy != "device_only")


@pytest.mark.parametrize(("ranks", "bags"), [(2, "mean"), pytest.param(3, "sum", marks=pytest.mark.slow)])
def test_ranks_with_devices_equal_one_process_where_owners_pool_all_bags(
    train: Any, ranks: int, bags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "ROW_BYTES", 1_000_000)

    outcome = train("hotline", "adagrad", bags, "late", budget_bytes=200_000, depth=2, churn=True, ranks=ranks, steps=STEPS)

    assert_equal(outcome, plain(train, "adagrad", bags, steps=STEPS))


@pytest.mark.parametrize(
    ("ranks", "times"), [pytest.param(ranks, times, marks=pytest.mark.slow) for ranks, times in ((3, 1), (3, 2), (2, 2))]
)
def test_ranks_with_devices_equal_one_process_while_knobs_change(train: Any, ranks: int, times: int) -> None:
    settings = {"budget_bytes": 200_000, "depth": 2, "at": slower(CHANGES, times), "steps": 100 * times}
    outcome = train("hotline", "adagrad", "sum", "late", ranks=ranks, **settings)

    assert_equal(outcome, plain(train, "adagrad", "sum", steps=100 * times))
    assert outcome.runtime.knobs.reclassify_every == 7


@pytest.mark.slow
def test_the_same_ranks_with_devices_repeat_bit_by_bit(train: Any) -> None:
    once, again = (
        train("hotline", "lazy_adam", "mean", "late", 200_000, depth, churn=True, ranks=2, steps=20) for depth in (0, 4)
    )

    for one, other in zip(once.tables + once.dense, again.tables + again.dense, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("ranks", "policy", "action", "bags", "steps"),
    [
        pytest.param(2, "slipstream", "freeze", "one-hot", 60, marks=pytest.mark.slow),
        pytest.param(3, "slipstream", "drop", "sum", 60, marks=pytest.mark.slow),
        pytest.param(2, "slipstream", "freeze", "one-hot", 200, marks=pytest.mark.slow),
        pytest.param(3, "slipstream", "drop", "sum", 200, marks=pytest.mark.slow),
        pytest.param(3, "random_skip", "freeze", "sum", 200, marks=pytest.mark.slow),
    ],
)
def test_ranks_with_devices_skip_what_one_skips(
    train: Any, ranks: int, policy: str, action: str, bags: str, steps: int
) -> None:
    settings = [f"knobs.action={action}", "knobs.stale_threshold=0.1", *SKIPS]
    one = train(policy, "rowwise_adagrad", bags, budget_bytes=1 << 30, depth=2, settings=settings, steps=steps)
    several = train(policy, "rowwise_adagrad", bags, "late", 1 << 30, 2, ranks=ranks, settings=settings, steps=steps)

    assert_equal(several, one)
    totals, of_one = (outcome.runtime.mailbox.newest.totals for outcome in (several, one))
    assert of_one["row_updates_skipped"] + of_one["samples_seen"] - of_one["samples_trained"] > 0
    for count in ("samples_trained", "row_updates", "row_updates_skipped", "hot_row_updates"):
        assert totals[count] == of_one[count], count
    assert min(several.runtime.store.group.meter.sent_bytes[kind] for kind in ("rows", "gradients")) > 0


@pytest.mark.slow
def test_rounded_vectors_halve_the_bytes_between_devices(train: Any) -> None:
    exact, rounded = (
        train("hotline", "sgd", "sum", "late", 200_000, 2, ranks=2, steps=20, precision="float32",
              settings=[f"run.transport={transport}"])
        for transport in ("exact", "bf16")
    )  # fmt: skip

    sent = [outcome.runtime.store.group.meter.sent_bytes for outcome in (exact, rounded)]
    assert 0.45 < sent[1]["gradients"] / sent[0]["gradients"] < 0.55
    assert 0 < np.abs(rounded.losses - exact.losses).max() < 0.01


def wait_for_no_exchange(patch: pytest.MonkeyPatch) -> None:
    """Read what comes from other devices whether it has come or not."""

    def queue(self: LateLink, give: Any, take: Any, target: Any) -> None:
        operation = self._channel.operation()
        self._streams.launch(lambda: operation.post(give()))
        self._streams.launch(lambda: target.copy_(take(operation.read())) if operation.done else target.fill_(1e-3))

    patch.setattr(LateLink, "_queue", queue)


def send_to_the_wrong_places(patch: pytest.MonkeyPatch) -> None:
    """Sum the gradients of one step in another order of lines than that in which they are sent."""
    summed = DeviceLines.sum

    def swapped(self: DeviceLines, requests: Any, update: Any, sent: Any) -> Any:
        found = summed(self, requests, update, sent)
        if update.step == 7:
            self._streams.launch(lambda: found[0].copy_(found[0].flip(0)))
        return found

    patch.setattr(DeviceLines, "sum", swapped)


def forget_the_rows_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Answer before the cold rows that are requested have come from host memory or from the batch before."""
    patch.setattr(StagedPath, "_rows_ready", lambda self, staged: None)


@pytest.mark.parametrize("fault", [wait_for_no_exchange, send_to_the_wrong_places, forget_the_rows_in_flight])
def test_planted_faults_between_devices_are_found(train: Any, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(train, "sgd", "one-hot", steps=STEPS)
    fault(monkeypatch)

    with pytest.raises(AssertionError):
        assert_equal(train("hybrid", "sgd", "one-hot", "late", depth=2, ranks=2, steps=STEPS), expected)
