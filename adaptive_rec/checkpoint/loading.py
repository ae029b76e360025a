"""Loading of a checkpoint into a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from adaptive_rec.checkpoint.dense_state import set_dense
from adaptive_rec.checkpoint.descriptions import run_description
from adaptive_rec.checkpoint.disk_entry import folder_of, saved_logs
from adaptive_rec.checkpoint.files import DISK, Files, os_errors
from adaptive_rec.checkpoint.generation import generations, names_in, read_manifest
from adaptive_rec.checkpoint.history import Found, names_in_use, newest_held, verify_all
from adaptive_rec.checkpoint.kept_files import set_kept_rows
from adaptive_rec.checkpoint.rows import SavedRows, state_file_names
from adaptive_rec.checkpoint.run_state import Last, RunParts, restore_run_state, saved_homes
from adaptive_rec.checkpoint.safetensors_file import ArraysFile, StoredArray, array_type
from adaptive_rec.checkpoint.saved_state import DENSE, all_arrays, read_values, saved_by
from adaptive_rec.checkpoint.settings import check_saved_settings
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.disk.saved_segments import SavedLog, remove_unused
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError, DiskError
from adaptive_rec.saved import Saved, SavedLayout
from adaptive_rec.state.saved_run import read_knobs as read_knobs


@contextmanager
def held(folder: Path, files: Files = DISK) -> Iterator[Found]:
    """Find the newest whole checkpoint of a folder, and those that were skipped; a run that is training does not remove it in the
    body of a ``with``. Raises CheckpointError where there are some but none is whole."""
    with newest_held(files, folder) as found:
        if found.generation is None and found.skipped:
            reasons = "; ".join(why for _, why in found.skipped)
            raise CheckpointError(f"a checkpoint in {folder} must be whole, none is: {reasons}", faq="damaged-checkpoint")
        yield found


def find(folder: Path, files: Files = DISK) -> Found:
    """Find the newest whole checkpoint of a folder, and those that were skipped. Raises CheckpointError where there are some but
    none is whole."""
    with held(folder, files) as found:
        return found


def newest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a folder, or None. Raises CheckpointError where there are some but none is whole."""
    return find(folder).generation


def saved_knobs(checkpoint: Path, files: Files = DISK) -> Knobs:
    """Return the knobs that a run was saved with."""
    values, _, _ = read_values(checkpoint, files)
    return read_knobs(Saved(values).part("knobs"))


def saved_followed_file(checkpoint: Path, files: Files = DISK) -> str:
    """Return the name of the followed file at which a run stood that was saved; empty: the first one."""
    values, _, _ = read_values(checkpoint, files)
    return Saved(values).part("followed").text("file")


def saved_layout(checkpoint: Path, files: Files = DISK) -> SavedLayout:
    """Return how the rows of a checkpoint are laid out."""
    values, _, ranks = read_values(checkpoint, files)
    pools = len(Saved(values).part("store").parts("pools"))
    arrays = ArraysFile(files, checkpoint / state_file_names(0)[1])
    homes = {"homes": arrays.rows("homes")} if "homes" in arrays.arrays else {}  # the rest is large, and read by `load`
    return SavedLayout(pools, ranks, saved_homes(Saved(homes)))


def load(parts: RunParts, checkpoint: Path, verified: bool = False, files: Files = DISK) -> None:
    """Restore a fresh run from a checkpoint. `verified`: it was just read and found whole, with those it builds on."""
    if not verified:
        verify_all(files, checkpoint)
    _, run, ranks = read_values(checkpoint, files)
    check_saved_settings(run_description(parts.state), run, checkpoint)
    try:
        store, rows = parts.state.store, SavedRows(files, checkpoint)
        is_adopted = _is_adopted(store, rows, checkpoint)
        if not is_adopted:
            _set_rows(store, rows)
        set_dense(parts.dense, all_arrays(ArraysFile(files, checkpoint / DENSE)))
        restore_run_state(parts, ranks, lambda rank: saved_by(checkpoint, rank, files))
        if parts.state.input.kept_rows is not None:
            set_kept_rows(parts.state.input.kept_rows, checkpoint, files)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used: {error}") from None
    # Addresses are good in one folder: a checkpoint whose rows were copied to or from a disk is nothing to build on.
    stays = is_adopted or not (rows.logs or store.cold.on_disk)
    parts.base.build_on(Last(checkpoint.parent, checkpoint.name, ()) if stays else None)


