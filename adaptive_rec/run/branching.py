"""Branches of a run: a sibling that begins with one of its checkpoints and shares its files. Loads no torch.

The directory of a branch is filled beside its place and renamed, so that it is there as a whole or not at all. It has the
checkpoint with all that this builds on, the parent's journal and metrics up to it, its configuration, and in ``run.json`` where
it comes from (`parent.py`). From there ``train --resume`` goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.disk_entry import folder_of, saved_logs
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.history import ChainedGeneration, chain, hold_generation, verify_all
from adaptive_rec.checkpoint.saved_state import read_values
from adaptive_rec.checkpoint.settings import check_model, check_saved_settings, run_settings
from adaptive_rec.checkpoint.sharing import NewHome, SharedFiles, share
from adaptive_rec.config.tree import DESCRIPTION, Config, given_knobs, load_config, overridden_knobs, to_toml
from adaptive_rec.embedding.disk.saved_segments import remove_unused, segment_files
from adaptive_rec.embedding.disk.scratch import ScratchFolder
from adaptive_rec.errors import CheckpointError, UsageError
from adaptive_rec.live.telemetry import Event, to_json
from adaptive_rec.run import journal
from adaptive_rec.run.changed_settings import changed_settings
from adaptive_rec.run.chosen_checkpoint import Chosen, best_checkpoint, checkpoint_at
from adaptive_rec.run.external_paths import check_rows_are_inside, outside, sign, with_absolute_rows
from adaptive_rec.run.inputs import check_trained
from adaptive_rec.run.new_directory import check_run_is_new, claim, leave, sole_writer
from adaptive_rec.run.parent import ParentRun, read_about
from adaptive_rec.run.parent_history import METRICS, events_until, metrics_until
from adaptive_rec.runtime.start_checks import check_admission
from adaptive_rec.saved import Saved
from adaptive_rec.system.durable import make_folders, sync_files, sync_folder
from adaptive_rec.system.strict_json import LinesLeftOut

DRAFTS = ".branch-"
"""How the names of folders begin in which branches are made. Those of killed processes go with the next branch beside them."""


@dataclass(frozen=True)
class Branch:
    """A branch that was made."""

    out: Path
    parent: ParentRun
    shared: SharedFiles
    rows: Path
    """The folder of its rows on a disk, where it has some."""
    journal_bytes: int
    """The size of its journal before it trains."""
    left_out: LinesLeftOut
    """Lines of its parent's metrics that cannot be read."""

    @property
    def has_started(self) -> bool:
        """Whether a process has trained in its directory, or has begun to."""
        path = self.out / journal.NAME
        return not path.is_file() or path.stat().st_size != self.journal_bytes

    def remove(self) -> None:
        """Remove the directory of a branch that could not start, unless another process is in it."""
        try:
            lock = sole_writer(self.out)
        except UsageError:
            return
        try:
            if lock is not None and not self.has_started:
                remove_unused(self.rows, set())
                shutil.rmtree(self.out)
        finally:
            if lock is not None:
                lock.close()


def make_branch(
    run: Path, at: str | None, out: Path, environment: Mapping[str, str], settings: Sequence[str], command: str,
    of_one_process: bool = False,
) -> Branch:  # fmt: skip
    """Make the directory `out` of a branch of `run`. `at`: the step of a checkpoint, or its name; None takes the newest.
    `settings`: KEY=VALUE, what a resumed run may change. `command`: the command line, for the record. `of_one_process`: whether a
    checkpoint that several processes wrote is refused.

    Raises UsageError, ConfigError, DataError or CheckpointError; then there is no such directory.
    """
    check_trained(run)
    check_run_is_new(out, hint="; give another, or go on with it by train --resume")
    name = checkpoint_at(run, at)
    generation = run / "checkpoints" / name
    kept = str(run / "config.toml")
    before, config = load_config(kept, {}), load_config(kept, environment, settings)
    check_admission(config)
    knobs = given_knobs(config, before, overridden_knobs(environment, settings))
    with hold_generation(DISK, generation), ExitStack() as held:
        verify_all(DISK, generation)
        values, settings_then, ranks = read_values(generation, DISK)
        if ranks > 1 and of_one_process:
            raise UsageError(
                f"--processes N must be given, as {ranks} processes wrote {generation}: as many go on bit by bit, and any "
                "other number can"
            )
        check_saved_settings(run_settings(config), settings_then, generation)
        check_model(before, config, generation)
        saved = Saved(values)
        changed = changed_settings(before, config, saved.part("position").integer("epoch"))
        parent = _parent(run, name, saved, knobs, changed)
        check_steps(config, before, parent)
        links = chain(DISK, generation)
        best = held.enter_context(best_links(run, generation, config))
        rows = folder_of_branch_rows(out, config, links[-1])
        check_rows_are_inside(run, out, config, settings, environment)
        shared, left_out = SharedFiles(), LinesLeftOut()
        with _draft(out, rows) as draft:
            for each in filter(None, (links, best)):
                share(DISK, each, NewHome(out, draft, rows), shared)
            size = _write_past(draft, run, parent, left_out)
            about = {**read_about(run), "run_name": out.absolute().name, "command": command}
            _write_descriptions(draft, about, config.model_copy(update={"knobs": before.knobs}), parent)
    sign(out, rows=outside(out, config))
    return Branch(out, parent, shared, rows, size, left_out)


