"""Slipstream as released: movement, threshold, dropped samples."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policies.slipstream_released import SlipstreamReleased, critical_movements, search
from adaptive_rec.policy import Outcome, Phase, StreamView
from adaptive_rec.policy.batches import rows_of
from tests.policies.settings import EPOCHS


def test_the_threshold_is_found_by_bisection(stream_view: Any) -> None:
    stream = stream_view([(9, 2)], [9], 1)
    critical = np.linspace(0.001, 0.011, 1001)
    threshold, said = search(critical, stream)
    assert abs(np.mean(critical < threshold) - 0.3) <= 0.08
    middle, low, high = 0.05, 0.0, 0.1
    while abs(np.mean(critical < middle) - 0.3) > 0.08:
        low, high = (middle, high) if np.mean(critical < middle) < 0.3 else (low, middle)
        middle = (low + high) / 2
    assert threshold == middle
    assert "drops" in said
    for hopeless in (np.zeros(50), np.full(50, 0.2), np.full(50, np.inf), np.empty(0)):
        threshold, said = search(hopeless, stream)
        assert threshold == 0
        assert "all are trained" in said


def test_movement_is_that_of_the_window_and_rows_of_dropped_samples_hardly_moved(
    build: Any, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of the hot rows show how far each moved. A hot sample trained after the window has a row that moved further
    than the threshold."""
    found: dict[str, Any] = {}
    arrange = SlipstreamReleased.arrange

    def spied(policy: SlipstreamReleased, stream: StreamView) -> Generator[Phase, Outcome, None]:
        phases, outcome = arrange(policy, stream), None
        while True:
            try:
                phase = next(phases) if outcome is None else phases.send(outcome)
            except StopIteration:
                return
            store = spied.runtime.store  # type: ignore[attr-defined]
            before, began = rows_now(store), spied.runtime.step_number  # type: ignore[attr-defined]
            outcome = yield phase
            if phase.name == "window":
                found.update(outcome=outcome, began=began, before=before, after=rows_now(store), steps=spied.runtime.step_number)  # type: ignore[attr-defined]

    monkeypatch.setattr(SlipstreamReleased, "arrange", spied)
    runtime = build(
        "slipstream_released",
        *EPOCHS[:-1],
        "data.epochs=1",
        "knobs.hot_budget_bytes=3500",
        "knobs.reclassify_every=1",
        "policy.window_ratio=0.2",
    )
    spied.runtime = runtime  # type: ignore[attr-defined]
    trained: list[Batch] = []
    make = runtime.steps.make

    def seen_step(work: ClassifiedBatch, probe: bool) -> None:
        trained.append(work.batch)
        make(work, probe)

    monkeypatch.setattr(runtime.steps, "make", seen_step)
    events = [event for event in runtime.run() if isinstance(event, Event)]
    outcome, space = found["outcome"], runtime.store.space
    moved = np.abs(found["after"] - found["before"]).max(axis=1)
    # Each of the window's steps rounds a component by less than a step of its record's scale: two of 127 parts of the row's way.
    rounding = 2 / 127 * (found["steps"] - found["began"])
    np.testing.assert_allclose(outcome.movement, moved[outcome.rows], rtol=rounding, atol=1e-12)
    assert (outcome.movement == 0).any(), "some hot row is not touched in the window"
    said = next(event.text for event in events if "threshold" in event.text)
    threshold = float(said.split()[1])
    stale = set(outcome.rows[outcome.movement < threshold * (1 + 1e-3)].tolist())
    rest = [rows for batch in trained[found["steps"] :] for rows in rows_of(batch, space).reshape(batch.size, -1)]
    assert rest
    assert not any(set(rows.tolist()) <= stale for rows in rest)
    totals = runtime.reports.totals()
    dropped = totals["samples_seen"] - totals["samples_trained"]
    hot = (
        sum(
            set(rows.tolist()) <= set(outcome.rows.tolist())
            for batch in trained
            for rows in rows_of(batch, space).reshape(batch.size, -1)
        )
        + dropped
    )
    assert (
        f"dropped {int(dropped):,} samples: {dropped / hot:.1%} of the hot ones, {dropped / 900:.1%} of all"
        in events[-1].text
    )


def test_a_row_moved_to_the_host_during_the_window_is_not_taken_for_stale(stream_view: Any) -> None:
    stream = stream_view([(9, 2)], [9], 1, search_sample_ratio=1.0)
    rows = np.arange(4)
    critical = critical_movements(stream, 0, lambda batch: batch.ids_N >= 0, 0, Outcome(None, rows, np.zeros(4)))
    looked_up = np.concatenate([batch.ids_N for batch in stream.batches])
    assert np.array_equal(critical, np.where(looked_up < 4, 0, np.inf))
    assert {0.0, np.inf} == set(critical.tolist())


def rows_now(store: Any) -> Any:
    return np.concatenate([store.contents.export(table)[0] for table in range(len(store.space.tables))])


def test_without_a_share_to_drop_slipstream_as_released_is_exact(watch: Any) -> None:
    seen = watch("slipstream_released", "knobs.target_skip_ratio=0.0")
    space = seen.runtime.store.space
    plain = watch("hybrid", world=([step.batch for step in seen.steps], space.tables, space.features))
    assert seen.totals["samples_trained"] == seen.totals["samples_seen"]
    np.testing.assert_allclose(seen.losses, plain.losses, rtol=1e-12)
