"""Windows and decay that follow the data during a run: when ticks and windows end, their events, unchanged results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.placement import Migration
from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy import Policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.tracking.horizon import FIRST_MEMORY, INTERVALS_TICKS, PROVEN_WINDOWS

ROWS, TICK_STEPS, LOOKUPS = 400, 10, 256
SETTINGS = [
    "knobs.policy=hotline", "run.device=cpu", "run.threads=1", "run.precision=float64", "run.batch_size=256", "run.steps=0",
    "data.dense_features=1", "model.embedding_dim=2", "model.bottom_mlp=[2]", "model.top_mlp=[2]", "optimizer.embedding=sgd",
    "optimizer.dense=SGD", f"knobs.reclassify_every={TICK_STEPS}", "knobs.report_every=1", "knobs.sample_ratio=1.0",
    "knobs.hysteresis=0.0", "knobs.hot_budget_bytes=1280",
]  # fmt: skip
"""40 of 400 rows may be hot."""


class Adaptive(Hotline):
    name = "adaptive_for_tests"
    adapts_memory = True


def stream(ticks: int, drifts: Callable[[int], bool]) -> list[Batch]:
    """Make batches with lookups by Zipf's law; in ticks that drift other rows become popular."""
    random, batches, shift = np.random.default_rng(7), [], 0
    weight = 1 / np.arange(1, ROWS + 1) ** 1.2
    for tick in range(ticks):
        shift += 60 * drifts(tick)
        for _ in range(TICK_STEPS):
            ids = (random.choice(ROWS, LOOKUPS, p=weight / weight.sum()) + shift) % ROWS
            labels = (random.random(LOOKUPS) < 0.3).astype(np.float32)
            batches.append(Batch.one_hot(random.random((LOOKUPS, 1), dtype=np.float32), ids[:, None], labels))
    return batches


CALM = stream(48, lambda tick: False)

Start = Callable[..., Runtime]


@pytest.fixture(scope="module")
def start(memory_source: Any) -> Start:
    def build(policy: Policy, batches: list[Batch], *changes: str) -> Runtime:
        source = memory_source(batches, (TableSpec("A", ROWS, 2),), (FeatureSpec("a", 0),))
        return assemble(load_config(None, {}, [*SETTINGS, *changes]), source, policy=policy)

    return build


def events(runtime: Runtime, kind: str) -> Iterator[Event]:
    return (event for event in runtime.run() if isinstance(event, Event) and event.kind == kind)


@dataclass
class Wild:
    """A stream that drifts after so many ticks, and what a run over it has done."""

    calm_ticks: int
    batches: list[Batch]
    memories: list[Event] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    decayed: list[tuple[int, int | None]] = field(default_factory=list)
    """Steps at which counts decayed, and by how many ticks."""


@pytest.fixture(scope="module", params=[(40, 28), pytest.param((60, 40), marks=pytest.mark.slow)], ids=str)
def wild(request: pytest.FixtureRequest, start: Start) -> Wild:
    ticks, calm = request.param
    return watched(start, Wild(calm, stream(ticks, lambda tick: tick >= calm)))


def watched(start: Start, wild: Wild) -> Wild:
    runtime = start(Adaptive(), wild.batches)
    end = runtime.observer.end_window

    def end_window(decay: float, migration: Migration) -> None:
        memory, step = runtime.reclassifier.memory, runtime.step_number
        assert memory
        wild.decayed.append((step, round(math.log(decay) / math.log(memory.decay)) if memory.decay else None))
        end(decay, migration)

    runtime.observer.end_window = end_window  # type: ignore[method-assign]
    for report in runtime.run():
        if isinstance(report, Snapshot):
            wild.losses.append(report.loss)
        elif isinstance(report, Event) and report.kind == "memory":
            wild.memories.append(report)
    return wild


def test_windows_grow_on_a_stream_that_stays_the_same(start: Start) -> None:
    runtime = start(Adaptive(), CALM)
    reports = [event for event in runtime.run() if isinstance(event, Event)]
    changes = [event for event in reports if event.kind == "memory"]
    assert changes[-1].details["memory"]["ticks"] == max(INTERVALS_TICKS)
    assert changes[-1].details["window_steps"] == max(INTERVALS_TICKS) * TICK_STEPS
    assert all(event.step % TICK_STEPS == 0 for event in changes)
    assert changes[0].step > PROVEN_WINDOWS * TICK_STEPS
    ends = [event.step for event in reports if event.kind == "reclassified" and event.step > changes[-1].step]
    assert len(ends) >= 2
    assert {b - a for a, b in zip(ends, ends[1:], strict=False)} == {max(INTERVALS_TICKS) * TICK_STEPS}