@contextmanager
def best_links(run: Path, generation: Path, config: Config) -> Iterator[list[ChainedGeneration]]:
    """Yield the checkpoint of a run's best evaluation by the time of a generation, with those it builds on, where the run keeps
    it and it is whole and another one."""
    best = best_checkpoint(run, generation) if config.eval.keeps_best else None
    with ExitStack() as held:
        links: list[ChainedGeneration] = []
        if isinstance(best, Chosen) and best.generation != generation:
            with suppress(CheckpointError):
                held.enter_context(hold_generation(DISK, best.generation))
                verify_all(DISK, best.generation)
                links = chain(DISK, best.generation)
        yield links


def check_steps(config: Config, before: Config, parent: ParentRun) -> None:
    """Raise UsageError where a branch is to end before it begins."""
    if config.run.steps != before.run.steps and 0 < config.run.steps < parent.step:
        raise UsageError(
            f"run.steps must be at least the {parent.step} steps that {parent.run} had made by then, got {config.run.steps}"
        )


def folder_of_branch_rows(out: Path, config: Config, link: ChainedGeneration) -> Path:
    """Return the folder of a branch's rows on a disk. Raises UsageError where it is one with rows of another run."""
    if not config.run.disk:
        return out / "rows"
    rows = Path(config.run.disk)
    logs = saved_logs(link.manifest, link.path)
    if logs and folder_of(logs).resolve() == rows.resolve():
        raise UsageError(
            f"run.disk must be a folder of the branch's own, {rows} has the rows of its parent; give {out} a folder of its own: "
            "--set run.disk=DIR, on the same disk, so that files can be shared"
        )
    if segment_files(rows):
        raise UsageError(f"run.disk must be a folder without rows of another run, {rows} has some")
    return rows


@contextmanager
def _draft(out: Path, rows: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `out` when the block succeeds. Else it is removed, with what is in `rows` by then.
    Raises UsageError."""
    place = out.absolute()
    try:
        make_folders(place.parent)
        with ScratchFolder(place.parent, DRAFTS) as scratch:
            draft = scratch.path / "run"
            draft.mkdir()
            try:
                yield draft
                sync_folder(draft)
                if place.exists():  # empty, or with the lock that a killed process has left
                    leave(place, claim(place))
                os.rename(draft, place)
            except BaseException:
                remove_unused(rows, set())
                raise
            sync_folder(place.parent)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None


def _parent(
    run: Path, name: str, state: Saved, knobs: Mapping[str, Any], settings: dict[str, dict[str, Any]]
) -> ParentRun:
    """Return what a branch keeps of the run that it comes from."""
    return ParentRun(
        run=os.path.abspath(run),
        checkpoint=name,
        step=state.integer("step"),
        seconds=(recorder := state.part("recorder")).number("seconds"),
        processor_seconds=recorder.number("processor_seconds") if recorder.has("processor_seconds") else 0.0,
        seconds_by_stage=state.part("times").numbers("seconds"),
        samples_seen=state.part("tally").part("counters").integer("samples_seen"),
        knobs=dict(knobs),
        settings=settings,
    )


def _write_past(draft: Path, run: Path, parent: ParentRun, left_out: LinesLeftOut) -> int:
    """Write the journal and the metrics of the parent up to the checkpoint. Returns the size of the journal."""
    text = f"a branch of {parent.run} at checkpoint {parent.checkpoint}; adaptive-rec train --resume starts it"
    branched = Event(parent.step, "branched", text, {"parent": parent.place})
    past = [*events_until(run, parent.checkpoint), f"{journal.line_of(branched)}\n".encode()]
    (draft / journal.NAME).write_bytes(b"".join(past))
    with open(draft / METRICS, "wb") as file:
        file.writelines(metrics_until(run, parent.step, left_out))
    sync_files([draft / journal.NAME, draft / METRICS])
    return (draft / journal.NAME).stat().st_size


def _write_descriptions(draft: Path, about: Mapping[str, Any], config: Config, parent: ParentRun) -> None:
    (draft / "config.toml").write_text(to_toml(with_absolute_rows(config)), encoding="utf-8")
    described = to_json({**about, "parent": parent.model_dump()}, indent=1)
    (draft / DESCRIPTION).write_text(f"{described}\n", encoding="utf-8")
    sync_files([draft / "config.toml", draft / DESCRIPTION])
