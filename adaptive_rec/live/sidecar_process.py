"""Start and end of the sidecar's process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from adaptive_rec.system.own_files import open_own

END_SECONDS = 0.5
"""Time the sidecar gets to end before it is killed; nothing in it could be lost."""
FAILED_END_SECONDS = 20.0
"""Time of one that hung up before it served, also on a busy machine: its exit code says whether another one may serve."""
KILLED_SECONDS = 1.0
"""Longest wait for a killed sidecar. The system keeps a process that waits for a disk that does not answer."""


def start(link_fd: int, fds: Sequence[int], log: Path) -> subprocess.Popen[bytes]:
    """Start a sidecar at the other end of a link. It inherits the link and `fds`, and its output goes to `log`."""
    with open(open_own(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "adaptive_rec.service", "--link", str(link_fd)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(),
            pass_fds=[link_fd, *fds],
            start_new_session=True,  # Ctrl-C in a terminal is for the trainer
        )


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Kill a sidecar that does not end by itself within `seconds`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_SECONDS)


def _environment() -> dict[str, str]:
    """Environment of the sidecar: without secrets and systemd's variables, with one thread for NumPy."""
    left_out = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "ADAPTIVE_REC_TOKEN")
    kept = {name: value for name, value in own_modules_only().items() if name not in left_out}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def own_modules_only() -> dict[str, str]:
    """Environment for a Python process that runs this package and imports no module from the working directory. An empty place in
    PYTHONPATH would stand for it, too."""
    places = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(places)))}
