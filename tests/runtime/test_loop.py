"""A run while it is under way: knobs turned, budgets moved, windows, losses gone wrong, rows that start to move again."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.errors import ConfigError, TrainingError
from adaptive_rec.live.telemetry import Evaluation, Snapshot
from adaptive_rec.reclassify.window_length import Window
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests import settings
from tests.doubles.late_streams import LateStreams
from tests.matrix import each, grid
from tests.settings import DEVICES

TINY = [*settings.TINY, "knobs.policy=hotline", "run.split=always"]

STREAMS = {
    "direct": lambda: None,
    "late": lambda: LateStreams(seed=3),
    "cuda": lambda: CudaStreams(torch.device("cuda")),
}


def build(*changes: str, device: str = "direct", source: Any = None) -> Runtime:
    streams = STREAMS[device]()
    return assemble(load_config(None, {}, [*TINY, *changes]), source, streams)


def stepping(runtime: Runtime) -> Iterator[Snapshot]:
    """The snapshots of a run that reports every step."""
    for event in runtime.run():
        if isinstance(event, Snapshot):
            yield event


def tables_of(runtime: Runtime) -> list[np.ndarray]:
    return [runtime.store.contents.export(table)[0] for table in range(len(runtime.store.space.tables))]


class Unhurried(LateStreams):
    """Says of an event what is true, instead of bringing it about."""

    def has_happened(self, event: Any) -> bool:
        return bool(event.done)


@pytest.mark.parametrize(
    ("report_every", "seeds", "steps"),
    [(1, [0], 22), (3, [1, 2], 22), (7, [3, 4], 22), *(pytest.param(n, range(6), 45, marks=pytest.mark.slow) for n in (1, 3, 7))],
)
def test_a_loss_that_comes_late_is_that_of_its_step(report_every: int, seeds: Sequence[int], steps: int) -> None:
    """Training does not wait for a report's loss; all reports come, in order, with the numbers of their steps."""
    changes = (f"knobs.report_every={report_every}", f"run.steps={steps}")
    theirs = list(stepping(build(*changes)))
    for seed in seeds:
        late = assemble(load_config(None, {}, [*TINY, *changes]), None, Unhurried(seed))
        behind, mine, named = set(), [], f"seed {seed}"
        for snapshot in stepping(late):
            behind.add(late.step_number - snapshot.step)
            mine.append(snapshot)
        assert [snapshot.step for snapshot in mine] == [snapshot.step for snapshot in theirs], named
        np.testing.assert_allclose([s.loss for s in mine], [s.loss for s in theirs], rtol=1e-12, err_msg=named)
        for one, other in zip(mine, theirs, strict=True):
            same = ("samples_trained", "lookups_hot", "row_updates", "steps")
            assert [one.totals[name] for name in same] == [other.totals[name] for name in same], named
        if report_every > 1:
            assert behind > {0}, f"some came late with {named}"
        assert max(behind) <= report_every, named


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], list[np.ndarray]]:
    """Plain steps on the same stream."""
    runtime = build("knobs.policy=hybrid")
    return [snapshot.loss for snapshot in stepping(runtime)], tables_of(runtime)


def assert_plain(losses: list[float], runtime: Runtime, plain: tuple[list[float], list[np.ndarray]]) -> None:
    np.testing.assert_allclose(losses, plain[0], rtol=1e-12)
    for mine, theirs in zip(tables_of(runtime), plain[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


# Knobs ---------------------------------------------------------------------------------------------------------------


def test_a_knob_turned_takes_effect_at_the_next_step_boundary() -> None:
    runtime = build()
    for snapshot in stepping(runtime):
        if snapshot.step == 3:
            runtime.mailbox.change_knobs(decay=0.25, alpha=0.5)
            assert runtime.knobs.decay != 0.25, "not in the middle of a step"
        elif snapshot.step == 4:
            assert (runtime.knobs.decay, runtime.knobs.alpha) == (0.25, 0.5)
            break
    assert runtime.config.knobs.decay != 0.25, "the configuration says what the run began with"


def test_knobs_are_turned_from_another_thread() -> None:
    runtime = build("run.steps=8")
    thread = threading.Thread(target=runtime.mailbox.change_knobs, kwargs={"reclassify_every": 7})
    for snapshot in stepping(runtime):
        if snapshot.step == 2:
            thread.start()
            thread.join()
    assert runtime.knobs.reclassify_every == 7


def test_several_changes_are_applied_in_the_order_of_their_requests() -> None:
    runtime = build()
    for decay in (0.1, 0.2, 0.3):
        runtime.mailbox.change_knobs(decay=decay)
    next(stepping(runtime))
    assert runtime.knobs.decay == 0.3


BAD_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"decay": 0.5, "alpha": 7.0}, "alpha"),
    ({"decay": 0.5, "hot_budget_bytes": -1}, "hot_budget_bytes"),
    ({"decay": 0.5, "decoy": 1}, "did you mean decay"),
    ({"decay": math.nan}, "decay"),
    ({"decay": 0.5, "action": "forget"}, "action"),
]


