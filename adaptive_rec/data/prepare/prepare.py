"""Turns click logs into a folder of arrays with contiguous ids: read, number, write, check, publish.

All work is done in ``DIR.part``, which is renamed to DIR at the very end. When preparing is interrupted, finished work stays
there: each source that was read, each table that was numbered and each array that was written has a mark, and the same command
resumes after the last mark. Files of a stage without a mark are written again. The files of a mark are on the disk before the
mark is, so that a loss of power costs no more than an interruption.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from adaptive_rec.data.prepare.arrays import write_sparse
from adaptive_rec.data.prepare.checksums import Report, StageProgress, counter
from adaptive_rec.data.prepare.describe import describe_content
from adaptive_rec.data.prepare.formats import ReadOptions, open_readers
from adaptive_rec.data.prepare.job import Request, as_user_errors, check_same_job, is_stale, make_job, only_one
from adaptive_rec.data.prepare.meta import (
    ColumnMeta,
    Job,
    Meta,
    bag_files,
    load_meta,
    sparse_file,
)
from adaptive_rec.data.prepare.numbering import SLOT_BYTES, KeyFile, Numbering
from adaptive_rec.data.prepare.place import META
from adaptive_rec.data.prepare.raw import RawReader
from adaptive_rec.data.prepare.read import ReadSource, keys_file, read_source
from adaptive_rec.data.prepare.recipe import rows_are_lines
from adaptive_rec.data.prepare.values import (
    ColumnIds,
    table_keys_file,
    values_file,
    write_table_keys,
    write_table_values,
)
from adaptive_rec.data.tabular.file_rows import of_other_columns
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.system.durable import sync_files, sync_folder, write_whole
from adaptive_rec.units import counted

HASH_TABLES_BYTES = 256 << 20
"""Memory of all hash tables together."""
MAX_WORKERS = 8


def prepare_folder(request: Request, report: Report, waits: bool = False) -> Meta:
    """Prepare a folder, or resume an interrupted run; return the folder's description. `waits`: where another process prepares
    the same folder, wait for it and return its folder's description; otherwise that raises UsageError."""
    out = request.out
    check_is_new(out)
    job = make_job(request)
    options = ReadOptions(job.format, request.schema, job.on_bad_row == "skip", job.seed, job.history_steps)
    readers = open_readers(request.sources, options)
    check_same_columns(request.sources, readers)
    part = out.with_name(out.name + ".part")

    def wait() -> None:
        report(StageProgress("waiting", f"for the process that prepares {out.name}", 0.0, 0))

    with as_user_errors(part):
        with only_one(part, wait if waits else None):
            if os.path.lexists(out):  # another process has made it meanwhile
                with suppress(OSError):
                    part.rmdir()
                if waits:
                    return load_meta(out)
                check_is_new(out)
            meta = Preparation(request.sources, readers, job, part, report).run()
            part.rename(out)
            sync_folder(out.parent)
    return meta


def check_is_new(out: Path) -> None:
    """Raise UsageError where there is something at the path of the folder."""
    if os.path.lexists(out):
        raise UsageError(f"--out must be a new directory, {out} exists")


