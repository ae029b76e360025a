"""A process that answers each line it is sent with a line of JSON: what a contestant with a process of its own runs in."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from adaptive_rec.system.openmp import wait_briefly
from benchmarks.common.command import ROOT

LOOK_SECONDS = 0.05
"""Between two looks at a process that has not answered yet."""


class Process:
    """A Python process whose OpenMP threads wait as under our command line. It answers once by itself when it is ready."""

    def __init__(self, words: list[str], folder: Path = ROOT, enter: Callable[[], None] | None = None) -> None:
        """`words`: arguments of the interpreter. `folder`: checkout that it imports from. `enter`: called in it at its start."""
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        wait_briefly(environment)
        self._start(["-W", "ignore", *words], environment, cwd=folder, stdout=subprocess.PIPE, preexec_fn=enter)
        assert self._process.stdout is not None
        self._answers: IO[str] = self._process.stdout

    def _start(self, words: list[str], environment: dict[str, str], **more: Any) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, *words], env=environment, text=True, stdin=subprocess.PIPE, **more
        )

    def look(self) -> None:
        """Called now and then while it works."""

    def answer(self, seconds: float = math.inf) -> Any:
        """Return its next answer. Raises RuntimeError where it has ended, TimeoutError where it takes longer."""
        until = time.perf_counter() + seconds
        while not select.select([self._answers], [], [], min(LOOK_SECONDS, max(0.0, until - time.perf_counter())))[0]:
            self.look()
            if time.perf_counter() > until:
                raise TimeoutError
        self.look()
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"a contestant must train to the end, its process has ended with {self._process.wait(30)}")
        return json.loads(line)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # why it ended is heard
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def ask(self, command: str) -> Any:
        self.say(command)
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
