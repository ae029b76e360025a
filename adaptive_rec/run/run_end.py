"""The end of a run: its last checkpoint, its score, its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.errors import AdaptiveRecError, CheckpointError
from adaptive_rec.live.recorder import LoopTime
from adaptive_rec.live.telemetry import Evaluation, to_json
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.run.new_directory import replace_text
from adaptive_rec.run.parent import ParentRun
from adaptive_rec.run.run_log import RunLog
from adaptive_rec.run.summary import scores_of, summary_of
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.system.group import Group


class RunEnd:
    """Ends a run that has trained. What fails takes nothing else with it."""

    def __init__(
        self, present: CurrentRun, log: RunLog, config: Config, out: Path, group: Group, suspended_by: str
    ) -> None:
        """`suspended_by`: the rule that has ended the run before its end; empty where none has."""
        self._present, self._log, self._config, self._out, self._group = present, log, config, out, group
        self._suspended_by = suspended_by
        self.failure: AdaptiveRecError | None = None
        """Why the last checkpoint, or the score of the held-out samples, could not be had."""

    def write(self, started_at_step: int, parent: ParentRun | None) -> dict[str, Any]:
        """Write the final checkpoint, evaluate unless the run was hurried, write and return the summary."""
        runtime = self._present.runtime
        assert runtime is not None, "the run has trained"
        took = runtime.recorder.time
        self._save(runtime)
        for text in runtime.state.take_warnings():
            self._log.warn(text)
        held_out, evaluation = None, None if self._config.eval.validates else self._evaluate(runtime, took)
        summary = summary_of(runtime, started_at_step, took, evaluation, parent)
        del runtime  # which is given up where another model is scored
        if self._config.eval.validates:
            held_out = self._score_best()
            summary |= scores_of(held_out)
        written = self._out / "summary.json"
        try:
            replace_text(written, to_json(summary, indent=1) + "\n")
        except OSError as error:
            self._log.warn(f"{written} cannot be written: {error.strerror}")
        self._close(held_out)
        return summary

    def _close(self, held_out: Evaluation | None) -> None:
        """Write down how the run ended, and its report."""
        self._log.end_tracking()
        end, rule = "failed" if self.failure else "suspended" if self._suspended_by else "finished", self._suspended_by
        if self.failure is not None:
            self._log.fail(self.failure)
        elif rule:
            self._log.note("suspended", f"suspended by {rule}; train --resume goes on", why=rule)
        else:
            self._log.note("finished", "the run has ended")
        self._log.report()
        self._log.unwritten()
        self._present.enter(end, held_out)

    def _save(self, runtime: Runtime) -> None:
        """Write the checkpoint of the run's end. Without it, the run still has its score and its summary."""
        try:
            for event in runtime.saving.at_the_end():
                self._log.add(event)
        except CheckpointError as error:
            self.failure = error

    def _evaluate(self, runtime: Runtime, took: LoopTime) -> Evaluation | None:
        """Return the score of the run's end; None where a signal or an error interrupts it."""
        made = runtime.state.evaluation
        if made and made.step == runtime.step_number:
            return made
        try:
            evaluation = runtime.evaluate()
        except AdaptiveRecError as error:
            self.failure = self.failure or error
            return None
        if evaluation:
            self._log.add(evaluation, took)
            for event in runtime.evaluator.warning():
                self._log.last(event)
        return evaluation

    def _score_best(self) -> Evaluation | None:
        """Return the score of the held-out samples by the best model; None where a signal or an error interrupts it."""
        from adaptive_rec.run.best_model import score_best

        try:
            evaluation, text = score_best(self._present, self._config, self._out, self._group)
        except AdaptiveRecError as error:
            self.failure = self.failure or error
            return None
        if text:
            self._log.warn(text)
        if evaluation is not None:
            quality = evaluation.quality
            text = f"held out: {quality}, by the model of step {evaluation.step:,}"
            self._log.note("scored", text, model_step=evaluation.step, **quality.as_dict())
        return evaluation