def test_windows_shrink_when_a_stream_starts_to_drift(wild: Wild) -> None:
    changes = wild.memories
    calm = [event for event in changes if event.step <= wild.calm_ticks * TICK_STEPS][-1].details
    last = changes[-1].details
    assert last["memory"]["ticks"] < calm["memory"]["ticks"]
    assert last["memory"]["decay"] ** (1 / TICK_STEPS) < calm["memory"]["decay"] ** (1 / TICK_STEPS)
    assert last["caught_ratio"] > last["before_ratio"]


def test_the_journal_says_what_a_change_gains(wild: Wild) -> None:
    event = wild.memories[0]
    steps, memory = event.details["window_steps"], event.details["memory"]
    decay = memory["decay"] ** memory["ticks"]
    assert event.text.startswith(f"windows of {steps} steps, decay {decay:.2g}: catches ")
    caught, before = (event.details[name] for name in ("caught_ratio", "before_ratio"))
    assert event.text.endswith(f"catches {caught:.1%} of the lookups (before {before:.1%})")
    assert 0 < before <= 1


def test_counts_decay_by_the_ticks_of_the_window_that_ended(wild: Wild) -> None:
    seen = wild.decayed
    full = [(step, ticks) for step, ticks in seen if step % TICK_STEPS == 0]
    assert [step for step, _ in seen if step % TICK_STEPS] == [8], "as ever, the first window has a short one in it"
    lengths = [b - a for (a, _), (b, _) in zip(full, full[1:], strict=False)]
    assert len(set(lengths)) > 2
    for length, (_, ticks) in zip(lengths, full[1:], strict=True):
        assert ticks in (length // TICK_STEPS, None)


def test_every_lookup_is_counted_hot_or_cold(start: Start) -> None:
    runtime = start(Adaptive(), CALM[:25])
    for _ in runtime.run():
        pass
    trials = runtime.observer.trials
    assert trials
    assert runtime.tally.counters.lookups_hot > 0
    assert trials._lookups == 5 * LOOKUPS, "two ticks have ended, of a third five steps are counted"
    seen = trials._counts[:, : trials.held_rows].max(axis=0) > 0
    assert set(trials._rows[: trials.held_rows][seen]) >= set(np.concatenate(runtime.store.hot.tier.row_of_slot)) - {-1}


def test_results_are_those_of_hotline(start: Start, wild: Wild) -> None:
    some = len(wild.batches) // 2
    losses = [event.loss for event in start(Hotline(), wild.batches[:some]).run() if isinstance(event, Snapshot)]
    np.testing.assert_allclose(losses, wild.losses[:some], rtol=1e-12)


def test_a_repeated_run_changes_its_memory_at_the_same_steps(start: Start, wild: Wild) -> None:
    third = wild.memories[2].step
    again = watched(start, Wild(wild.calm_ticks, wild.batches[:third]))
    assert third < len(wild.batches)
    assert [(e.step, e.details) for e in again.memories] == [(e.step, e.details) for e in wild.memories[:3]]


def test_other_policies_follow_the_knobs(start: Start) -> None:
    runtime = start(Hotline(), CALM[:40])
    steps = [event.step for event in events(runtime, "reclassified")]
    assert steps == [8, 10, 20, 30, 40]
    assert runtime.observer.trials is None
    assert runtime.reclassifier.memory is None


def test_memories_are_tried_from_the_change_of_policy_on(start: Start) -> None:
    name = f"{Adaptive.__module__}:Adaptive"
    runtime = start(Hotline(), CALM[:50])
    seen = []
    for event in runtime.run():
        if isinstance(event, Snapshot):
            seen.append(runtime.observer.trials is not None)
            if event.step == 12:
                runtime.mailbox.change_knobs(policy=name)
            elif event.step == 30:
                assert runtime.reclassifier.memory == FIRST_MEMORY
                runtime.mailbox.change_knobs(policy="hotline")
    assert [step for step, tried in enumerate(seen, start=1) if tried] == list(range(13, 31))


def test_a_tick_is_as_long_as_the_knob_says(start: Start) -> None:
    runtime = start(Adaptive(), CALM[:40])
    ticks = []
    for event in runtime.run():
        if isinstance(event, Snapshot) and runtime.observer.trials:
            ticks.append(runtime.observer.trials.ticks)
            if event.step == 20:
                runtime.mailbox.change_knobs(reclassify_every=5)
    assert ticks[19] == 2
    assert ticks[-1] == 2 + 4
