"""Where a run's directory is made, and its files that may be lost to nobody: one process writes them, each is replaced whole."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from adaptive_rec.errors import UsageError
from adaptive_rec.system.durable import write_whole


def sole_writer(out: Path) -> IO[str] | None:
    """Hold a run directory for this process as long as the answer is open. Raises UsageError where another one holds it."""
    if not out.is_dir():
        return None
    lock = open(out / ".lock", "a", encoding="utf-8")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UsageError(f"--out {out} must be of one process at a time, another one trains there") from None
    return lock


def check_is_new(out: Path) -> None:
    """Raise UsageError where a run's directory would be one that holds something already."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise UsageError(f"--out must be a new directory, {out} exists; give another or add --resume")


def new_directory(policy: str) -> Path:
    """``runs/TIME-POLICY``, with a number behind it where that is taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{policy.rpartition(':')[2]}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(path for path in numbered if not path.exists())


def replace_text(path: Path, text: str) -> None:
    """Write a file anew, whole or not at all."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    write_whole(path, text)
