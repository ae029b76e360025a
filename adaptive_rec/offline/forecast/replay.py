"""One pass over a stream for many policies and budgets, which share each batch's distinct rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.data.source import Source
from adaptive_rec.memory.rows import everything_bytes, hot_row_bytes
from adaptive_rec.offline.forecast.arranged import follow
from adaptive_rec.offline.forecast.lane import Lane
from adaptive_rec.offline.forecast.passes import Progress
from adaptive_rec.offline.forecast.sources import KeptSource
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy
from adaptive_rec.tracking.popularity import sort_distinct

LANES_LIMIT_BYTES = 4 << 30
"""Memory of the lanes that follow the stream together; if all lanes need more, the stream is read several times."""
SKETCH_BYTES = 64 << 20


@dataclass
class Replayed:
    """Lanes at the end of the stream, by policy and budget, and the ceiling of each budget."""

    space: RowSpace
    row_bytes: list[int]
    """Device bytes of a hot row of each pool, without a record of its movement."""
    budgets: list[int]
    window_steps: int
    lanes: dict[tuple[str, int], Lane] = field(default_factory=dict)
    """Lanes by policy and budget. A policy whose tier does not depend on the budget has one lane for all."""
    ceiling: list[float] = field(default_factory=list)
    """Highest share of hot lookups at each budget."""
    shared_seconds: float = 0.0
    """Time of reading and of finding distinct rows."""
    passes: int = 0


def replay(
    config: Config, source: Source, policies: Sequence[str], budgets: Sequence[int], progress: Progress
) -> Replayed:
    """Follow the stream of a configuration under each policy at each budget."""
    space = RowSpace.of(source.tables, source.features)
    kept = KeptSource(source, space)
    sizes = hot_row_bytes(config, space, monitored=False)
    made = Replayed(space, sizes, list(budgets), config.knobs.reclassify_every)
    ceiling: Ceiling | None = Ceiling(space, sizes, made.budgets, made.window_steps)
    total = total_samples(config, source)
    wanted = list(wanted_lanes(config, space, policies, budgets))
    waiting = [each for each in wanted if not load_policy(each[0]).arranges_stream]
    together = max(1, LANES_LIMIT_BYTES // max(lane_bytes(space, max(budgets), min(sizes)), 1))
    while waiting or ceiling is not None:
        group, waiting = waiting[:together], waiting[together:]
        lanes = [Lane.of(config, space, name, budget) for name, budget, _ in group]
        one_pass(made, kept, stream(config, kept), lanes, ceiling, total, progress)
        if ceiling is not None:
            made.ceiling = [caught / ceiling.lookups if ceiling.lookups else 0.0 for caught in ceiling.caught.tolist()]
            ceiling = None
        for lane, (name, _, same) in zip(lanes, group, strict=True):
            made.lanes.update({(name, budget): lane for budget in same})
    if (raw_ids := raw_ids_of(source)) is not None:
        raw_ids.settle_to(Position(source.epochs))  # the first pass has given ids their rows
    # Where the stream is reordered, ids have their rows from its start, not from their `admit_after` lookups on.
    again = KeptSource(source, space) if config.knobs.admit_after > 1 else kept
    for name, budget, same in wanted:
        policy = load_policy(name)
        if policy.arranges_stream:
            lane = Lane.of(config, space, name, budget)
            batches = again if policy.reorders_stream else kept
            follow(lane, config, batches, report_samples(progress, f"replaying {name}", total))
            made.lanes.update({(name, each): lane for each in same})
    return made


def report_samples(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """Return a function that adds the samples of a batch and reports their sum to `progress`."""
    done = 0

    def more(samples: int) -> None:
        nonlocal done
        done += samples
        progress(what, done, total)

    return more


def one_pass(
    made: Replayed, kept: KeptSource, batches: Iterator[Batch], lanes: list[Lane], ceiling: Ceiling | None, total: int,
    progress: Progress,
) -> None:  # fmt: skip
    """Take all batches through all lanes."""
    made.passes += 1
    what, done = f"replaying, pass {made.passes}", 0
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        work = kept.classified(batch)
        kept.keep(work)
        made.shared_seconds += time.perf_counter() - started
        for lane in lanes:
            lane.step(work)
        if ceiling is not None:
            ceiling.step(work)
        done += batch.size
        progress(what, done, total)
    if ceiling is not None:
        ceiling.end_window()


def stream(config: Config, source: Source) -> Iterator[Batch]:
    """Return the batches that a run would train on."""
    batches = source.train_batches(Position(seed=config.run.seed), config.run.batch_size)
    return islice(batches, config.run.steps) if config.run.steps else batches


def total_samples(config: Config, source: Source) -> int:
    everything = source.epochs * source.train_samples
    return min(everything, config.run.steps * config.run.batch_size) if config.run.steps else everything


def wanted_lanes(
    config: Config, space: RowSpace, policies: Sequence[str], budgets: Sequence[int]
) -> Iterator[tuple[str, int, list[int]]]:
    """Yield each policy with a budget, and with all budgets that give it an equally large tier."""
    for name in policies:
        policy, alike = load_policy(name), dict[int, list[int]]()
        everything = everything_bytes(config, space, name)
        for budget in budgets:
            knobs = config.knobs.changed({"policy": name, "hot_budget_bytes": budget})
            alike.setdefault(policy.budget_bytes(knobs, everything), []).append(budget)
        yield from ((name, same[0], same) for same in alike.values())


def lane_bytes(space: RowSpace, budget_bytes: int, smallest_row_bytes: int) -> int:
    """Return about the most memory of a lane: its placement, its sketch, and its records of slots and candidates."""
    slots = min(space.rows, budget_bytes // max(smallest_row_bytes, 1))
    return 4 * space.rows + min(SKETCH_BYTES, 64 * slots) + (17 + 4 * 8) * slots


class Ceiling:
    """Exact counts of a window, and the lookups that the rows with the most lookups per byte catch at each budget.

    All pools share a budget, in the proportion that is best by the counts. No placement that changes only at the ends of windows
    catches more; one that changes more often may, and so may a policy that arranges the stream.
    """

    def __init__(self, space: RowSpace, row_bytes: list[int], budgets: list[int], window_steps: int) -> None:
        self._counts_R = np.zeros(space.rows, dtype=np.int32)
        self._bytes_P = np.array(row_bytes, dtype=np.int64)
        self._pool_end = np.array([pool.end_row for pool in space.pools], dtype=np.int64)
        self._budgets = np.array(budgets, dtype=np.int64)
        self._window_steps = window_steps
        self._steps = 0
        self._touched: list[NDArray[np.int64]] = []
        self.lookups = 0
        self.caught = np.zeros(len(budgets), dtype=np.int64)
        """Lookups caught at each budget in the windows that ended."""

    def step(self, work: ClassifiedBatch) -> None:
        """Count one batch."""
        self._counts_R[work.distinct_U] += np.diff(work.segments_U1).astype(np.int32)
        self._touched.append(work.distinct_U)
        self.lookups += work.batch.lookups
        self._steps += 1
        if self._steps % self._window_steps == 0:
            self.end_window()

    def end_window(self) -> None:
        """Score the steps since the last window ended; called once more at the end of the stream."""
        if not self._touched:
            return
        rows = sort_distinct(np.concatenate(self._touched))
        self._touched.clear()
        counts = self._counts_R[rows]
        self._counts_R[rows] = 0
        bytes_of = self._bytes_P[np.searchsorted(self._pool_end, rows, side="right")]
        best = np.argsort(-counts / bytes_of, kind="stable")
        filled = np.cumsum(bytes_of[best])
        caught = np.concatenate([[0], np.cumsum(counts[best], dtype=np.int64)])
        self.caught += caught[np.searchsorted(filled, self._budgets, side="right")]
