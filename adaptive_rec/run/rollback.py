"""Goes back to a checkpoint of the run that trains, in the same process: the old runtime is given up, and another one resumes."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

import torch

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.rollback_target import remove_newer
from adaptive_rec.config.tree import Config
from adaptive_rec.dense.quality_trend import QualityTrend
from adaptive_rec.live.checkpoint_status import CheckpointStatus
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.run import journal
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.run.resume import removable_row_folders, told_replay
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Group
from adaptive_rec.system.host_memory import give_back_freed_memory


def go_back(
    present: CurrentRun,
    rollback: Rollback,
    config: Config,
    out: Path,
    group: Group | None = None,
    replayed: Mapping[int, list[Command]] | None = None,
) -> list[str]:
    """Replace the runtime that trains, whose loop has ended, by one that goes on from a checkpoint. Several processes must call
    it together. Returns the newer checkpoints, which are removed.

    `config`: that of the run. `replayed`: commands by step that are left, where it replays another. The caller must keep
    no reference to the old runtime: its tables are freed before the new ones are made. Raises CheckpointError or MemoryPlanError
    where the run cannot go on; it can be resumed then.
    """
    folder = out / "checkpoints"
    generation, saved = folder / rollback.checkpoint, checkpoint.saved_knobs(folder / rollback.checkpoint)
    paused, reachable, rollbacks, checkpoints, trend = _standing(present)
    present.let_go()
    free_memory()
    own_rows = removable_row_folders(out, config)
    options = RunOptions(
        folder,
        out / journal.NAME,
        out / "rows",
        own_rows=own_rows,
        saved=checkpoint.saved_layout(generation),
        **told_replay(group, replayed),
        mailbox=present.mailbox,
        rollback=rollback,
    )
    runtime = assemble(config.model_copy(update={"knobs": saved}), options=options, group=group)
    checkpoint.load(runtime.parts, generation, verified=True)
    if rollback.on_slice:
        runtime.begin_slice(trend)
    runtime.expect_steps()
    removed = remove_newer(folder, rollback.checkpoint) if runtime.store.group.rank == 0 else []
    checkpoint.remove_unused_rows(runtime.parts, folder, own_rows)
    runtime.phases.check_resumable()
    runtime.state.go_on_after(rollbacks + 1, paused, reachable, checkpoints, rollback.checkpoint)
    present.follow(runtime)
    return removed


def _standing(present: CurrentRun) -> tuple[bool, bool, int, CheckpointStatus, QualityTrend]:
    """Return whether the run is paused, whether commands reach it, the rollbacks so far, the figures of its checkpoints, and its
    evaluations."""
    assert present.runtime is not None
    state = present.runtime.state
    return state.paused, state.reachable, state.rollbacks, state.checkpoints, state.trend


def free_memory() -> None:
    """Free what nothing refers to any more: parts of a runtime refer to one another."""
    gc.collect()
    give_back_freed_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