def test_a_bad_change_is_refused_as_a_whole_where_it_is_requested() -> None:
    """The run continues with the knobs it had. Each is requested after a step of its own."""
    runtime = build("run.steps=8")
    before, asked = runtime.knobs, []
    for snapshot in stepping(runtime):
        assert runtime.knobs == before, asked[-1:]
        if 2 <= snapshot.step < 2 + len(BAD_CHANGES):
            changes, named = BAD_CHANGES[snapshot.step - 2]
            asked.append(changes)
            with pytest.raises(ConfigError, match=named):
                runtime.mailbox.change_knobs(**changes)
    assert len(asked) == len(BAD_CHANGES)
    assert runtime.step_number == 8
    assert runtime.knobs == before


@pytest.mark.parametrize("device", DEVICES)
def test_the_budget_turned_down_and_up_is_kept_and_changes_no_result(device: str, plain: Any) -> None:
    budgets = {10: 700, 20: 0, 30: 3000, 40: 1 << 40}
    runtime = build("knobs.prefetch_depth=3", device=device)
    losses, seen = [], {}
    for snapshot in stepping(runtime):
        losses.append(snapshot.loss)
        if snapshot.step in budgets:
            runtime.mailbox.change_knobs(hot_budget_bytes=budgets[snapshot.step])
        if snapshot.step % 10 == 9:
            seen[snapshot.step] = (runtime.store.hot.bytes, snapshot.hot_rows, snapshot.hot_lookup_ratio)
    assert_plain(losses, runtime, plain)
    for step, budget in budgets.items():
        assert seen[step + 9][0] <= budget, "within one window the tier has its new size"
    assert seen[29] == (0, 0, 0.0)
    assert 0 < seen[19][1] < seen[9][1] < seen[39][1]
    assert seen[49][0] == 109 * 4 * 8, "more than all rows is all rows"
    assert seen[49][2] > 0.9


def test_the_best_rows_stay_hot_when_the_budget_shrinks() -> None:
    runtime = build("run.steps=40")
    for snapshot in stepping(runtime):
        if snapshot.step == 29:
            large = set(np.flatnonzero(runtime.store.index.placement.slot_of_row >= 0).tolist())
            runtime.mailbox.change_knobs(hot_budget_bytes=640)
        if snapshot.step == 30:
            small = set(np.flatnonzero(runtime.store.index.placement.slot_of_row >= 0).tolist())
            assert len(small) == 20
            assert len(small & large) > 15
            assert small <= large | set(runtime.observer.tracker.candidates().tolist())
    assert snapshot.hot_lookup_ratio > 0.3


