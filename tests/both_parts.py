"""Runs the tests as CI does, in two parts side by side: ``python -m tests.both_parts``, which `make test` calls.

Tests of processes that talk to each other in real time (marker alone) run one by one. They wait more than they compute, so the
others run beside them, several at a time, at the lowest priority: they take what the first leave idle, and no more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ALONE = ("browser", "cli", "live", "modules", "service")
"""Folders with tests marked alone; the browser's come last, because the run that they show continues until the end."""

LOWEST = 19
PYTEST = [sys.executable, "-m", "pytest"]


def parallel_part() -> subprocess.Popen[bytes]:
    """The tests that need no time of their own."""
    workers = min(4, (os.cpu_count() or 1) + 1)  # one more than cores, as tests of commands wait for them
    options = ["-m", "not slow and not alone", "-n", str(workers)]
    part = subprocess.Popen([*PYTEST, *options], start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, part.pid, LOWEST)
    with suppress(OSError):  # where Linux groups processes by session, niceness counts within a session only
        Path(f"/proc/{part.pid}/autogroup").write_text(str(LOWEST))
    return part


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # both parts end with this process
    folders = [f"tests/{name}" for name in sorted(ALONE, key=lambda name: name == "browser")]
    with tempfile.TemporaryFile() as printed, parallel_part() as beside:
        try:
            alone = subprocess.run([*PYTEST, "-m", "alone and not slow", *folders], stdout=printed, check=False)
            others = beside.wait()
        finally:
            if beside.poll() is None:
                os.killpg(beside.pid, signal.SIGTERM)
        printed.seek(0)
        print(f"\nTests that run alone:\n{printed.read().decode(errors='replace')}")
    return alone.returncode or others


if __name__ == "__main__":
    sys.exit(main())
