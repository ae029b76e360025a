"""Evaluations of a run's model on held-out samples, a validation slice, or the next window of the stream (`eval.mode`): when due,
at the end, and after phases that request one. A run whose evaluations get no better may stop after one. Where data is followed,
they are of the samples of a window, each scored in its own step."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.evaluate import score_batches
from adaptive_rec.live.evaluations import PastEvaluations
from adaptive_rec.live.telemetry import Evaluation, Event, Quality, ScoredWindow
from adaptive_rec.runtime.events import stopped_early
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
        past: PastEvaluations | None = None,
    ) -> None:
        """`progressive`: the scores of samples before they were trained on, instead of held-out ones. `past`: the evaluations of
        the run that is replayed."""
        self._progressive = progressive
        self._past = past or PastEvaluations({}, -1)
        self._state = state
        self._source = source
        self._dense = dense
        self._publisher = publisher
        self._one_class_told = False
        self._candidates: dict[tuple[int, bool], Candidates] = {}

    def one_class_is_known(self) -> None:
        """Take it as said that the samples scored have one class."""
        self._one_class_told = True

    def when_due(self) -> Generator[Evaluation | Event, None, bool]:
        """Evaluate where settings say so; the run's clock stands still meanwhile. Returns False where a signal interrupted it."""
        return not self._is_due() or (yield from self._make())

    def at_the_end(self) -> Generator[Evaluation | Event, None, None]:
        """Evaluate on the validation slice after a run's last step, unless that was done."""
        state = self._state
        made = state.evaluation is not None and state.evaluation.step == state.step
        if state.config.eval.validates and state.is_at_end and not (made or state.hurried or state.position.on_slice):
            yield from self._make()

    def _make(self) -> Generator[Evaluation | Event, None, bool]:
        state = self._state
        with state.recorder.paused(), self._publisher.during("evaluating"):
            evaluation = self.evaluate()
        if self._progressive is not None:
            self._progressive.begin_window(state.step)
        if evaluation:
            yield evaluation
            yield from self.warning()
            if state.stopped_early:
                yield stopped_early(state)
                state.stop()
        return evaluation is not None or self._progressive is not None

    def warning(self) -> Iterator[Event]:
        """Report, once each, that training and evaluation loss have parted, and that the samples scored have one class. Windows
        of the stream are of other samples each time, so they are not compared."""
        made = self._state.evaluation
        if made is not None and math.isnan(made.quality.auc) and not self._one_class_told:
            self._one_class_told = True
            yield Event(self._state.step, "warning", why_no_auc(vars(made.quality), self._progressive is not None))
        same_samples = self._progressive is None and self._state.config.eval.mode != "next_window"
        if same_samples and (overfit := self._state.trend.take_warning()) is not None:
            yield Event(self._state.step, "overfit", str(overfit), asdict(overfit))

    def _is_due(self) -> bool:
        """Return whether an evaluation is due after the present step. The validation slice is also scored after the last pass,
        and not while it is trained on."""
        state, settings, step = self._state, self._state.config.eval, self._state.step
        if state.position.on_slice:
            return False
        if step <= self._past.until:
            return step in self._past.samples
        if self._progressive is not None:
            return step % (settings.interval(state.knobs, 0) or WINDOW_STEPS) == 0
        epoch_steps = -(-self._source.train_samples // state.config.run.batch_size)
        due = settings.is_due(state.knobs, step, state.steps_total or 0, epoch_steps)
        return due or (settings.validates and state.is_at_end)

    def evaluate(self) -> Evaluation | None:
        """Score the held-out range, the validation slice, the next window of the stream, or the present window. Returns None
        where a signal interrupted it, or the present window has no sample."""
        state, settings = self._state, self._state.config.eval
        window = self._next_window() if settings.mode == "next_window" else None
        if self._progressive is not None:
            quality = self._progressive.quality(state.step)
        elif window is None:
            quality = self._held_out(settings.max_samples, settings.validates)
        else:
            quality = score_batches(window.batches(), state.store, self._dense, lambda: state.hurried, settings.metrics)
        if quality is None:
            return None
        evaluation = self._of(quality, None if window is None else window.scored)
        state.set_evaluation(evaluation)
        return evaluation

    def score_held_out(self) -> Evaluation | None:
        """Score the held-out range with the present model, which is no evaluation of the run's course. Returns None where a
        signal interrupted it."""
        quality = self._held_out(self._state.config.eval.max_samples, validation=False)
        return None if quality is None else self._of(quality)

    def _held_out(self, most: int, validation: bool) -> Quality | None:
        """Score at most so many of the held-out samples (0 is all), or of the validation slice. Returns None where a signal
        interrupted it."""
        state, settings = self._state, self._state.config.eval
        if state.config.data.implicit.negatives:
            from adaptive_rec.runtime.ranked import rank_held_out

            return rank_held_out(state, self._source, self._dense, self.candidates(most, validation))
        held_out = self._source.test_batches(settings.batch_size, most, validation)
        return score_batches(held_out, state.store, self._dense, lambda: state.hurried, settings.metrics)

    def candidates(self, most: int, validation: bool) -> Candidates:
        """Return the users of so many held-out rows, or of the validation slice, where rows are all positives, and the items that
        they are ranked among."""
        from adaptive_rec.data.implicit.candidates import Candidates

        if (most, validation) not in self._candidates:
            from adaptive_rec.data.implicit.negatives import negatives_of

            drawn = negatives_of(self._source)
            assert drawn is not None, "rows are all positives"
            settings = self._state.config.eval.model_copy(update={"max_samples": most})
            made = Candidates(drawn, settings, self._state.config.run.seed, validation=validation)
            self._candidates[most, validation] = made
        return self._candidates[most, validation]

    def _of(self, quality: Quality, scored: ScoredWindow | None = None) -> Evaluation:
        state = self._state
        seen = state.store.group.totals({"samples_seen": state.tally.counters.samples_seen})
        return Evaluation(state.step, quality, scored, **seen)

    def _next_window(self) -> NextWindow:
        from adaptive_rec.runtime.next_window import NextWindow

        return NextWindow(self._state, self._source, self._past.samples.get(self._state.step))

    def phase_logloss(self) -> float | None:
        """Return the logloss of `policy.schedule_samples` samples that are held out, or validated on. None where a signal
        interrupted it."""
        state = self._state
        with state.times("evaluate"), self._publisher.during("evaluating"):
            quality = self._held_out(state.config.policy.schedule_samples, state.config.eval.validates)
        return None if quality is None else quality.logloss


def why_no_auc(quality: Mapping[str, Any], trained: bool) -> str:
    """Return a warning that samples that were scored, and `trained` on where data is followed, have one class of labels, no
    weight, or scores that are NaN."""
    of, samples = "trained on since the last evaluation" if trained else "scored", quality["samples"]
    if math.isnan(quality["logloss"]) and not math.isnan(quality["accuracy"]):
        return f"some of {whole(samples)} samples {of} have a score of NaN: there are no figures; lower the learning rates"
    if math.isnan(quality["logloss"]):
        return f"all {whole(samples)} samples {of} have weight 0: there are no figures of quality; rows that count are needed"
    return (
        f"all {whole(samples)} samples {of} have one label: AUC is not defined, and there is nothing to learn or to compare; "
        "rows of both labels are needed"
    )
