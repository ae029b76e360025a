"""Resumes a run: finds its checkpoint and the knobs it goes on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec import checkpoint
from adaptive_rec.batch import Position
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import set_aside
from adaptive_rec.checkpoint.history import Found
from adaptive_rec.checkpoint.saved_state import read_values
from adaptive_rec.checkpoint.settings import check_model, check_saved_settings, run_settings
from adaptive_rec.config.tree import Config, given_knobs, load_config
from adaptive_rec.config.watch import WatchConfig
from adaptive_rec.data.source import Source, has_groups
from adaptive_rec.errors import UsageError
from adaptive_rec.live.evaluations import PastEvaluations
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Evaluation
from adaptive_rec.policy.find import load_policy, why_not_live
from adaptive_rec.run import journal
from adaptive_rec.run.external_paths import own_folders
from adaptive_rec.run.parent import ParentRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.start_checks import check_admission, check_groups
from adaptive_rec.saved import Saved
from adaptive_rec.system.group import Group

if TYPE_CHECKING:
    from adaptive_rec.embedding.disk.scratch import ScratchFolder
    from adaptive_rec.run.chosen_checkpoint import Chosen

SCORED_ANYWHERE = ["run.device=auto", "run.compile=false", "run.classify=auto", "run.cold_rows=auto"]
"""Settings with which a run is scored on whatever there is: none of them changes what it has learnt."""


@dataclass(frozen=True)
class ResumedFrom:
    """What a run was resumed from."""

    checkpoint: str
    """Name of the checkpoint."""
    overridden: dict[str, dict[str, Any]]
    """Old and new values of knobs that differ from the saved ones before the run goes on."""
    settings: dict[str, dict[str, Any]]
    """Old and new values of other settings that change its course."""


@dataclass(frozen=True)
class Resumed:
    """A run as a checkpoint has it, ready to train."""

    runtime: Runtime
    config: Config
    """The configuration that the run directory keeps: its first knobs, all else as given now."""
    before: ResumedFrom


def begin_run(
    config: Config, out: Path, again: bool, group: Group | None = None, replayed: Mapping[int, list[Command]] | None = None
) -> Runtime:
    """Assemble a run that has no checkpoint. `again`: its directory is there already. `replayed`: commands by step, where another
    run is replayed."""
    own_rows = removable_row_folders(out, config) if again else set()
    check_admission(config)
    options = RunOptions(
        out / "checkpoints", out / journal.NAME, out / "rows", own_rows=own_rows, **told_replay(group, replayed)
    )
    runtime = assemble(config, options=options, group=group)
    if again:
        checkpoint.remove_unused_rows(runtime.parts, out / "checkpoints", own_rows)
    return runtime


def resume_run(
    config: Config,
    out: Path,
    found: Found,
    overridden: Collection[str],
    group: Group | None = None,
    replayed: Mapping[int, list[Command]] | None = None,
    parent: ParentRun | None = None,
) -> Resumed:
    """Resume the run in `out` from the checkpoint that was found. `replayed`: as for `begin_run`, what is left of them. `parent`:
    where a branch comes from.

    A run keeps the knobs it was saved with, except those that `config` has otherwise than the run's own ``config.toml``, and
    those named in `overridden`: they change before the next step. So do the knobs that a branch was given, where it begins.
    Where a run cannot change to them while it trains, it starts with them.
    Raises CheckpointError where the checkpoint does not fit, UsageError where the run has made more steps than configured.
    """
    from adaptive_rec.run.changed_settings import changed_settings

    check_admission(config)
    generation = found.generation
    assert generation is not None
    before = check_resumes(config, out, generation)
    saved, given = checkpoint.saved_knobs(generation), given_knobs(config, before, overridden)
    if parent is not None and parent.checkpoint == generation.name:
        names = parent.knobs.keys() | given.keys()
        given = before.knobs.changed({**parent.knobs, **given}).model_dump(include=set(names))
    changes = {name: value for name, value in given.items() if value != getattr(saved, name)}
    policy = load_policy(saved.policy)
    live = "policy" not in changes or not why_not_live(load_policy(changes["policy"]), policy)
    knobs = saved if live else saved.changed(changes)
    notices = [f"checkpoint {name} was passed over and set aside: {why}" for name, why in found.skipped]
    own_rows = removable_row_folders(out, config)
    options = RunOptions(
        out / "checkpoints",
        out / journal.NAME,
        out / "rows",
        own_rows=own_rows,
        saved=checkpoint.saved_layout(generation),
        overrides=changes if live else {},
        notices=notices,
        **told_replay(group, replayed),
    )
    runtime = assemble(config.model_copy(update={"knobs": knobs}), options=options, group=group)
    checkpoint.load(runtime.parts, generation, verified=True)
    runtime.expect_steps()
    checkpoint.remove_unused_rows(runtime.parts, out / "checkpoints", own_rows)
    runtime.phases.check_resumable()
    set_aside(DISK, out / "checkpoints", [name for name, _ in found.skipped])
    was, now = saved.model_dump(), runtime.knobs.model_dump()
    overridden_knobs = {name: {"old": was[name], "new": now[name]} for name in now if now[name] != was[name]}
    return Resumed(
        runtime,
        runtime.config.model_copy(update={"knobs": before.knobs}),
        ResumedFrom(generation.name, overridden_knobs, changed_settings(before, config, runtime.state.position.epoch)),
    )


def check_resumes(config: Config, out: Path, generation: Path) -> Config:
    """Return the configuration of the run in `out`, after a look at whether it resumes from a checkpoint under `config`, before
    tables are made. Raises CheckpointError, ConfigError or UsageError."""
    kept = out / "config.toml"
    before = load_config(str(kept), {}) if kept.is_file() else config
    step = _check_fits(config, generation)
    check_model(before, config, generation)
    if config.run.steps != before.run.steps and 0 < config.run.steps < step:
        raise UsageError(
            f"run.steps must be at least the {step} steps that {out} has made, got {config.run.steps}", faq="steps-already-made"
        )
    return before


def told_replay(group: Group | None, replayed: Mapping[int, list[Command]] | None) -> dict[str, Any]:
    """Return the options of a run that replays another: the commands; the parts of the stream that are left out, as
    `WithoutParts` takes them; and when the other run was evaluated. Several processes must call it together; rank 0 has the
    commands. The others get those that are carried out before a step, which do not pass through the mailbox."""
    done = [(step, each) for step in sorted(replayed or {}) for each in (replayed or {})[step]]
    parts = [[dict(each.values["begin"]), dict(each.values["end"])] for _, each in done if each.verb == "skip_data"]
    evaluated = [(step, dict(each.values)) for step, each in done if each.verb == "evaluate"]
    before = [[step, dict(each.values), dict(each.note)] for step, each in done if each.verb == "halve_budget"]
    if group is not None:
        replays, parts, evaluated, before = group.tell([replayed is not None, parts, evaluated, before])
        if replays and replayed is None:
            replayed = {step: [] for step, _, _ in before}
            for step, values, note in before:
                replayed[step].append(Command("halve_budget", values, note=note))
    left_out = {Position(**begin): Position(**end) for begin, end in parts}
    return {"replayed": replayed, "left_out": left_out, "evaluated": _before_last_start(evaluated)}


def _before_last_start(evaluated: Sequence[tuple[int, Mapping[str, Any]]]) -> PastEvaluations:
    """Return the evaluations that a replayed run made before its last start, among the `evaluate` commands of its journal."""
    last = max((place for place, (_, values) in enumerate(evaluated) if not values["made"]), default=-1)
    if last < 0:
        return PastEvaluations({}, -1)
    start, later = evaluated[last][0], [step for step, _ in evaluated[last + 1 :]]
    samples = {step: values.get("samples") for step, values in evaluated[:last] if values["made"]}
    return PastEvaluations(samples, start - (start in later))  # later ones are as the settings of now say


def removable_row_folders(out: Path, config: Config) -> set[Path]:
    """Return the folders in which a run may have left rows on the disk and may remove them: its own, that of its configuration as
    it was, and those that its checkpoints name. Folders elsewhere that nobody has named for it are left out; so is one that only
    the `config` of now names, as rows that lie there are another run's."""
    kept = out / "config.toml"
    disk = load_config(str(kept), {}).run.disk if kept.is_file() else ""
    named = {Path(disk).resolve()} if disk else set()
    return own_folders(out, config, {(out / "rows").resolve(), *named, *checkpoint.folders_of_rows(out / "checkpoints")})