def _is_adopted(store: EmbeddingStore, rows: SavedRows, checkpoint: Path) -> bool:
    """Take over rows that lie on a disk where the store of each rank has its own. Returns False where they must be copied."""
    if not rows.logs or not store.cold.on_disk:
        return False
    group = store.group
    own = rows.logs[group.rank] if len(rows.logs) == group.ranks else None
    if not group.all_true(own is not None and own.home_T == store.peers.home_T and store.cold.fits(own)) or own is None:
        return False
    try:
        store.adopt(checkpoint.name, own, rows.index())
    except DiskError as error:
        raise CheckpointError(str(error)) from None
    return True


def rows_folders(checkpoint: Path, files: Files = DISK) -> list[Path]:
    """Return the folder of each rank's rows, where they lie on a disk outside of a checkpoint."""
    return [log.folder for log in saved_logs(read_manifest(files, checkpoint), checkpoint)]


def folders_of_rows(folder: Path, files: Files = DISK) -> set[Path]:
    """Return the folders, outside of them, in which the checkpoints of a folder have their rows."""
    found = _logs_of(files, folder, generations(names_in(files, folder)))
    return {folder_of(logs).resolve() for logs in found}


def remove_unused_rows(parts: RunParts, folder: Path, rows: Iterable[Path], files: Files = DISK) -> None:
    """Remove the files in some folders of `rows` that neither the run nor its checkpoints in use need. Ranks call it together."""
    store, keep, best = parts.state.store, parts.state.config.checkpoint.keep, parts.state.trend.best_steps
    group = store.group
    present = group.share([str(path) for path in store.cold.files()])
    if group.rank == 0:
        needed = {Path(path) for of_rank in present for path in of_rank}
        for logs in _logs_of(files, folder, names_in_use(files, folder, keep, best)):
            needed |= {path for log in logs for path in log.files}
        for each in rows:
            with os_errors("removal of rows", each):
                remove_unused(each, needed)
    group.tell()  # nobody adds rows before


def _logs_of(files: Files, folder: Path, names: list[str]) -> Iterator[list[SavedLog]]:
    """Yield the rows on a disk of some checkpoints, of those whose manifest can be read and that have some there."""
    for name in names:
        with suppress(CheckpointError):
            if logs := saved_logs(read_manifest(files, folder / name), folder / name):
                yield logs


def _set_rows(store: EmbeddingStore, rows: SavedRows) -> None:
    for index, table in enumerate(rows.tables):
        pool, _, _ = store.space.table_range(index)
        weights, state = store.cold.types.weights[pool], store.cold.types.state[pool]
        for name, stored, array in zip(("weight", "optimizer_state"), rows.types(table), (weights, state), strict=True):
            _check_like(f"{name} of table {table.name}", stored, array)
        for first, end in rows.chunks(table):
            parts = rows.read(table, first, end)
            store.contents.import_rows(index, first, parts[0].view(weights.dtype), parts[1].view(state.dtype))


def _check_like(name: str, stored: StoredArray, array: NDArray[Any]) -> None:
    if (stored.shape[1:], array_type(stored)) != (array.shape[1:], array.dtype):
        rule = f"{list(array.shape[1:])} {array.dtype}, got {list(stored.shape[1:])} {stored.type}"
        raise CheckpointError(f"{name} must be in rows of {rule}")
