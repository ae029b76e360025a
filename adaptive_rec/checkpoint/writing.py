"""Writing of a checkpoint: it is started between two steps, written by any thread, and ended between two steps.

The start costs training very little: small parts are copied, rows are saved as in `embedding/snapshot.py`. The first checkpoint
has all rows; later ones have the rows that changed since the one before, until the changes amount to half of all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.checkpoint.dense_state import dense_arrays
from adaptive_rec.checkpoint.descriptions import manifest_description, run_description
from adaptive_rec.checkpoint.disk_entry import disk_entry
from adaptive_rec.checkpoint.draft import Draft, DraftPart
from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.flatten import flatten
from adaptive_rec.checkpoint.generation import names_in
from adaptive_rec.checkpoint.history import ChainedGeneration, chain, names_in_use, prune, verify_all
from adaptive_rec.checkpoint.kept_files import kept_name
from adaptive_rec.checkpoint.manifest import DiskEntry, FileEntry
from adaptive_rec.checkpoint.rows import is_shard, row_number_type, shard_name, state_file_names
from adaptive_rec.checkpoint.run_state import Last, RunParts, collect_run_state
from adaptive_rec.checkpoint.safetensors_file import PATTERNS
from adaptive_rec.checkpoint.saved_state import DENSE
from adaptive_rec.embedding.shard_arrays import ROW
from adaptive_rec.errors import CheckpointError, DiskError, first_line, is_out_of_memory
from adaptive_rec.system.durable import sync_files
from adaptive_rec.system.group import Group

MOST_CHANGES = 24
"""Limit of generations of changes that build on one of all rows; more would be slow to read."""


@dataclass(frozen=True)
class Written:
    """Result of writing a checkpoint."""

    step: int
    name: str
    kind: str
    """full or changes"""
    rows: int
    size_bytes: int
    seconds: float
    """Time from its start to its end."""
    stall_seconds: float
    """Time that training stood still for it."""
    error: CheckpointError | None = None
    """Why it could not be written."""
    complaint: str = ""
    """Warning about a checkpoint that was written."""


class Writing:
    """A checkpoint while it is written. The training thread makes and ends it; any thread may call `write`."""

    def __init__(self, parts: RunParts, folder: Path, files: Files = DISK, journal: Path | None = None) -> None:
        """Start a checkpoint. `journal`: a file that is to be on the disk before it, as it names the checkpoint. Raises
        CheckpointError where nothing can be written."""
        self._began = time.perf_counter()
        self._journal = journal
        self._parts, self._files, self._folder = parts, files, folder
        state = parts.state
        self._group = group = state.store.group
        self._keep = state.config.checkpoint.keep
        self._best = tuple(state.trend.best_steps)
        self.of = state_key(parts, folder)
        """The state it is made of."""
        parts.finite.settle()
        self._chain = _to_build_on(parts, folder, files) if group.rank == 0 else []
        self._only_changes = bool(group.tell(bool(self._chain)))
        self.step = state.step
        self._draft = _begin_draft(group, files, folder, self.step)
        self.name = self._draft.name
        try:
            self._values, arrays = flatten(collect_run_state(parts))
            self._arrays = parts.base.copies.of(arrays)
            self._dense = dense_arrays(parts.dense)
            self._run, self._description = run_description(state), manifest_description(state)
            self._row_type = row_number_type(state.store.peers.batch_space.rows)
            self._rows = state.store.begin_snapshot(everything=not self._only_changes)
        except BaseException as error:
            self._draft.abandon()
            if is_out_of_memory(error):
                raise CheckpointError(
                    f"{self.name}: there was not enough memory for it: {first_line(error)}"
                ) from error
            if isinstance(error, Exception) and not isinstance(error, CheckpointError):  # such as one of a user's policy
                raise CheckpointError(f"{self.name} was abandoned after a {type(error).__name__}: {error}") from error
            raise
        kept_rows, raw_ids = state.input.kept_rows, state.input.raw_ids
        self._kept = None
        if group.rank == 0 and kept_rows is not None and raw_ids is not None and raw_ids.kept is not None:
            self._kept = kept_rows.begin_snapshot(raw_ids.kept.places)
        self._error: CheckpointError | None = CheckpointError(f"{self.name} was never written")
        self._complaints: list[str] = []
        """What went wrong though it is written."""
        self._is_lost = False
        """Whether a checkpoint that it builds on is damaged."""
        self._size_bytes = 0
        self._stall = time.perf_counter() - self._began

    def write(self) -> None:
        """Write it, and commit it where this process is the only one. `end` returns any error."""
        try:
            self._try(self._write)
        finally:
            self._rows.end()
            if self._group.is_alone:
                self._draft.abandon()

    def _try(self, work: Callable[[], None]) -> None:
        """Do a part of the work and keep its error, of any kind: training continues."""
        try:
            work()
            self._error = None
        except CheckpointError as error:
            self._error = error
        except Exception as error:
            self._error = CheckpointError(f"{self.name} was abandoned after a {type(error).__name__}: {error}")
            self._error.__cause__ = error

    def fail(self, error: Exception) -> None:
        """Note why it cannot be written."""
        self._error = CheckpointError(f"{self.name} was abandoned: {first_line(error)}")

    def give_up(self) -> None:
        """Remove what was written, where other processes of the run may be gone."""
        self._draft.abandon()

    def end(self) -> Written:
        """Return the result. If it failed, the next checkpoint includes its rows."""
        began = time.perf_counter()
        if not self._group.is_alone:
            self._commit_together()
        self._draft.abandon()
        self._parts.state.store.end_snapshot(saved=self._error is None)
        if self._kept is not None:
            self._kept.end()
        if self._is_lost:
            self._parts.base.build_on(None)
        if self._error is None:
            self._parts.base.build_on(Last(self._folder, self.name, self.of))
        complaint = f"checkpoint {self.name} is written, but {'; '.join(self._complaints)}" if self._complaints else ""
        ended = time.perf_counter()
        return Written(
            step=self.step,
            name=self.name,
            kind="changes" if self._only_changes else "full",
            rows=int(self._group.total(np.array([self._rows.rows]))[0]),
            size_bytes=self._size_bytes,
            seconds=ended - self._began,
            stall_seconds=self._stall + self._rows.kept_seconds + ended - began,
            error=self._error,
            complaint=complaint,
        )

    def _write(self) -> None:
        draft, store, rank = self._draft, self._parts.state.store, self._group.rank
        for number, arrays in enumerate(store.shards(self._rows)):
            arrays[ROW] = arrays[ROW].astype(self._row_type)
            draft.arrays(shard_name(number, rank), arrays, _types(arrays))
        for number, arrays in enumerate(self._kept.shards() if self._kept is not None else ()):
            draft.arrays(kept_name(number), arrays, _types(arrays))
        if rank == 0:
            draft.arrays(DENSE, self._dense, _types(self._dense))
        values_name, arrays_name = state_file_names(rank)
        draft.arrays(arrays_name, self._arrays)
        draft.json(values_name, {"run": self._run, "ranks": self._group.ranks, "state": self._values})
        if self._group.is_alone:
            self._commit([self._rows_on_disk()])
            self._rows.forget()
            self._let_rows_go(self._names_in_use())

    def _rows_on_disk(self) -> str | None:
        """Return what the manifest says of this rank's rows on a disk, once they are written; None where shards have them."""
        store = self._parts.state.store
        log = store.cold.saved_log()
        return None if log is None else disk_entry(log, self._folder, store.peers.home_T).model_dump_json()

    def _commit(self, on_disk: list[str | None]) -> None:
        """Make it visible, and remove older ones. `on_disk`: `_rows_on_disk` of all ranks."""
        self._sync_journal()
        draft, disk = self._draft, tuple(DiskEntry.model_validate_json(entry) for entry in on_disk if entry is not None)
        assert isinstance(draft, Draft), "rank 0 commits"
        made = draft.commit(self._description, self._chain[-1].since if self._chain else None, disk or None)
        self._size_bytes = draft.size_bytes
        try:
            prune(self._files, self._folder, self._keep, self._best)
        except CheckpointError as error:
            self._check(made)
            self._complaints.append(f"older ones could not be removed: {error}")

    def _names_in_use(self) -> list[str] | None:
        """Return the checkpoints whose rows on a disk must stay; None where all must."""
        if not self._parts.state.store.cold.on_disk:
            return None
        try:
            return names_in_use(self._files, self._folder, self._keep, self._best)
        except CheckpointError as error:
            self._complaints.append(f"rows of older ones stay: {error}")
            return None

    def _let_rows_go(self, kept: list[str] | None) -> None:
        """Have rows on a disk removed that no checkpoint needs any more."""
        try:
            self._parts.state.store.cold.keep_for(kept, self.name)
        except DiskError as error:
            self._complaints.append(f"rows of older ones could not be removed: {error}")

    def _commit_together(self) -> None:
        """Commit what all ranks have written, or nothing where one of them failed. Every rank has the same outcome."""
        entries = [entry.model_dump() for entry in self._draft.entries]
        on_disk = None if self._error else self._rows_on_disk()
        found = self._group.share({"error": str(self._error or ""), "files": entries, "disk": on_disk})
        errors = [f"rank {rank}: {each['error']}" for rank, each in enumerate(found) if each["error"]]
        if errors:
            self._error = CheckpointError("; ".join(errors))
        elif isinstance(self._draft, Draft):
            self._draft.add(FileEntry(**entry) for each in found[1:] for entry in each["files"])
            self._try(lambda: self._commit([each["disk"] for each in found]))
        kept = self._names_in_use() if self._group.rank == 0 and self._error is None else None
        error, kept = self._group.tell([str(self._error or ""), kept])
        if error:
            self._error = self._error or CheckpointError(error)
        else:
            self._rows.forget()
            self._let_rows_go(kept)

    def _sync_journal(self) -> None:
        """Have the journal on the disk: after a loss of power a run is replayed from it."""
        try:
            sync_files([self._journal] if self._journal else [])
        except OSError as error:
            end = f"the end of {self._journal.name if self._journal else ''}"
            self._complaints.append(f"a loss of power may take {end}: {error.strerror}")

    def _check(self, made: Path) -> None:
        """Raise CheckpointError where it cannot be used; the next one then builds on nothing."""
        try:
            verify_all(self._files, made)
        except CheckpointError:
            self._is_lost = True
            raise