def evaluate_run(
    run: Path,
    warn: Callable[[str], None] = lambda text: None,
    wanted: str | None = None,
    metrics: Sequence[str] | None = None,
) -> tuple[Evaluation, Chosen]:
    """Evaluate a run's checkpoint on its held-out range; `wanted` and `warn` are those of `chosen_checkpoint`; `metrics`: those
    that rank, by default the run's `eval.metrics`. Raises UsageError where there is none, ConfigError where the rows have no
    groups to be ranked within."""
    from adaptive_rec.run.chosen_checkpoint import chosen_checkpoint

    with chosen_checkpoint(run, wanted, warn) as chosen:
        runtime = runtime_of(run, chosen.generation, metrics=metrics)
    check_groups(runtime.config.eval.metrics, has_groups(runtime.source), runtime.config.data.source)
    if runtime.followed is not None:
        raise UsageError(f"RUN must have held-out samples, {run} follows its data; metrics.jsonl has the score of each window")
    evaluation = runtime.evaluate()
    assert evaluation is not None
    return evaluation, chosen


def trained_runtime(
    run: Path, warn: Callable[[str], None] = lambda text: None, wanted: str | None = None
) -> Runtime:
    """Return a runtime with the tables and the dense part of a run's checkpoint; `wanted` and `warn` are those of
    `chosen_checkpoint`. Raises UsageError where the run has none."""
    from adaptive_rec.run.chosen_checkpoint import chosen_checkpoint

    with chosen_checkpoint(run, wanted, warn) as chosen:
        return runtime_of(run, chosen.generation)


