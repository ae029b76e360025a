"""Where a new run's directory is made, and the lock that lets one process alone write it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from adaptive_rec.errors import UsageError
from adaptive_rec.system.durable import write_whole
from adaptive_rec.system.own_files import check_no_links, open_own

WRITTEN = (
    ".lock", "checkpoints", "config.toml", "events.jsonl", "log.txt", "metrics.jsonl", "report.html", "rows", "run.json",
    "serve.json", "sidecar.log", "sidecar.log.1", "summary.json", "tensorboard",
)  # fmt: skip
"""What a run writes in its directory: none of it may be a link. The directory itself may be reached through one."""


def sole_writer(out: Path) -> IO[str] | None:
    """Lock an existing run directory for this process until the returned file is closed. Raises UsageError where another process
    holds it, or where a link in it would lead what is written elsewhere."""
    if not out.is_dir():
        return None
    check_no_links(out, WRITTEN)
    lock = open(open_own(out / ".lock", os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UsageError(f"--out {out} must be of one process at a time, another one trains there") from None
    return lock


def check_is_new(out: Path, option: str = "--out", hint: str = "; give another or add --resume") -> None:
    """Raise UsageError where a new run's directory holds something already."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
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
