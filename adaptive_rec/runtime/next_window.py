"""The next window of the stream: the samples from the present step to the following evaluation, scored by the present model
before any of them is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from adaptive_rec.batch import Batch, take
from adaptive_rec.data.source import Source, untaken_batches
from adaptive_rec.live.telemetry import ScoredWindow
from adaptive_rec.runtime.parts import parts_of, whole_of
from adaptive_rec.state.run_state import RunState

MICROSECONDS = 1e6


class NextWindow:
    """The window that follows the present step of a run, to be read once."""

    def __init__(self, state: RunState, source: Source, samples: int | None = None) -> None:
        """`samples`: how many it has, where a run is replayed whose settings may have been others then."""
        settings, total = state.config.eval, state.steps_total or state.step
        every = settings.interval(state.knobs, total) or settings.last_window(stream_steps(state, source))
        at_end = state.step >= total or state.step % every != 0  # of the run: no evaluation follows, or it was stopped
        steps = every if at_end else min(every, total - state.step)
        samples = steps * state.config.run.batch_size if samples is None else samples
        self._samples = min(samples, settings.max_samples or samples)
        self._state, self._source = state, source
        position = state.position
        self._first = position.offset if position.epoch == 0 else source.train_samples
        self._scored = 0
        self._earliest: int | None = None
        self._latest: int | None = None

    def batches(self) -> Iterator[Batch]:
        """Yield the samples in batches; of several processes, each one's parts of them. The source is left as it is."""
        size = min(self._state.config.eval.batch_size, self._samples)
        untaken = untaken_batches(whole_of(self._source), self._state.position, size)
        return parts_of(self._source, self._noted(take_samples(untaken, self._samples)))

    def _noted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Pass batches on and note which samples they have."""
        for batch in batches:
            self._scored += batch.size
            if batch.times_B is not None and batch.size:
                low, high = int(batch.times_B.min()), int(batch.times_B.max())
                self._earliest = low if self._earliest is None else min(low, self._earliest)
                self._latest = high if self._latest is None else max(high, self._latest)
            yield batch

    @property
    def scored(self) -> ScoredWindow:
        """The samples, once they were read."""
        times = (None if time is None else time / MICROSECONDS for time in (self._earliest, self._latest))
        return ScoredWindow(self._first, self._first + self._scored, *times)


def stream_steps(state: RunState, source: Source) -> int:
    """Return the whole steps of a stream with its last window."""
    return (source.train_samples + source.test_samples) // state.config.run.batch_size


def take_samples(batches: Iterable[Batch], samples: int) -> Iterator[Batch]:
    """Yield the first samples of batches."""
    for batch in batches:
        yield batch if batch.size <= samples else take(batch, np.arange(samples))
        samples -= batch.size
        if samples <= 0:
            return
