"""The part of a run that ranks other than 0 have: they train, and keep no directory, journal or sidecar."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from adaptive_rec.checkpoint.history import Found
from adaptive_rec.config.tree import Config
from adaptive_rec.errors import AdaptiveRecError, CheckpointError
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.run.parent import parent_of
from adaptive_rec.run.resume import begin_run, resume_run
from adaptive_rec.run.rollback import go_back
from adaptive_rec.run.summary import summary_of
from adaptive_rec.runtime.rank_checks import check_directory
from adaptive_rec.system.group import Group


class Follower:
    """A rank that does what rank 0's `TrainingRun` does, wherever the ranks work together, in the same order."""

    def __init__(self, config: Config, out: Path, resume: bool, overridden: Collection[str], group: Group) -> None:
        name = group.tell() if resume else None
        if name:
            found = Found(out / "checkpoints" / name, [])
            runtime = resume_run(config, out, found, overridden, group, parent=parent_of(out)).runtime
        else:
            runtime = begin_run(config, out, resume, group)
        check_directory(group, out)
        self._group, self._config, self._out = group, runtime.config, out
        self._started_at_step = runtime.step_number
        runtime.state.pause_as_saved(reachable=group.tell())
        self.present = CurrentRun(runtime)
        """The runtime that trains at present: another one after each rollback."""

    def train(self) -> None:
        """Train to the end, and take part in the last checkpoint and the last evaluation."""
        went_back = False
        while (rollback := self._trained()) is not None:
            go_back(self.present, rollback, self._config, self._out, self._group)
            self._started_at_step, went_back = self.present.state.step, True
        runtime = self.present.runtime
        assert runtime is not None
        if runtime.step_number == self._started_at_step and not went_back and self._group.tell():
            return
        took = runtime.recorder.time
        try:
            for _ in runtime.saving.at_the_end():
                pass
        except CheckpointError:
            pass  # rank 0 reports it
        if self._config.eval.validates:
            summary_of(runtime, self._started_at_step, took, None)
            del runtime  # which is given up where another model is scored
            self._score_best()
            return
        evaluation = runtime.state.evaluation
        if evaluation is None or evaluation.step != runtime.step_number:
            try:
                evaluation = runtime.evaluate()
            except AdaptiveRecError:
                pass  # likewise
        summary_of(runtime, self._started_at_step, took, evaluation)

    def _score_best(self) -> None:
        """Take part in the score of the best model."""
        from adaptive_rec.run.best_model import score_best

        with suppress(AdaptiveRecError):  # rank 0 reports it
            score_best(self.present, self._config, self._out, self._group)

    def _trained(self) -> Rollback | None:
        """Train to the end, or to a rollback, and return that. After a signal the run ends instead."""
        runtime = self.present.runtime
        assert runtime is not None
        for _ in runtime.run():
            pass
        return None if runtime.state.hurried else runtime.state.rollback
