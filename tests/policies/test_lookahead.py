"""Policies that look ahead, and the rows that a phase lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import Migration
from adaptive_rec.policies.cdlrm import CDLRM, most_looked_up
from adaptive_rec.policy.batches import rows_of
from adaptive_rec.reclassify.listed_rows import ListedRows, Recency
from adaptive_rec.saved import Saved

quick = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_pool(rows: Any, spec: Any) -> list[int]:
    return [int(row) for row in rows if spec.first_row <= row < spec.end_row]


@quick
@given(seed=st.integers(0, 2**32 - 1), stay=st.booleans(), largest=st.sampled_from([3, 12, 40]))
def test_listed_rows_are_hot_as_far_as_there_is_room(build: Any, seed: int, stay: bool, largest: int) -> None:
    """Compared with a plain cache for each pool: its rows, the first to leave first."""
    random = np.random.default_rng(seed)
    store = build("hybrid", "model.table_dims=[4,2,4,2]", "model.embedding_dim=4").store
    store.resize([13, 7], np.empty(0, np.int64))
    listed, plain = ListedRows(), [list[int]() for _ in store.space.pools]
    for _ in range(20):
        if (
            random.random() < 0.1
        ):  # somebody else makes a row cold: the others count as listed at once, in the slots' order
            hot = np.flatnonzero(store.index.placement.slot_of_row >= 0)
            store.migrate(Migration(np.empty(0, np.int64), hot[:1]))
            plain = [[int(row) for row in rows[::-1] if row >= 0] for rows in store.hot.tier.row_of_slot]
        rows = random.permutation(store.space.rows)[: random.integers(0, largest)]
        listed.place(store, rows, others_stay=stay)
        hot = np.flatnonzero(store.index.placement.slot_of_row >= 0)
        for pool, (spec, room) in enumerate(zip(store.space.pools, (13, 7), strict=True)):
            wanted = in_pool(rows, spec)[:room]
            others = [row for row in plain[pool] if row not in wanted and stay]
            plain[pool] = [*others[max(0, len(others) + len(wanted) - room) :], *wanted[::-1]]
            assert sorted(plain[pool]) == in_pool(hot, spec)


@pytest.mark.parametrize("before", [0, 12])
def test_another_number_of_slots_resets_the_order_though_nothing_was_hot(build: Any, before: int) -> None:
    store = build("hybrid").store
    listed, nothing = ListedRows(), np.empty(0, np.int64)
    store.resize([before], nothing)
    listed.place(store, nothing, others_stay=True)
    for slots in (30, 5):
        store.resize([slots], nothing)
        listed.place(store, np.arange(20), others_stay=True)
        assert store.hot.tier.hot_rows == min(slots, 20)
        listed.place(store, np.arange(20, 60), others_stay=True)
        assert np.flatnonzero(store.index.placement.slot_of_row >= 0).tolist() == list(range(20, 20 + slots))
        listed.place(store, nothing, others_stay=False)


def test_an_order_of_another_number_of_slots_is_read_from_a_checkpoint_as_none(build: Any) -> None:
    """A budget that changed after rows were listed, and before others are."""
    store = build("hybrid").store
    listed, again, nothing = ListedRows(), ListedRows(), np.empty(0, np.int64)
    store.resize([12], nothing)
    listed.place(store, np.arange(12), others_stay=True)
    store.resize([5], np.arange(5))
    found = Saved(listed.state())
    again.set_state(found, store)
    found.finish()
    assert again.state()["recency"] == {}
    again.place(store, np.arange(8, 10), others_stay=True)
    assert set(np.flatnonzero(store.index.placement.slot_of_row >= 0)) >= {8, 9}


def test_the_end_of_a_long_list_leaves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive_rec.reclassify.listed_rows.FEW", 4)
    recency, left = Recency(np.full(5000, -1)), list(range(5000))
    recency.list(1, np.arange(5000))
    recency.stay(2, np.array([4998, 3000]))
    left = [slot for slot in left if slot not in (4998, 3000)]
    for count in (1, 2, 900, 0, 3, 1500):
        taken = recency.take_oldest(count)
        assert sorted(taken.tolist()) == left[len(left) - count :]
        left = left[: len(left) - count]
        assert recency.free == 4998 - len(left)


def test_memory_for_lists_does_not_grow_with_their_number(build: Any) -> None:
    store = build("hybrid").store
    store.resize([20], np.empty(0, np.int64))
    listed, rows = ListedRows(), np.arange(10)
    for _ in range(200):
        listed.place(store, rows, others_stay=True)
    (recency,) = listed._recency
    assert recency._length == sum(len(slots) for _, slots in recency._lists) <= 2 * 20 + 10
    assert len(recency._lists) <= 50


@pytest.mark.parametrize(
    ("rows", "named"), [([3, 4, 3], "distinct, got 3 twice"), ([1, 999], r"\[0, 139\), got 999"), ([-2], "got -2")]
)
def test_bad_lists_are_refused(build: Any, rows: list[int], named: str) -> None:
    store = build("hotline").store
    with pytest.raises(AdaptiveRecError, match=named):
        ListedRows().place(store, np.array(rows), others_stay=False)


def test_cdlrm_has_the_rows_of_the_next_batches_on_the_device(watch: Any) -> None:
    """Where a window's rows fit, every lookup is of a hot row, and rows leave only when their slot is needed."""
    large = watch("cdlrm", "knobs.hot_budget_bytes=3000")
    assert large.totals["lookups_hot"] == large.totals["lookups"]
    moved = {}
    for ahead in (1, 2, 12):
        small = watch("cdlrm", "knobs.hot_budget_bytes=640", f"knobs.lookahead_batches={ahead}")
        assert sum(small.steps[-1].capacities) == 20
        moved[ahead] = small.totals["migrated_rows"]
        assert 0.3 < small.totals["lookups_hot"] / small.totals["lookups"] < 1
    assert moved[1] > moved[2] > moved[12], "a longer look-ahead moves fewer rows"