class Preparation:
    """One job in its folder, stage by stage."""

    def __init__(self, paths: Sequence[Path], readers: list[RawReader], job: Job, part: Path, report: Report) -> None:
        self._paths, self._readers, self._job, self._part = paths, readers, job, part
        self._send, self._stopped = report, threading.Event()
        self._columns = readers[0].columns
        self._keeps_values = readers[0].schema is not None
        self._scratch = part / "scratch"
        self._workers = min(len(os.sched_getaffinity(0)), MAX_WORKERS)

    def _report(self, progress: StageProgress) -> None:
        """Report progress, from any thread. Raises where the work of another thread has failed or was interrupted."""
        if self._stopped.is_set():
            raise InterruptedError("the work of another thread has failed")
        self._send(progress)

    def run(self) -> Meta:
        if (self._part / META).exists() and not is_stale(
            self._job, load_meta(self._part).job
        ):  # only the rename is left to do
            meta = load_meta(self._part)
            check_same_job(self._job, meta.job, self._part)
        else:
            self._begin()
            read = [self._read(index) for index in range(len(self._paths))]
            with ThreadPoolExecutor(self._workers, "prepare") as pool:
                try:
                    tables = self._number(pool, read)
                    meta_columns = tuple(
                        ColumnMeta(name=c.name, table=c.table, bag=c.bag, cardinality=tables[c.table])
                        for c in self._columns
                    )
                    self._write(pool, meta_columns, read)
                    meta = describe_content(
                        self._part, self._job, self._readers[0], tables, meta_columns, read, pool, self._report
                    )
                except BaseException:
                    self._stopped.set()
                    raise
                finally:
                    pool.shutdown(cancel_futures=True)
            write_whole(self._part / META, meta.model_dump_json(indent=1) + "\n")
        if self._scratch.exists():
            shutil.rmtree(self._scratch)
        sync_folder(self._part)
        return meta

    def _begin(self) -> None:
        """Write the job into the folder, or check that the folder holds the same job."""
        path = self._scratch / "job.json"
        if path.exists():
            earlier = Job.model_validate_json(path.read_bytes())
            if earlier.on_bad_row == "error":  # it found no bad row so far, so skipping them changes none of its files
                earlier = earlier.model_copy(update={"on_bad_row": self._job.on_bad_row})
            if not is_stale(self._job, earlier):
                check_same_job(self._job, earlier, self._part)
                write_whole(path, self._job.model_dump_json(indent=1))
                return
            self._clear()
        strange = [entry.name for entry in self._part.iterdir() if entry != self._scratch]
        if strange:
            raise UsageError(f"{self._part} is needed for the work in progress, but holds {strange[0]}; remove it")
        self._scratch.mkdir(exist_ok=True)
        write_whole(path, self._job.model_dump_json(indent=1))

    def _clear(self) -> None:
        """Remove the work of an interrupted run on other data."""
        for entry in self._part.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _read(self, index: int) -> ReadSource:
        """Read one source, unless it has been read."""
        source = self._job.sources[index]
        mark = self._scratch / f"{source.name}.read.json"
        if mark.exists():
            return ReadSource.model_validate_json(mark.read_bytes())
        what = f"{Path(source.path).name} ({index + 1} of {len(self._paths)})"

        def report(rows: int, done_ratio: float) -> None:
            self._report(StageProgress("reading", what, done_ratio, rows))

        read = read_source(self._readers[index], source.name, self._part, self._scratch, report)
        status = self._paths[index].stat()
        if (status.st_size, status.st_mtime_ns) != (source.size_bytes, source.modified_ns):
            raise DataError(f"a source must stay as it is while it is read, {source.path} has changed")
        write_whole(mark, read.model_dump_json())
        return read

    def _number(self, pool: ThreadPoolExecutor, read: list[ReadSource]) -> dict[str, int]:
        """Number the tables that are not numbered yet; returns the rows of each."""
        names = list(dict.fromkeys(column.table for column in self._columns))
        total = sum(sum(source.keys) for source in read)
        rows, add = sum(source.rows for source in read), counter(total)

        def report(keys: int) -> None:
            self._report(StageProgress("numbering", counted(len(names), "table"), add(keys), rows))

        shares = [pool.submit(self._number_table, t, name, read, report) for t, name in enumerate(names)]
        return dict(zip(names, (share.result() for share in shares), strict=True))

    def _number_table(self, number: int, name: str, read: list[ReadSource], report: Callable[[int], None]) -> int:
        mark = self._scratch / f"table.{number}.json"
        files = [
            KeyFile(
                keys_file(self._scratch, source.name, c),
                done.key_bytes[c],
                done.keys[c],
                self._ids_path(source.name, c),
            )
            for c, column in enumerate(self._columns)
            if column.table == name
            for source, done in zip(self._job.sources, read, strict=True)
        ]
        if mark.exists():
            report(sum(file.keys for file in files))
            rows = int(mark.read_text())
        else:
            slots = 1 << (HASH_TABLES_BYTES // self._workers // SLOT_BYTES).bit_length() - 1
            rows = Numbering(files, self._job.min_count, self._scratch / f"table-{number}", slots, report).run()
            sync_files(file.ids_path for file in files)
            write_whole(mark, str(rows))
        if self._keeps_values:
            self._write_values(name, files, rows)
        elif rows_are_lines(self._job.format):
            self._write_once(table_keys_file(name), lambda draft: write_table_keys(files, rows, draft))
        for file in files:
            file.path.unlink(missing_ok=True)
        return rows

    def _write_values(self, table: str, files: list[KeyFile], rows: int) -> None:
        """Write the values that the ids of a table stand for, unless they have been written."""
        columns = [
            ColumnIds(file.path.with_suffix(".values"), file.ids_path, len(file.header), file.keys) for file in files
        ]
        self._write_once(values_file(table), lambda draft: write_table_values(columns, rows, draft))
        for column in columns:
            column.values_path.unlink(missing_ok=True)

    def _write_once(self, name: str, write: Callable[[Path], None]) -> None:
        """Have a file written as a whole, unless it is there."""
        path = self._part / name
        if path.exists():
            return
        draft = path.with_suffix(".unfinished")
        write(draft)
        sync_files([draft])
        draft.rename(path)
        sync_folder(self._part)

    def _ids_path(self, name: str, column: int) -> Path:
        if self._columns[column].bag:
            return self._part / bag_files(name, self._columns[column].name)[0]
        return self._scratch / f"{name}.{column}.ids"

    def _write(self, pool: ThreadPoolExecutor, columns: tuple[ColumnMeta, ...], read: list[ReadSource]) -> None:
        """Write the sparse arrays that are not there yet."""
        single = [c for c, column in enumerate(columns) if not column.bag]
        rows = sum(source.rows for source in read)
        add = counter(rows)
        for source, done in zip(self._job.sources, read, strict=True):
            path = self._part / sparse_file(source.name)
            ids_paths = [self._scratch / f"{source.name}.{c}.ids" for c in single]

            def report(written: int, what: str = path.name) -> None:
                self._report(StageProgress("writing", what, add(written), rows))

            if path.exists() or not single:
                report(done.rows)
            else:
                write_sparse(ids_paths, done.rows, path, pool, self._workers, report)
            for ids_path in ids_paths:
                ids_path.unlink(missing_ok=True)


def check_same_columns(paths: Sequence[Path], readers: list[RawReader]) -> None:
    """Raise where the sources have different columns."""
    first = readers[0]
    for path, reader in zip(paths, readers, strict=True):
        if (reader.dense_names, reader.columns, reader.sequence) != (first.dense_names, first.columns, first.sequence):
            raise of_other_columns(path, reader, paths[0], first.columns, first.dense_names)
