"""The job of one `data prepare`: the request, and the checks that a repeated command continues the same job."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from adaptive_rec.config.faults import describe_faults
from adaptive_rec.data.prepare.formats import array_name, check_source, find_format, history_steps
from adaptive_rec.data.prepare.meta import Job, SourceFile
from adaptive_rec.data.prepare.recipe import TABULAR, has_times, rows_are_lines, rows_version
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.system.drafts import is_at, make_shared_folder

LONGEST_NAME = 100
"""Characters of the name of a source's arrays that are kept of a path."""
KEYS_VERSION = 2
"""Of files with a schema: texts have keys by XXH64, of version 1 by BLAKE2b. Of logs with a clock: what was read includes
times."""
LINES_VERSION = 3
"""Of logs whose lines are rows: the keys of ids are kept."""


@dataclass(frozen=True)
class Request:
    """The arguments of `adaptive-rec data prepare`."""

    sources: tuple[Path, ...]
    out: Path
    format: str = "auto"
    schema: Schema | None = None
    """The schema of a CSV, TSV or Parquet file."""
    on_bad_row: Literal["error", "skip"] = "error"
    min_count: int | None = None
    """None takes that of the schema, or 1."""
    seed: int = 1
    history_steps: int | None = None
    """Longest history, for formats that have them; None takes the default."""


def make_job(request: Request) -> Job:
    """Return the job of a request, with the sources as they are now."""
    for path in request.sources:
        check_source(path)
    format_ = (
        find_format(request.sources[0], request.schema is not None) if request.format == "auto" else request.format
    )
    sources = []
    of_folder = names_in_folder(request.sources) if format_ in TABULAR else None
    for number, path in enumerate(request.sources):
        status = path.stat()
        sources.append(
            SourceFile(
                name=of_folder[number] if of_folder else array_name(path),
                path=str(path.resolve()),
                size_bytes=status.st_size,
                modified_ns=status.st_mtime_ns,
            )
        )
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"sources must have different names, two make arrays named {twice}")
    known = request.schema
    schema = b"" if known is None else known.model_dump_json(exclude=None if known.time.column else {"time"}).encode()
    try:
        return Job(
            format=format_,
            schema_sha256=hashlib.sha256(schema).hexdigest() if schema else "",
            on_bad_row=request.on_bad_row,
            min_count=_min_count(request),
            seed=request.seed,
            history_steps=history_steps(format_, request.history_steps),
            rows_version=rows_version(format_),
            keys_version=LINES_VERSION if rows_are_lines(format_) else KEYS_VERSION if schema or has_times(format_) else 1,
            sources=tuple(sources),
        )
    except ValidationError as error:
        raise UsageError(describe_faults(error)) from None


def names_in_folder(paths: Sequence[Path]) -> list[str] | None:
    """Return names for the arrays of files in subfolders, by their paths in the folder, where the files' own names are not
    different; else None."""
    names = [array_name(path) for path in paths]
    absolute = [Path(os.path.abspath(path)) for path in paths]
    if len(set(names)) == len(names) or len({path.parent for path in absolute}) == 1:
        return None
    folder = os.path.commonpath(absolute)
    within = [array_name(Path(".".join(path.relative_to(folder).parts))) for path in absolute]
    return [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{name_digest(name)}" for name in within]


def name_digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:8]


def _min_count(request: Request) -> int:
    if request.min_count is not None:
        return request.min_count
    return request.schema.min_count if request.schema else 1


def is_stale(job: Job, earlier: Job) -> bool:
    """Whether an interrupted run read the same files before they changed, or by another schema: its work is of no use."""
    same_files = [source.path for source in job.sources] == [source.path for source in earlier.sources]
    return same_files and (job.sources, job.schema_sha256) != (earlier.sources, earlier.schema_sha256)


def check_same_job(job: Job, earlier: Job, part: Path) -> None:
    """Raise where an interrupted run had another job: its files must not be mixed with those of this one."""
    if job == earlier:
        return
    if [s.path for s in job.sources] != [s.path for s in earlier.sources]:
        what = "other sources"
    elif job.sources != earlier.sources:
        changed = next(a.path for a, b in zip(job.sources, earlier.sources, strict=True) if a != b)
        what = f"{changed} as it was before it changed"
    else:
        name = next(name for name in Job.model_fields if getattr(job, name) != getattr(earlier, name))
        what = f"{name} {getattr(earlier, name)!r} instead of {getattr(job, name)!r}"
    raise UsageError(f"{part} is left over from an interrupted run with {what}; remove it to start again")


@contextmanager
def as_user_errors(part: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that say what the user can do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"the disk of {part} is full; the work so far is kept there: free some space and run the same command again",
                faq="disk-full",
            ) from None
        raise DataError(f"{error.filename or part} cannot be written: {error.strerror}") from None


@contextmanager
def only_one(part: Path, on_wait: Callable[[], object] | None = None) -> Iterator[None]:
    """Make the folder, unless it is there, and lock it against other processes; the lock ends with the process. `on_wait`: called
    before another process is waited for; without it, that is refused. Raises UsageError."""
    folder = None
    while folder is None:
        make_shared_folder(part)
        folder = _locked(part, on_wait)
    try:
        yield
    finally:
        os.close(folder)


def _locked(part: Path, on_wait: Callable[[], object] | None) -> int | None:
    """Return the folder, locked; None where it has been renamed or removed meanwhile."""
    try:
        folder = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is None:
                raise UsageError(f"{part} is being prepared by another process") from None
            on_wait()
            fcntl.flock(folder, fcntl.LOCK_EX)
        if is_at(folder, part):
            return folder
    except BaseException:
        os.close(folder)
        raise
    os.close(folder)
    return None