@pytest.mark.parametrize("every", [1, 5, 1000])
def test_every_move_is_reported_by_the_end(build: Any, every: int) -> None:
    runtime = build("cdlrm", "knobs.hot_budget_bytes=640", f"knobs.reclassify_every={every}")
    moves = [event.details for event in runtime.run() if isinstance(event, Event) and event.kind == "reclassified"]
    assert sum(data["promoted"] + data["demoted"] for data in moves) == runtime.reports.totals()["migrated_rows"]
    assert {data["phase"] for data in moves} == {"window"}


def test_a_window_has_the_length_the_knob_had_when_the_window_before_began(stream_view: Any) -> None:
    """The knob is not read when the reader gets there: a run replayed from its journal would have other windows."""
    stream = stream_view([(9, 2)], [9], 1)
    phases, lengths = CDLRM().arrange(stream), []
    for phase in phases:
        batches = iter(phase.batches)
        lengths.append(1 if next(batches, None) else 0)
        stream.now = stream.now.changed({"lookahead_batches": 1})
        lengths[-1] += len(list(batches))
    assert lengths == [2, 2, 1, 1]


def test_rows_come_in_order_of_their_lookups() -> None:
    rows = [np.array([5, 2, 5]), np.array([9, 2, 5, 1]), np.empty(0, np.int64)]
    assert most_looked_up(rows).tolist() == [5, 2, 1, 9]
    assert most_looked_up([]).tolist() == []
    often = np.full(70_000, 3)
    assert most_looked_up([np.array([7, 7, 1]), often]).tolist() == [3, 7, 1], "more often than sorts in 16 bits"


def test_the_oracle_catches_the_best_rows_of_every_window(watch: Any) -> None:
    budget = "knobs.hot_budget_bytes=1280"  # 40 rows of 139
    best = watch("oracle", budget)
    caught = 0
    for first in range(0, len(best.steps), 6):
        window = [rows_of(step.batch, best.runtime.store.space) for step in best.steps[first : first + 6]]
        caught += int(np.sort(np.bincount(np.concatenate(window)))[-40:].sum())
    assert best.totals["lookups_hot"] == caught
    assert caught > watch("hotline", budget).totals["lookups_hot"]
