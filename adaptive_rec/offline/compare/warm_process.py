"""A warm process, which makes each run of a comparison in a fork of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from adaptive_rec.config.trust import ENVIRONMENT_PREFIX
from adaptive_rec.live.sidecar_process import own_modules_only

POLL_SECONDS = 1.0
"""Time between two looks at a run; each look takes processor time from it."""


class WarmProcess:
    """Executes command lines of this package in forks of one process that has loaded all libraries.

    The process starts with the first command, and again where it was killed. It and its forks are one process group, so that they
    are killed together.
    """

    def __init__(self, lock: IO[bytes]) -> None:
        self._lock = lock
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(killed=kind is not None)

    def run(self, words: Sequence[str], log: Path, look: Callable[[], None]) -> int:
        """Execute one command line and return its exit code, negative for a signal. `look` is called while it is under way."""
        try:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # the process died meanwhile; its output ends, too
                print(json.dumps({"words": list(words), "log": str(log)}), file=process.stdin, flush=True)
            poll = select.poll()  # select.select takes no descriptor from 1,024 on
            poll.register(process.stdout)
            while not poll.poll(POLL_SECONDS * 1000):
                look()
            said = process.stdout.readline()
        except BaseException:
            self._end(killed=True)
            raise
        if said:
            return int(said)
        code = self._end(killed=True)  # its run, too, must not go on
        return code or 1

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adaptive_rec.cli.warm"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
                start_new_session=True,  # Ctrl-C reaches only the comparison, which then ends the run at once
                pass_fds=(self._lock.fileno(),),
            )
        return self._process

    def _end(self, killed: bool) -> int:
        """End the process, with its run where it is killed, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if killed:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            process.communicate()
        return process.wait()


def environment() -> dict[str, str]:
    """Return the environment without settings of this package, which are all in the file."""
    kept = own_modules_only().items()
    return {name: value for name, value in kept if not (name.startswith(ENVIRONMENT_PREFIX) and "__" in name)}
