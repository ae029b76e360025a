"""Scores the held-out samples with a run's best model when the run has ended: the runtime that trained is given up for it."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec import checkpoint
from adaptive_rec.config.tree import Config
from adaptive_rec.config.watch import WatchConfig
from adaptive_rec.data.open import as_run_takes
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.live.telemetry import Evaluation
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.run.resume import removable_row_folders
from adaptive_rec.run.rollback import free_memory
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Group


def score_best(present: CurrentRun, config: Config, out: Path, group: Group) -> tuple[Evaluation | None, str]:
    """Return the score of a run's held-out samples by the model of its best evaluation, or the one that was trained on the
    validation slice since, and a warning: where the former has no checkpoint, the present model is scored. Several processes must
    call it together. None where a signal interrupted it.

    `config`: that of the run. The caller must keep no reference to the runtime, whose tables are freed before those of another
    model are made.
    """
    runtime = present.runtime
    assert runtime is not None
    if runtime.state.hurried:
        return None, ""
    best, folder = runtime.state.trend.best, out / "checkpoints"
    if best is None or best.step == runtime.step_number or runtime.state.is_finished_model:
        return runtime.evaluate(), ""
    name = runtime.saving.whole_of_step(best.step)
    if name is None:
        text = f"the best evaluation was at step {best.step:,}, of which there is no whole checkpoint: the last model is scored"
        return runtime.evaluate(), text
    source = fresh(runtime.source, config)
    del runtime
    present.end("finishing")
    free_memory()
    scored = config.model_copy(update={"knobs": checkpoint.saved_knobs(folder / name), "watch": WatchConfig()})
    options = RunOptions(rows=out / "rows", own_rows=removable_row_folders(out, config), trains=False)
    best_model = assemble(scored, source, options=options, group=group)
    checkpoint.load(best_model.parts, folder / name, verified=True)
    present.score_with(best_model.hurry)
    evaluation = best_model.evaluate()
    best_model.observer.close()
    best_model.store.close()
    return evaluation, ""


def fresh(source: Source, config: Config) -> Source:
    """Return a run's source as it was before the run: without the parts of ranks, and without the rows that raw keys have got."""
    while isinstance(source, Wrapped):
        source = source.origin
    return as_run_takes(source, config)