def save(parts: RunParts, folder: Path, files: Files = DISK) -> Path:
    """Write a checkpoint of the run as it stands, as a whole or not at all, and remove older ones beyond `checkpoint.keep`, but
    for that of the best evaluation. Returns the last checkpoint where nothing has changed since."""
    if (name := newest_saved(parts, folder, files)) is not None:
        return folder / name
    writing = Writing(parts, folder, files)
    try:
        writing.write()
    finally:
        written = writing.end()
    if written.error is not None:
        raise written.error
    if written.complaint:
        parts.state.warn(written.complaint)
    return folder / written.name


def newest_saved(parts: RunParts, folder: Path, files: Files = DISK) -> str | None:
    """Return the name of the newest checkpoint if it has the present state of the run and still exists."""
    last = parts.base.last
    if last is None or last.of != state_key(parts, folder) or last.name not in names_in(files, folder):
        return None
    return last.name


def state_key(parts: RunParts, folder: Path) -> tuple[Any, ...]:
    """Return a key that is equal for equal states of a run."""
    state = parts.state
    return folder, state.step, state.owed, state.knobs, state.commands_done, parts.phases.reordered


def _to_build_on(parts: RunParts, folder: Path, files: Files) -> list[ChainedGeneration]:
    """Return the generations that the next one builds on; none where it has to have all rows."""
    last = parts.base.last
    if last is None or last.folder != folder or last.name not in names_in(files, folder):
        return []
    try:
        links = chain(files, folder / last.name)
    except CheckpointError:  # one was removed
        return []
    of_all, *of_changes = (
        sum(entry.size_bytes for entry in link.manifest.files if is_shard(entry.name)) for link in links
    )
    too_much = 2 * (sum(of_changes) + parts.state.store.changed_bytes) > of_all
    return [] if too_much or len(of_changes) >= MOST_CHANGES else links


def _begin_draft(group: Group, files: Files, folder: Path, step: int) -> DraftPart:
    """Begin a draft, to which every rank of the group writes its part. Raises CheckpointError on all of them, or on none."""
    if group.is_alone:
        return Draft(files, folder, step)
    draft, error = None, ""
    try:
        draft = Draft(files, folder, step) if group.rank == 0 else None
    except CheckpointError as caught:
        error = str(caught)
    name, error = group.tell([draft.name if draft else "", error])
    if error:
        raise CheckpointError(error)
    return draft or DraftPart(files, folder, name)


def _types(arrays: dict[str, Any]) -> dict[str, str]:
    """Return the format's types of arrays that hold bit patterns."""
    return {name: PATTERNS[array.dtype] for name, array in arrays.items() if np.dtype(array.dtype) in PATTERNS}