def runtime_of(
    run: Path, generation: Path, source: Source | None = None, metrics: Sequence[str] | None = None
) -> Runtime:
    """Return a runtime with the tables and the dense part of a checkpoint that was verified. `source`: what it is to score, by
    default the run's own data; `metrics`: those that rank, by default the run's."""
    config = load_config(str(run / "config.toml"), {}, SCORED_ANYWHERE)
    if metrics is not None:
        config = config.model_copy(update={"eval": config.eval.model_copy(update={"metrics": tuple(metrics)})})
    _check_fits(config, generation)
    folders = checkpoint.rows_folders(generation)
    settings = {"disk": ""} if folders else {"host_memory": 0}
    knobs = config.knobs.changed({"evict_ratio": 0.0})  # not under the policy here, and nothing leaves in an evaluation
    of_run = config.run.model_copy(update=settings)
    config = config.model_copy(update={"run": of_run, "knobs": knobs, "watch": WatchConfig()})
    # Every row in host memory, or on the disk, wherever it was trained: where it is already, or a copy from where several ranks
    # have it.
    with ExitStack() as opened:
        copied = len(folders) > 1 or any(not folder.is_dir() for folder in folders)
        scratch = opened.enter_context(_scratch_for(run, config, folders[0])) if copied else None
        rows = scratch.path if scratch else next(iter(folders), None)
        options = RunOptions(rows=rows, own_rows=() if rows is None else {rows.resolve()}, trains=False)
        runtime = assemble(config, source, policy=load_policy("hybrid"), options=options)
        checkpoint.load(runtime.parts, generation, verified=True)
        if scratch:
            scratch.keep_for(runtime.store)
    return runtime


def _check_fits(config: Config, generation: Path) -> int:
    """Return the step of a checkpoint. Raises CheckpointError where it is of a run of other settings, before tables are made,
    which may be far larger."""
    values, saved, _ = read_values(generation, DISK)
    check_saved_settings(run_settings(config), saved, generation)
    return Saved(values).integer("step")


def _scratch_for(run: Path, config: Config, rows: Path) -> ScratchFolder:
    """Return a folder beside the rows of a rank; in the run's directory where they lie in one that nobody has given for it."""
    from adaptive_rec.embedding.disk.scratch import ScratchFolder

    folder = next(iter(own_folders(run, config, [rows.parent.resolve()])), run)
    try:
        return ScratchFolder(folder, "read-")
    except OSError as error:
        rule = f"rows of several processes must be copied beside them to be read by one, {folder} cannot be written to"
        raise UsageError(f"{rule}: {error.strerror}") from None
