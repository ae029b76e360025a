"""Evaluations of a run's model on held-out samples, or on the next window of the stream (`eval.mode`): when due, at the end, and
after phases that request one. Where data is followed, they are of the samples of a window, each scored in its own step."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.evaluate import score_batches
from adaptive_rec.live.telemetry import Evaluation, Event, Quality
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.state.run_state import RunState
from adaptive_rec.units import whole

if TYPE_CHECKING:
    from adaptive_rec.data.implicit.candidates import Candidates
    from adaptive_rec.runtime.next_window import NextWindow
    from adaptive_rec.runtime.progressive import Progressive

WINDOW_STEPS = 100
"""Steps of a window of progressive validation, where `eval.every_steps` is 0."""


class Evaluator:
    """Evaluates a run's present model. An evaluation that a signal interrupts has no result."""

    def __init__(
        self,
        state: RunState,
        source: Source,
        dense: DensePart,
        publisher: Publisher,
        progressive: Progressive | None = None,
    ) -> None:
        """`progressive`: the scores of samples before they were trained on, instead of held-out ones."""
        self._progressive = progressive
        self._state = state
        self._source = source
        self._dense = dense
        self._publisher = publisher
        self._one_class_told = False
        self._candidates: dict[int, Candidates] = {}

    def one_class_is_known(self) -> None:
        """Take it as said that the samples scored have one class."""
        self._one_class_told = True

    def when_due(self) -> Generator[Evaluation | Event, None, bool]:
        """Evaluate where settings say so; the run's clock stands still meanwhile. Returns False where a signal interrupted it."""
        state = self._state
        every = self._interval()
        if not every or state.step % every:
            return True
        with state.recorder.paused(), self._publisher.during("evaluating"):
            evaluation = self.evaluate()
        if self._progressive is not None:
            self._progressive.begin_window()
        if evaluation:
            yield evaluation
            yield from self.warning()
        return evaluation is not None or self._progressive is not None

    def warning(self) -> Iterator[Event]:
        """Report, once each, that training and evaluation loss have parted, and that the samples scored have one class. Windows
        of the stream are of other samples each time, so they are not compared."""
        made = self._state.evaluation
        if made is not None and math.isnan(made.quality.auc) and not self._one_class_told:
            self._one_class_told = True
            yield Event(self._state.step, "warning", one_class(made.quality.samples, self._progressive is not None))
        same_samples = self._progressive is None and self._state.config.eval.mode != "next_window"
        if same_samples and (overfit := self._state.trend.take_warning()) is not None:
            yield Event(self._state.step, "overfit", str(overfit), asdict(overfit))

    def _interval(self) -> int:
        """Return the steps from one evaluation to the next; 0: only the end is evaluated."""
        state = self._state
        every = state.config.eval.interval(state.knobs, state.steps_total or 0)
        return every or (0 if self._progressive is None else WINDOW_STEPS)

    def evaluate(self) -> Evaluation | None:
        """Score the held-out range, the next window of the stream, or the present window. Returns None where a signal interrupted
        it, or the present window has no sample."""
        state, settings = self._state, self._state.config.eval
        window = self._next_window() if settings.mode == "next_window" else None
        if self._progressive is not None:
            quality = self._progressive.quality()
        elif window is None:
            quality = self._held_out(settings.max_samples)
        else:
            quality = score_batches(window.batches(), state.store, self._dense, lambda: state.hurried, settings.metrics)
        if quality is None:
            return None
        seen = state.store.group.totals({"samples_seen": state.tally.counters.samples_seen})
        evaluation = Evaluation(state.step, quality, None if window is None else window.scored, **seen)
        state.set_evaluation(evaluation)
        return evaluation

    def _held_out(self, most: int) -> Quality | None:
        """Score at most so many of the held-out samples (0 is all). Returns None where a signal interrupted it."""
        state, settings = self._state, self._state.config.eval
        if state.config.data.implicit.negatives:
            from adaptive_rec.runtime.ranked import rank_held_out

            return rank_held_out(state, self._source, self._dense, self.candidates(most))
        held_out = self._source.test_batches(settings.batch_size, most)
        return score_batches(held_out, state.store, self._dense, lambda: state.hurried, settings.metrics)

    def candidates(self, most: int) -> Candidates:
        """Return the users of so many held-out rows, where rows are all positives, and the items that they are ranked among."""
        from adaptive_rec.data.implicit.candidates import Candidates

        if most not in self._candidates:
            from adaptive_rec.data.implicit.negatives import negatives_of

            drawn = negatives_of(self._source)
            assert drawn is not None, "rows are all positives"
            settings = self._state.config.eval.model_copy(update={"max_samples": most})
            self._candidates[most] = Candidates(drawn, settings, self._state.config.run.seed)
        return self._candidates[most]

    def _next_window(self) -> NextWindow:
        from adaptive_rec.runtime.next_window import NextWindow

        return NextWindow(self._state, self._source)

    def phase_logloss(self) -> float | None:
        """Return the logloss of `policy.schedule_samples` held-out samples. None where a signal interrupted it."""
        state = self._state
        with state.times("evaluate"), self._publisher.during("evaluating"):
            quality = self._held_out(state.config.policy.schedule_samples)
        return None if quality is None else quality.logloss


def one_class(samples: int, trained: bool) -> str:
    """Return a warning that samples that were scored, and `trained` on where data is followed, have one class of labels."""
    of = "trained on since the last evaluation" if trained else "scored"
    return (
        f"all {whole(samples)} samples {of} have one label: AUC is not defined, and there is nothing to learn or to compare; "
        "rows of both labels are needed"
    )
