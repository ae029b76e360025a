"""A process that answers each line it is sent with a line of JSON: what a contestant with a process of its own runs in."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *words], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=enter,
        )  # fmt: skip

    def look(self) -> None:
        """Called now and then while it works."""

    def answer(self) -> Any:
        """Return its next answer. Raises RuntimeError where it has ended."""
        out = self._process.stdout
        assert out is not None
        while not select.select([out], [], [], LOOK_SECONDS)[0]:
            self.look()
        self.look()
        line = out.readline()
        if not line:
            raise RuntimeError(f"a contestant must train to the end, its process ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
