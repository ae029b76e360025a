"""Real streams of lookups, replayed: what the sketch's hot set catches of the next window's lookups, against exact counts.

Three streams (Criteo sample, Globo clicks, Scarab trace) are replayed in batches. The sketch sees the sampled share of the
steps and goes through the guard rails. The yardstick counts every lookup exactly, with the same decay, and takes the best rows
there are: no sampling, no collisions, no hysteresis.
"""

from __future__ import annotations

import lzma
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.data.lines import line_blocks
from adaptive_rec.reclassify.guard_rails import plan_migration
from adaptive_rec.tracking.count_min import CountMinSketch, width_for
from adaptive_rec.tracking.popularity import PopularityTracker, samples
from tests.tracking.exact import ExactCounter

ROW_BYTES = 136
"""A hot row of dim 16 in float32 with row-wise Adagrad and its movement record: what a moved row counts as."""

BARS = {0.01: 0.97, 0.1: 0.90}


@dataclass(frozen=True)
class Stream:
    """A replayed data set: each step's distinct rows and how often each occurs, also as where its lookups begin."""

    name: str
    rows: int
    lookups_per_step: int
    steps: list[tuple[Any, Any, Any]]


def batched(name: str, keys: Any, lookups_per_step: int) -> Stream:
    distinct, rows = np.unique(keys, return_inverse=True)
    whole = rows[: len(rows) // lookups_per_step * lookups_per_step].reshape(-1, lookups_per_step)
    found = [np.unique(step, return_counts=True) for step in whole]
    steps = [(rows_U, counts_U, np.concatenate([[0], np.cumsum(counts_U)])) for rows_U, counts_U in found]
    return Stream(name, len(distinct), lookups_per_step, steps)


def lines_of(path: Path) -> Iterator[bytes]:
    for block in line_blocks(path):
        yield from block.splitlines(keepends=True)


def criteo(folder: Path) -> Stream:
    """All 26 columns in one row space, 256 samples a step; a missing value is a row like any other."""
    lines = lines_of(folder / "criteo_kaggle_sample_137k.tsv.zst")
    cells = [int(cell or b"-1", 16) for line in lines for cell in line.rstrip(b"\n").split(b"\t")[14:]]
    keys = np.array(cells, dtype=np.int64).reshape(-1, 26) + (np.arange(26) << 33)
    return batched("criteo", keys.reshape(-1), 256 * 26)


def globo(folder: Path) -> Stream:
    """Clicked articles in order of time, 2048 clicks a step."""
    lines = lines_of(folder / "globo_clicks_2988181.csv.zst")
    next(lines)
    pairs = array("q", (int(cell) for line in lines for cell in line.split(b",", 6)[4:6]))
    article, clicked_at = np.frombuffer(pairs, dtype=np.int64).reshape(-1, 2).T
    return batched("globo", article[np.argsort(clicked_at, kind="stable")], 2048)


def scarab(folder: Path) -> Stream:
    """Keys of a recommendation service in order of arrival, 2048 a step."""
    keys = np.frombuffer(lzma.decompress((folder / "scarab-recs.trace.xz").read_bytes()), dtype=">u8")
    return batched("scarab", keys, 2048)


STREAMS: dict[str, Callable[[Path], Stream]] = {"criteo": criteo, "globo": globo, "scarab": scarab}


def window_ends(steps_done: int, every: int) -> bool:
    """Windows of `every` steps, and shorter ones that end after 8, 16, 32, ... steps before the first of those."""
    warm_up = 8 <= steps_done < every and steps_done & (steps_done - 1) == 0
    return steps_done % every == 0 or warm_up


@contextmanager
def timed(seconds: dict[str, list[float]], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name].append(time.perf_counter() - start)


def follow(stream: Stream, hot: Any, every: int, observe: Callable[..., None], decide: Callable[[], None]) -> float:
    """Replay a stream; return the share of the lookups after the first decision that hit the hot rows."""
    hits = lookups = 0
    decided = False
    for step, (rows_U, counts_U, segments_U1) in enumerate(stream.steps):
        hot_U = hot[rows_U]
        hits += decided * int(counts_U[hot_U].sum())
        lookups += decided * int(counts_U.sum())
        observe(step, rows_U, segments_U1, np.where(hot_U, 0, -1))
        if window_ends(step + 1, every):
            decide()
            decided = True
    return hits / lookups


def replay_exact(stream: Stream, capacity: int, knobs: Knobs) -> float:
    """The yardstick: exact counts of every lookup, the best rows hot."""
    exact, hot = ExactCounter(), np.zeros(stream.rows, dtype=np.bool_)

    def decide() -> None:
        hot[:] = False
        hot[exact.best(capacity)] = True
        exact.decay(knobs.decay)

    return follow(
        stream, hot, knobs.reclassify_every, lambda _, rows, segments, __: exact.add(rows, np.diff(segments)), decide
    )


def replay_sketch(stream: Stream, capacity: int, knobs: Knobs, seed: int) -> dict[str, float]:
    """What the runtime does. Returns the share of hits, rows moved and costs."""
    sketch = CountMinSketch(width_for(capacity, stream.rows, 64 << 20), seed=seed)
    tracker, hot = PopularityTracker(sketch, capacity), np.zeros(stream.rows, dtype=np.bool_)
    seconds: dict[str, list[float]] = defaultdict(list)
    moved: list[int] = []

    def observe(step: int, rows_U: Any, segments_U1: Any, source_U: Any) -> None:
        with timed(seconds, "observe_us"):
            if samples(step, knobs.sample_ratio):
                tracker.observe(rows_U, segments_U1, source_U)

    def decide() -> None:
        hot_rows, most = np.flatnonzero(hot), knobs.max_moved_bytes // ROW_BYTES
        with timed(seconds, "plan_us"):
            rows = tracker.candidates()
            scores, hot_scores = tracker.estimate(rows), tracker.estimate(hot_rows)
            migration = plan_migration(
                rows, scores, hot_rows, hot_scores, np.where(hot, 0, -1), capacity, knobs.hysteresis, most
            )
        hot[migration.promote], hot[migration.demote] = True, False
        moved.append(migration.moved_rows)
        with timed(seconds, "end_window_us"):
            tracker.end_window(knobs.decay, migration)

    hit = follow(stream, hot, knobs.reclassify_every, observe, decide)
    costs = {name: 1e6 * float(np.mean(values)) for name, values in seconds.items()}
    moved_share = float(np.mean(moved)) / capacity
    return {"hit_ratio": hit, **costs, "windows": len(moved), "moved_share": moved_share, "sketch_bytes": sketch.bytes}


def capture(stream: Stream, share: float, knobs: Knobs, seed: int) -> dict[str, Any]:
    """One line of the study: sketch against yardstick, with `share` of the rows hot."""
    capacity = int(stream.rows * share)
    found, exact = replay_sketch(stream, capacity, knobs, seed), replay_exact(stream, capacity, knobs)
    ratio = found["hit_ratio"] / exact
    found |= {"exact_hit_ratio": exact, "of_exact": ratio, "met": ratio >= BARS[share], "steps": len(stream.steps)}
    return {"stream": stream.name, "hot_share": share, "seed": seed, **found}
