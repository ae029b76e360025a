"""FAE as in the paper and as released: hot rows, the order of training, how rows move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive_rec.config.policy import PolicyConfig
from adaptive_rec.policies.fae import Fae, Schedule
from adaptive_rec.policies.fae_released import FaeReleased
from adaptive_rec.policy.batches import count_rows
from tests.policies.settings import EPOCHS

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def counted(stream: Any) -> tuple[Any, Any]:
    return count_rows(stream.batches, stream.space, lambda batch: np.ones(batch.size, bool))


@quick
@given(seed=st.integers(0, 2**32 - 1), one=st.integers(0, 40), other=st.integers(0, 20))
def test_fae_released_takes_the_rows_sampled_most(stream_view: Any, seed: int, one: int, other: int) -> None:
    stream = stream_view([(30, 4), (20, 2), (9, 4)], [one, other], seed)
    rows, counts = counted(stream)
    hot = FaeReleased().choose(stream, rows, counts)
    assert len(set(hot.tolist())) == len(hot)
    for spec, room in zip(stream.space.pools, stream.room, strict=True):
        mine = {r: c for r, c in zip(rows.tolist(), counts.tolist(), strict=True) if spec.first_row <= r < spec.end_row}
        plain = sorted(mine, key=lambda row: (-mine[row], row))[:room]
        assert [row for row in hot.tolist() if row in mine] == plain


def fae_plainly(stream: Any, rows: Any, counts: Any) -> set[int]:
    """Choose hot rows as FAE does: table by table, threshold by threshold."""
    space, count = stream.space, dict(zip(rows.tolist(), counts.tolist(), strict=True))
    hot: set[int] = set()
    for pool, spec in enumerate(space.pools):
        left, large = stream.room[pool], []
        inside = [t for t, table in enumerate(space.tables) if table.dim == spec.dim]
        for t in sorted(inside, key=lambda t: (space.tables[t].rows, t)):
            first, size = int(space.table_first_row[t]), space.tables[t].rows
            if size * spec.dim * 4 < stream.options.small_table_bytes and size <= left:
                hot |= set(range(first, first + size))
                left -= size
            else:
                large.append(range(first, first + size))
        share = {row: count[row] / sum(count.get(r, 0) for r in part) for part in large for row in part if row in count}
        fitting = [t for t in set(share.values()) if sum(s >= t for s in share.values()) <= left]
        if fitting:
            hot |= {row for row, s in share.items() if s >= min(fitting)}
    return hot


@quick
@given(
    seed=st.integers(0, 2**32 - 1), one=st.integers(0, 60), other=st.integers(0, 30), small=st.integers(0, 400),
)  # fmt: skip
def test_fae_takes_small_tables_and_what_is_above_the_smallest_threshold_that_fits(
    stream_view: Any, seed: int, one: int, other: int, small: int
) -> None:
    tables = [(30, 4), (20, 2), (9, 4), (5, 2)]
    stream = stream_view(tables, [one, other], seed, small_table_bytes=small)
    hot = Fae().choose(stream, *counted(stream))
    assert len(set(hot.tolist())) == len(hot)
    assert set(hot.tolist()) == fae_plainly(stream, *counted(stream))


def test_the_schedule_is_halved_when_the_loss_rises_and_doubled_after_four_falls() -> None:
    schedule = Schedule(PolicyConfig())
    losses = [0.6, 0.7, 0.8, *(0.7 - 0.01 * k for k in range(4)), 0.66, 0.6, 0.59, 0.58, 0.57, 0.56]
    ratios = []
    for loss in losses:
        schedule.check(loss)
        ratios.append(schedule.ratio)
    assert ratios == [0.5, 0.25, 0.125, 0.125, 0.125, 0.125, 0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5]
    for loss in range(1, 20):
        schedule.check(float(loss))
    assert schedule.ratio == 0.01, "the floor"
    for loss in range(100):
        said = schedule.check(-float(loss))
        assert ("fell 4 times" in said) == bool(said)
    assert schedule.ratio == 0.5, "the cap"
    assert schedule.check(None) == ""
    high_floor = Schedule(PolicyConfig(schedule_ratio=0.1, schedule_floor_ratio=0.5))
    assert [high_floor.check(loss) for loss in (0.6, 0.7)] == ["", ""]
    assert high_floor.ratio == 0.1, "a loss that rises never raises the share"


@pytest.mark.parametrize("policy", ["fae", "fae_released"])
def test_batches_are_all_hot_or_all_cold_and_full(watch: Any, policy: str) -> None:
    seen = watch(policy, *EPOCHS)
    kinds = [set(step.popular) for step in seen.steps]
    assert all(len(kind) == 1 for kind in kinds)
    for step in seen.steps:
        assert (sum(step.hot_rows) > 0) == step.popular[0], "cold batches are trained with all rows at home"
    for kind in (True, False):
        sizes = [step.batch.size for step in seen.steps if step.popular[0] == kind]
        assert sum(size < 32 for size in sizes) <= 2, "one of each kind in each of two epochs"
        assert len(sizes) > 4


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "lazy_adam"])
@pytest.mark.parametrize("policy", ["fae", "fae_released"])
def test_optimizer_state_moves_with_the_rows(watch: Any, policy: str, optimizer: str) -> None:
    changes = (*EPOCHS, f"optimizer.embedding={optimizer}", "knobs.hot_budget_bytes=3000")
    seen = watch(policy, *changes)
    space = seen.runtime.store.space
    assert seen.totals["migrated_rows"] > 50
    plain = watch(
        "hybrid", *changes, "run.steps=0", world=([s.batch for s in seen.steps], space.tables, space.features)
    )
    np.testing.assert_allclose(seen.losses, plain.losses, rtol=1e-12)
    for mine, theirs in zip(seen.tables(), plain.tables(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


def test_fae_goes_by_its_schedule(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a test loss that always rises, portions shrink and switches become many; every sample still comes once."""
    checks = iter(range(10**6))
    monkeypatch.setattr("adaptive_rec.runtime.evaluator.score_batches", lambda *_: Score(float(next(checks))))
    rising = watch("fae", *EPOCHS)
    monkeypatch.setattr("adaptive_rec.runtime.evaluator.score_batches", lambda *_: Score(-float(next(checks))))
    falling = watch("fae", *EPOCHS)
    switches = [
        sum(one.popular[0] != two.popular[0] for one, two in zip(seen.steps, seen.steps[1:], strict=False))
        for seen in (rising, falling)
    ]
    assert switches[0] > switches[1] == 7, "at 50 % an epoch is cold, hot, cold, hot"
    assert sum(step.batch.size for step in rising.steps) == 1800


@dataclass
class Score:
    logloss: float
