"""A stream of news, where popularity lives a day, replayed with fixed windows and decays and with those found online.

The accesses are the clicked articles of Globo.com in order of time (of training rows only the positives: negatives are drawn),
512 a step: what a batch of 2048 rows with three negatives to a click holds. Ways of placing rows:

- *static*: the best rows of the first day, for good
- *exact*: exact counts of every lookup and the best rows hot, for a window and a decay (the bar)
- *sketch*: what the runtime does with the default window and decay: a sketch of half of the steps, and guard rails
- *short*: the same with the default decay, but windows as long as the ticks of *adaptive*
- *adaptive*: the same, with windows and decay found by `MemoryTrials`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.recipes.globo import DAY_MS, GloboReader
from adaptive_rec.reclassify.guard_rails import plan_migration
from adaptive_rec.reclassify.window_length import Window
from adaptive_rec.tracking.count_min import CountMinSketch, width_for
from adaptive_rec.tracking.horizon import FIRST_MEMORY, Memory, MemoryTrials
from adaptive_rec.tracking.popularity import PopularityTracker, best_rows, samples
from tests.tracking.streams import ROW_BYTES, Stream, batched

CLICKS_PER_STEP = 512
DAYS = 16
"""The file goes on for four weeks with a few hundred clicks in all: left out."""
TICK_STEPS = 20
FIXED = Knobs(max_moved_bytes=1 << 40)
ADAPTIVE = FIXED.changed({"reclassify_every": TICK_STEPS})
SKETCHES = {"sketch": (FIXED, False), "short": (ADAPTIVE, False), "adaptive": (ADAPTIVE, True)}
"""Knobs, and whether windows and decay are found online."""
BAR = 0.95


@dataclass
class Replay:
    """What a way of placing rows came to."""

    hits_S: Any
    """Lookups of each step that hit hot rows."""
    moved_rows: int = 0
    changes: list[str] = field(default_factory=list)


def read_globo(folder: Path) -> tuple[Stream, Any]:
    """The stream, and the day of each of its steps."""
    clicks = GloboReader(folder / "globo_clicks_2988181.csv.zst", skip_bad_rows=False, seed=0).clicks()
    day_C = (clicks.time_ms_C - clicks.time_ms_C[0]) // DAY_MS
    kept = int(np.count_nonzero(day_C < DAYS))
    stream = batched("globo", clicks.article_C[:kept], CLICKS_PER_STEP)
    return stream, day_C[: len(stream.steps) * CLICKS_PER_STEP : CLICKS_PER_STEP]


def most_popular(counts_R: Any, capacity: int) -> Any:
    rows = np.flatnonzero(counts_R)
    hot_R = np.zeros(len(counts_R), dtype=np.bool_)
    hot_R[best_rows(rows, counts_R[rows], capacity)] = True
    return hot_R


def window_ends(stream: Stream, every: int) -> Iterator[tuple[int, Any, Any, bool]]:
    """Steps of a stream with their rows and counts, and whether a window ends after each."""
    window = Window()
    for step, (rows_U, counts_U, _) in enumerate(stream.steps):
        ends = window.ends(step + 1, every)
        if window.is_full(step + 1, every):
            window = Window(step + 1, first=False)
        yield step, rows_U, counts_U, ends


def replay_exact(stream: Stream, capacity: int, every: int, decay: float) -> Replay:
    counts_R, hot_R = np.zeros(stream.rows), np.zeros(stream.rows, dtype=np.bool_)
    hits_S = np.zeros(len(stream.steps), dtype=np.int64)
    for step, rows_U, counts_U, ends in window_ends(stream, every):
        hits_S[step] = counts_U[hot_R[rows_U]].sum()
        counts_R[rows_U] += counts_U
        if ends:
            hot_R = most_popular(counts_R, capacity)
            counts_R *= decay
    return Replay(hits_S)


def replay_static(stream: Stream, capacity: int, first_steps: int) -> Replay:
    """Hot from the start: what the first steps would have taken."""
    counts_R = np.zeros(stream.rows)
    for rows_U, counts_U, _ in stream.steps[:first_steps]:
        counts_R[rows_U] += counts_U
    hot_R = most_popular(counts_R, capacity)
    return Replay(np.array([counts_U[hot_R[rows_U]].sum() for rows_U, counts_U, _ in stream.steps]))


def replay_sketch(stream: Stream, capacity: int, knobs: Knobs, seed: int, adapts: bool) -> Replay:
    """What the runtime does: sketch, candidates and guard rails; `window.py` without a store."""
    tracker = PopularityTracker(CountMinSketch(width_for(capacity, stream.rows, 64 << 20), seed=seed), capacity)
    trials, memory = MemoryTrials(capacity, seed), FIRST_MEMORY if adapts else None
    hot_R, window = np.zeros(stream.rows, dtype=np.bool_), Window()
    replay = Replay(np.zeros(len(stream.steps), dtype=np.int64))
    for step, (rows_U, counts_U, segments_U1) in enumerate(stream.steps):
        hot_U = hot_R[rows_U]
        replay.hits_S[step] = counts_U[hot_U].sum()
        if samples(step, knobs.sample_ratio):
            tracker.observe(rows_U, segments_U1, np.where(hot_U, 0, -1))
            trials.observe(rows_U, segments_U1)
        if adapts and (step + 1) % knobs.reclassify_every == 0:
            trials.end_tick()
            if (found := trials.best()) != memory:
                memory = found
                replay.changes.append(
                    f"step {step + 1}: {_told(found, knobs)}, {trials.caught_ratio(found):.1%} caught"
                )
        every = (memory.ticks if memory else 1) * knobs.reclassify_every
        if window.ends(step + 1, every):
            ticks = max(1, (step + 1 - window.began) // knobs.reclassify_every)
            replay.moved_rows += place(tracker, hot_R, capacity, knobs, memory.decay**ticks if memory else knobs.decay)
        if window.is_full(step + 1, every):
            window = Window(step + 1, first=False)
    return replay


def place(tracker: PopularityTracker, hot_R: Any, capacity: int, knobs: Knobs, decay: float) -> int:
    """End a window: move rows as the guard rails allow. Returns how many."""
    hot_rows, rows = np.flatnonzero(hot_R), tracker.candidates()
    scores, hot_scores = tracker.estimate(rows), tracker.estimate(hot_rows)
    most = knobs.max_moved_bytes // ROW_BYTES
    migration = plan_migration(
        rows, scores, hot_rows, hot_scores, np.where(hot_R, 0, -1), capacity, knobs.hysteresis, most
    )
    hot_R[migration.promote], hot_R[migration.demote] = True, False
    tracker.end_window(decay, migration)
    return migration.moved_rows


def _told(memory: Memory, knobs: Knobs) -> str:
    return f"windows of {memory.ticks * knobs.reclassify_every} steps, decay {memory.window_decay:.2g}"


def compare(stream: Stream, share: float, seed: int) -> dict[str, Any]:
    """Adaptive windows against fixed ones, on a stream where the defaults do well; the first default window left out."""
    capacity, counted = int(stream.rows * share), slice(FIXED.reclassify_every, None)
    lookups = stream.lookups_per_step * len(stream.steps[counted])
    ways = {name: replay_sketch(stream, capacity, knobs, seed, adapts) for name, (knobs, adapts) in SKETCHES.items()}
    caught = {name: float(way.hits_S[counted].sum() / lookups) for name, way in ways.items()}
    moved = {f"{name}_moved_rows_per_step": way.moved_rows / len(stream.steps) for name, way in ways.items()}
    return {
        "stream": stream.name,
        "share": share,
        "capacity": capacity,
        **caught,
        **moved,
        "changes": ways["adaptive"].changes,
    }
