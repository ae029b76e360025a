"""Where a new run's directory is made, and the lock that lets one process alone write it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from adaptive_rec.errors import UsageError
from adaptive_rec.system.durable import write_whole
from adaptive_rec.system.own_files import check_own, open_own

LOCK = ".lock"
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
            raise UsageError(f"--out {out} must be of one process at a time, another one trains there") from None
        if _is_at(lock, out / LOCK):
            return lock
        lock.close()  # `leave` has removed this file since it was opened


def check_written(out: Path) -> None:
    """Raise UsageError where something in an existing run directory cannot be what a run writes there."""
    check_own(out, WRITTEN)
    for pattern in ROWS:
        check_own(out, sorted(str(path.relative_to(out)) for path in out.glob(f"rows/{pattern}")))
    for path in (out / name for name in WRITTEN):
        if path.exists() and path.is_dir() != (path.name in FOLDERS):
            rule, found = ("regular file", "folder") if path.is_dir() else ("folder", "file")
            raise UsageError(f"{path} must be a {rule}, as it is written to, it is a {found}")


def _is_at(lock: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def claim(out: Path) -> IO[str]:
    """Make and lock a new run's directory, so that no other process begins there. Raises UsageError where another one has."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = sole_writer(out)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    assert lock is not None
    try:
        check_is_new(out)  # again: it may have come and ended since the first look
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


def check_is_new(out: Path, option: str = "--out", hint: str = "; give another or add --resume") -> None:
    """Raise UsageError where a new run's directory holds something already; what a killed process left locked does not count."""
    if out.exists() and (not out.is_dir() or any(path.name != LOCK for path in out.iterdir())):
        raise UsageError(f"{option} must be a new directory, {out} exists{hint}")


def new_directory(policy: str) -> Path:
    """``runs/TIME-POLICY``, with a number behind it where that is taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{policy.rpartition(':')[2]}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(path for path in numbered if not path.exists())


def replace_text(path: Path, text: str) -> None:
    """Replace a file, whole or not at all; one that has this text stays as it is."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    write_whole(path, text)
