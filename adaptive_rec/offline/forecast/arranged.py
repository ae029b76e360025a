"""Replay of policies that arrange the stream phase by phase; each of them reads it on its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.offline.forecast.lane import Lane
from adaptive_rec.offline.forecast.sources import KeptSource
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase
from adaptive_rec.runtime.stream import ArrangedStream, next_phase

FALLING = 0.999
"""Factor by which each phase lowers the test loss: without a model, learning is assumed."""


def follow(lane: Lane, config: Config, source: KeptSource, samples_done: Callable[[int], None]) -> None:
    """Take a lane through all phases of its policy; `samples_done` is called with the samples of each batch.

    The outcome of a phase depends on training, so it is assumed: the test loss falls, and every hot row moved so far that none is
    stale. A policy that decides by more than that arranges another stream in a real run.
    """
    started, logloss, counted = time.perf_counter(), 1.0, Counted(source)
    held_out = 0
    begin, tier = Position(seed=config.run.seed), lane.store.hot.tier
    stream = ArrangedStream(config, counted, lane.store.peers.batch_space, begin, 0, lambda: lane.knobs, lambda: tier.capacities)
    policy = lane.reclassifier.policy
    assert isinstance(policy, ArrangingPolicy)
    phases = policy.arrange(stream)
    phase = next_phase(phases, None)
    lane.count(decided_lookups=counted.take())
    while phase is not None:
        if phase.hot_rows is not None:
            lane.place(phase.hot_rows, phase.others_stay)
        for batch in phase.batches:
            if batch.size:
                lane.step(source.classified(batch))
                samples_done(batch.size)
        lane.count(read_lookups=counted.take())
        if phase.evaluated:
            logloss *= FALLING
            held_out = held_out or held_out_samples(config, source)
            lane.count(evaluated_samples=held_out)
        phase = next_phase(phases, _outcome(lane, phase, logloss))
        lane.count(decided_lookups=counted.take())
    lane.end(time.perf_counter() - started)


def held_out_samples(config: Config, source: Source) -> int:
    """Return the number of samples that the test loss is computed on."""
    batches = source.test_batches(config.eval.batch_size, config.policy.schedule_samples, config.eval.validates)
    return sum(batch.size for batch in batches)


class Counted(Wrapped):
    """A source that counts the lookups it yields."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._lookups = 0

    def take(self) -> int:
        """Return the lookups since the last call."""
        taken, self._lookups = self._lookups, 0
        return taken

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        for batch in self._source.train_batches(position, batch_size):
            self._lookups += batch.lookups
            yield batch


def _outcome(lane: Lane, phase: Phase, logloss: float) -> Outcome:
    loss = logloss if phase.evaluated else None
    if not phase.measured:
        return Outcome(loss)
    rows = np.concatenate(lane.store.hot.tier.row_of_slot)
    hot = rows[rows >= 0]
    return Outcome(loss, hot, np.full(len(hot), np.inf))