@pytest.mark.parametrize("device", [pytest.param("direct", marks=pytest.mark.slow), *DEVICES[1:]])
def test_the_prefetch_depth_changed_live_changes_no_result(device: str, plain: Any) -> None:
    runtime = build("knobs.prefetch_depth=0", device=device)
    losses = []
    for snapshot in stepping(runtime):
        losses.append(snapshot.loss)
        if snapshot.step % 6 == 0:
            runtime.mailbox.change_knobs(prefetch_depth=[4, 1, 0, 3][snapshot.step // 6 % 4])
    assert_plain(losses, runtime, plain)


def ends_of(steps: int, every: Callable[[int], int], began: int = 0) -> list[tuple[int, bool]]:
    """Steps at which windows end, and whether they are full."""
    window, ends = Window(began), []
    for step in range(began + 1, steps + 1):
        if window.ends(step, every(step)):
            ends.append((step, window.is_full(step, every(step))))
            if ends[-1][1]:
                window = Window(step, first=False)
    return ends


def test_windows_are_short_at_first_and_double() -> None:
    short = [(step, False) for step in (8, 16, 32, 64)]
    assert ends_of(400, lambda _: 100) == [*short, (100, True), (200, True), (300, True), (400, True)]
    assert ends_of(12, lambda _: 4) == [(4, True), (8, True), (12, True)]
    assert ends_of(130, lambda _: 100, began=21) == [(29, False), (37, False), (53, False), (85, False), (121, True)]


def test_a_window_made_longer_continues_and_one_made_shorter_ends_at_once() -> None:
    assert [end for end in ends_of(300, lambda step: 20 if step < 55 else 61) if end[0] > 20] == [
        (40, True),
        (101, True),
        (162, True),
        (223, True),
        (284, True),
    ]
    assert [end for end in ends_of(220, lambda step: 100 if step < 150 else 20) if end[0] > 100] == [
        (150, True),
        (170, True),
        (190, True),
        (210, True),
    ]


def test_rows_are_placed_at_the_end_of_the_first_short_window() -> None:
    runtime = build("knobs.reclassify_every=50")
    versions = [snapshot.placement_version for snapshot in stepping(runtime)]
    assert versions[6:8] == [0, 1]
    assert versions[14:16] == [1, 2]


@pytest.mark.parametrize("steps", [6, 7])
def test_the_mailbox_shows_the_newest_snapshot(steps: int) -> None:
    runtime = build(f"run.steps={steps}", "knobs.report_every=3")
    seen = []
    for snapshot in stepping(runtime):
        assert runtime.mailbox.newest is snapshot
        seen.append(snapshot.step)
    assert seen == [3, 6, 7][: len(seen)]
    assert seen[-1] == steps


@pytest.mark.parametrize("device", DEVICES[1:])
def test_evaluations_come_between_steps_and_change_no_result(plain: Any, device: str) -> None:
    runtime = build("eval.every_steps=7", "knobs.prefetch_depth=2", device=device)
    events = list(runtime.run())
    assert [event.step for event in events if isinstance(event, Evaluation)] == [7, 14, 21, 28, 35, 42, 49, 56]
    assert_plain([event.loss for event in events if isinstance(event, Snapshot)], runtime, plain)


# Losses that go wrong ------------------------------------------------------------------------------------------------


def poisoned(memory_source: Any, at: int, batches: int = 20) -> Any:
    """A stream whose batch number `at` holds a dense feature that is no number."""
    made = []
    for number in range(1, batches + 1):
        dense = np.full((4, 2), np.nan if number == at else 0.5, dtype=np.float32)
        made.append(Batch.one_hot(dense, np.zeros((4, 1), np.int64), np.ones(4, np.float32)))
    return memory_source(made, (TableSpec("T", 3, 4),), (FeatureSpec("F", 0),))


@pytest.mark.parametrize("report_every", [1, 5])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(
    memory_source: Any, report_every: int, depth: int
) -> None:
    changes = (f"knobs.report_every={report_every}", f"knobs.prefetch_depth={depth}", "run.steps=0")
    runtime = build(*changes, source=poisoned(memory_source, at=7))
    with pytest.raises(TrainingError, match="must stay finite, got nan in step 7 for sample 0 of 4"):
        list(runtime.run())


def test_a_report_of_a_loss_that_is_no_number_stops_the_run_too(memory_source: Any) -> None:
    """On a device a report may come before the check of the step's numbers."""
    changes = ("knobs.report_every=5", "run.steps=0")
    runtime = build(*changes, device="late", source=poisoned(memory_source, at=4))
    with pytest.raises(TrainingError, match="must stay finite, got nan by step 5;"):
        list(runtime.run())


# Rows that move again ------------------------------------------------------------------------------------------------

ROWS, EACH, WINDOW = 8, 8, 16
JUMPING, STEADY = 2, 5
SKIPPING = [
    "knobs.policy=slipstream", "knobs.probe_ratio=0.25", f"knobs.reclassify_every={WINDOW}", "knobs.hot_budget_bytes=100000",
    "run.steps=0",
]  # fmt: skip


def flipping_stream(memory_source: Any, jump_at: int, batches: int) -> Any:
    """Every row is met equally often in every batch, half of it with label 1: rows settle. From `jump_at` on every
    sample with row `JUMPING` has label 1."""
    random = np.random.default_rng(4)
    made = []
    for number in range(batches):
        ids = np.repeat(np.arange(ROWS), EACH)
        labels = np.tile([0, 1], ROWS * EACH // 2).astype(np.float32)
        if number >= jump_at:
            labels[ids == JUMPING] = 1
        order = random.permutation(len(ids))
        dense = np.zeros((len(ids), 2), dtype=np.float32)
        made.append(Batch.one_hot(dense, ids[order][:, None], labels[order]))
    return memory_source(made, (TableSpec("T", ROWS, 4),), (FeatureSpec("F", 0),))


def is_stale(runtime: Runtime, row: int) -> bool:
    slot = int(runtime.store.index.placement.slot_of_row[row])
    return slot >= 0 and bool(runtime.store.hot.tier.stale[0][slot])


@grid(lambda case: True, each, action=["freeze", "drop", "subsample"], device=DEVICES)
def test_a_stale_row_whose_effect_jumps_is_live_again_within_two_windows(
    memory_source: Any, action: str, device: str
) -> None:
    """A row that is frozen, or whose samples are dropped, moves on probe steps only; they alone must bring it back."""
    jump_at = 8 * WINDOW
    runtime = build(
        *SKIPPING, f"knobs.action={action}", "knobs.stale_threshold=0.004", "knobs.keep_probability=0.05",
        "knobs.stale_metric=max_abs",
        "optimizer.embedding_lr=1.0", "optimizer.dense_lr=0.01", device=device,
        source=flipping_stream(memory_source, jump_at, jump_at + 4 * WINDOW),
    )  # fmt: skip
    stale = {}
    rows = {}  # by steps of the window after the two; a device tells of some steps only after the next ones
    for snapshot in stepping(runtime):
        if jump_at + 2 * WINDOW <= snapshot.step <= jump_at + 3 * WINDOW:
            rows[runtime.step_number] = tables_of(runtime)[0]
        stale[snapshot.step] = (is_stale(runtime, JUMPING), is_stale(runtime, STEADY))
    assert runtime.store.hot.tier.hot_rows == ROWS
    assert stale[jump_at] == (True, True), "both rows have settled"
    totals = runtime.reports.totals()
    assert totals["row_updates_skipped"] + totals["samples_seen"] - totals["samples_trained"] > 0
    assert stale[jump_at + 2 * WINDOW] == (False, True), "the one that jumped is live, its neighbour still stale"
    moves = sum((after != before).any(axis=1).astype(int) for before, after in itertools.pairwise(rows.values()))
    assert moves[JUMPING] == len(rows) - 1 > moves[STEADY], "the one moves in every step, the other in some of them only"
    assert len(rows) > WINDOW // 2


def test_rows_that_went_stale_are_really_skipped(memory_source: Any) -> None:
    """Between probes a frozen row has not moved by a single bit, nor the rows of dropped samples."""
    for action in ("freeze", "drop"):
        runtime = build(
            *SKIPPING, f"knobs.action={action}", "knobs.stale_threshold=1000.0",
            source=flipping_stream(memory_source, 1000, 4 * WINDOW),
        )  # fmt: skip
        before, still, moved = tables_of(runtime)[0], 0, 0
        for snapshot in stepping(runtime):
            now = tables_of(runtime)[0]
            if snapshot.step > 2 * WINDOW:
                same = np.array_equal(now, before)
                still, moved = still + same, moved + (not same)
            before = now
        assert still > moved > 0, (action, still, moved)


# Drift ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_the_hot_set_follows_a_sudden_drift_within_two_windows(jump: int) -> None:
    """Popularity moves to other rows between two windows; the window after next catches what the last one before did."""
    window, batch = 30, 256
    runtime = build(
        "run.split=never", f"run.steps={window * (jump + 4)}", f"run.batch_size={batch}", f"knobs.reclassify_every={window}",
        "data.table_rows=[3000, 2000, 1000, 500]", f"data.synthetic.samples={window * batch * 12}",
        "data.synthetic.head_ratio=0.02", "data.synthetic.popular_ratio=0.6",
        f"data.synthetic.sudden_drift_at={window * batch * jump}", "run.precision=float32",
        "knobs.hot_budget_bytes=16000", f"knobs.report_every={window}", "knobs.hysteresis=0.1", "knobs.sample_ratio=0.5",
    )  # fmt: skip
    ratios = [snapshot.hot_lookup_ratio for snapshot in stepping(runtime)]
    level = ratios[jump - 1]
    assert level > 0.6
    assert ratios[jump] < level / 2, "the drift is seen"
    assert ratios[jump + 2] > level - 0.02, ratios
