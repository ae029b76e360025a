"""Where a new run's directory is made, and the lock that lets one process alone write it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from adaptive_rec.errors import UsageError
from adaptive_rec.live.life import LOCK, holder
from adaptive_rec.system.drafts import MOST_TRIES, is_at, is_draft, make_shared_folder, reserved
from adaptive_rec.system.durable import write_whole
from adaptive_rec.system.own_files import check_own, mode_at, open_own

RUNS = Path("runs")
"""Where runs without --out go, in the working directory."""
WRITTEN = (
    LOCK, ".made-here", "checkpoints", "config.toml", "events.jsonl", "log.txt", "metrics.jsonl", "report.html", "rows",
    "run.json", "serve.json", "sidecar.log", "sidecar.log.1", "summary.json", "tensorboard",
)  # fmt: skip
"""What a run writes in its directory: none of it may be a link. The directory itself may be reached through one."""
FOLDERS = ("checkpoints", "rows", "tensorboard")
"""Those of them that are folders."""
ROWS = ("pool-*", "rank-*", "rank-*/pool-*", "kept-*")
"""The folders in ``rows`` in which it writes and removes files."""


def sole_writer(out: Path) -> IO[str] | None:
    """Lock an existing run directory for this process until the returned file is closed. Raises UsageError where another process
    holds it, or where something in it cannot be written to."""
    if not out.is_dir():
        return None
    check_written(out)
    while True:
        lock = open(open_own(out / LOCK, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise UsageError(
                f"--out {out} must be of one process at a time, another one trains there", faq="out-in-use"
            ) from None
        if is_at(lock.fileno(), out / LOCK):
            return lock
        lock.close()  # `leave` has removed this file since it was opened


def check_written(out: Path) -> None:
    """Raise UsageError where something in an existing run directory cannot be what a run writes there."""
    check_own(out, WRITTEN)
    for pattern in ROWS:
        check_own(out, sorted(str(path.relative_to(out)) for path in out.glob(f"rows/{pattern}")))
    for path in (out / name for name in WRITTEN):
        kind = mode_at(path)
        if kind is not None and stat.S_ISDIR(kind) != (path.name in FOLDERS):
            rule, found = ("regular file", "folder") if stat.S_ISDIR(kind) else ("folder", "file")
            raise UsageError(f"{path} must be a {rule}, as it is written to, it is a {found}")


def is_held_by(out: Path, leader: int) -> bool:
    """Return whether a process of the session that `leader` leads holds a run directory's lock, or one that `leader` has started:
    each rank of several processes leads a session of its own."""
    from adaptive_rec.live.runtime_file import parent_process

    process = holder(out)
    try:
        return process is not None and leader in (os.getsid(process), parent_process(process))
    except OSError:  # it has just ended
        return False


def claim(out: Path) -> IO[str]:
    """Make and lock a new run's directory, so that no other process begins there. Raises UsageError where another one has."""
    lock, tries = None, 0
    while lock is None:
        tries += 1
        try:
            make_shared_folder(out)
            lock = sole_writer(out)
        except OSError as error:
            if error.errno != errno.ENOENT or tries == MOST_TRIES:  # a start that was refused may have just removed it
                raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    try:
        check_run_is_new(out)  # again: it may have come and ended since the first look
    except UsageError:
        lock.close()
        raise
    return lock


def leave(out: Path, lock: IO[str]) -> None:
    """Give up a new run's directory, which is removed with its rows where nothing else is in it."""
    shutil.rmtree(out / "rows", ignore_errors=True)
    with suppress(OSError):
        (out / LOCK).unlink()
        out.rmdir()
    lock.close()


def check_run_is_new(out: Path, option: str = "--out", hint: str = "; give another or add --resume") -> None:
    """Raise UsageError where a new run's directory holds something already; what a killed process left locked, or as a draft,
    does not count."""
    try:
        is_new = all(name == LOCK or is_draft(name) for name in os.listdir(out))
    except (FileNotFoundError, NotADirectoryError):
        is_new = not out.exists()
    if not is_new:
        raise UsageError(f"{option} must be a new directory, {out} exists{hint}", faq="out-exists")


def named_directory(policy: str) -> Path:
    """``runs/TIME-POLICY``."""
    return RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{policy.rpartition(':')[2]}"


@contextmanager
def new_directory(name: Path) -> Iterator[Path]:
    """Yield the path of a new directory, with a number behind its name where that is taken, by a run or by a start that has made
    nothing yet. It is this process's within the block. Raises UsageError."""
    numbered = (name if n == 1 else name.with_name(f"{name.name}-{n}") for n in range(1, 1 << 30))
    with ExitStack() as stack:
        try:
            path = stack.enter_context(reserved(numbered))
        except OSError as error:
            raise UsageError(f"--out {name} cannot be written: {error.strerror}") from None
        yield path


def replace_text(path: Path, text: str) -> None:
    """Replace a file, whole or not at all; one that has this text stays as it is."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    write_whole(path, text)
