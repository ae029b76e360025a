"""Several ranks with cold rows on a disk equal the same ranks in memory bit by bit, and one rank as in `test_processes.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.embedding.peers import lines
from adaptive_rec.embedding.peers.rank_peers import RankPeers
from tests.parity.test_disk import assert_same_bits, on_disk
from tests.parity.test_parity import assert_equal, plain
from tests.parity.test_processes import CHANGES, SKIPS, STEPS, in_time, slower


@pytest.mark.parametrize(
    ("ranks", "policy", "optimizer", "bags", "depth", "churn", "steps"),
    in_time(
        [(2, "hotline", "adagrad", "mean", 3, True)],
        [
            (3, "hybrid", "lazy_adam", "sum", 0, False),
            (2, "hotline", "rowwise_adagrad", "one-hot", 8, True),
            (3, "hotline", "sgd", "mean", 1, True),
        ],
    ),
)
def test_ranks_with_rows_on_a_disk_are_those_in_memory(
    train: Any, small_segments: None, tmp_path: Path, ranks: int, policy: str, optimizer: str, bags: str, depth: int,
    churn: bool, steps: int,
) -> None:  # fmt: skip
    arguments = {"budget_bytes": 100_000, "depth": depth, "churn": churn, "ranks": ranks, "steps": steps}

    outcome = train(policy, optimizer, bags, **arguments, settings=on_disk(tmp_path))

    assert_same_bits(outcome, train(policy, optimizer, bags, **arguments))
    assert_equal(outcome, plain(train, optimizer, bags, steps=steps))
    store = outcome.runtime.store
    assert store.cold.on_disk
    assert isinstance(store.peers, RankPeers)
    assert sum(log.counts.rows_read for log in store.cold.types.logs) > 1000
    assert {path.name for path in tmp_path.iterdir()} == {f"rank-{rank}" for rank in range(ranks)}


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        pytest.param("slipstream", ["knobs.action=freeze", "knobs.stale_threshold=search", *SKIPS], marks=pytest.mark.slow),
        ("hotline", ["run.transport=bf16"]),
    ],
)
def test_ranks_skip_and_round_the_same_with_rows_on_a_disk(
    train: Any, small_segments: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, settings: list[str]
) -> None:
    """Where owners pool all bags."""
    monkeypatch.setattr(lines, "ROW_BYTES", 1_000_000)
    arguments = {"budget_bytes": 100_000, "depth": 2, "ranks": 2, "steps": STEPS, "precision": "float32"}

    outcome = train(policy, "adagrad", "sum", **arguments, settings=[*settings, *on_disk(tmp_path)])

    assert_same_bits(outcome, train(policy, "adagrad", "sum", **arguments, settings=settings))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ranks_with_rows_on_a_disk_are_those_in_memory_while_knobs_change(
    train: Any, small_segments: None, tmp_path: Path, times: int
) -> None:
    arguments = {"budget_bytes": 200_000, "depth": 2, "at": slower(CHANGES, times), "ranks": 2, "steps": 100 * times}

    outcome = train("hotline", "adagrad", "sum", **arguments, settings=on_disk(tmp_path))

    assert_same_bits(outcome, train("hotline", "adagrad", "sum", **arguments))
