"""Contestants in processes of their own, each in its memory group, and their turns."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from adaptive_rec.system.openmp import wait_briefly
from benchmarks.common.command import ROOT
from benchmarks.common.turns import SEED
from benchmarks.disk_tier.limits import MemoryGroup
from benchmarks.disk_tier.setup import IN_MEMORY, RIVALS, Setup

SPARE_BYTES = 160 << 20
"""Room above what a run of ours needs, for files that are being read or written."""

LOOK_SECONDS = 0.05
"""Time between two looks at the memory of a process."""

Say = Callable[[str], None]


class Process:
    """A contestant in its process."""

    def __init__(self, setup: Setup, limit_bytes: int = 0) -> None:
        self.setup = setup
        self.peak_bytes = 0
        """The most memory that it needed at one time, without its page cache."""
        self.limit_bytes = limit_bytes
        """The limit of its memory, page cache included; 0: none."""
        shutil.rmtree(setup.folder, ignore_errors=True)
        self.group = MemoryGroup(str(abs(hash(setup))))
        if limit_bytes:
            self.group.limit(limit_bytes)
        environment = dict(os.environ)
        wait_briefly(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.disk_tier.worker", setup.text()], cwd=ROOT, env=environment,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=self.group.enter,
        )  # fmt: skip

    def answer(self) -> Any:
        out = self._process.stdout
        assert out is not None
        while not select.select([out], [], [], LOOK_SECONDS)[0]:
            self.peak_bytes = max(self.peak_bytes, self.group.needed_bytes)
        self.peak_bytes = max(self.peak_bytes, self.group.needed_bytes)
        line = out.readline()
        if not line:
            raise SystemExit(f"bench: {self.setup.name} must train to the end, it ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self.answer()

    def limit(self, size_bytes: int) -> None:
        """Limit its memory, and drop what it has read and written from the page cache."""
        self.ask("settle")
        self.limit_bytes = size_bytes
        self.group.limit(size_bytes)
        self.group.free_cache()

    def turn(self, steps: int) -> dict[str, Any]:
        """Return the figures of some steps. What they have changed is on the disk then, outside of their clock."""
        found: dict[str, Any] = self.ask(f"turn {steps}")
        self.ask("settle")
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.group.remove()
        shutil.rmtree(self.setup.folder, ignore_errors=True)


@contextmanager
def started(setups: list[Setup], warm: dict[str, int], say: Say) -> Iterator[dict[str, Process]]:
    """Start contestants one after the other: build, limit, warm up. The limit of a run of ours is what it needs while it warms
    up, with the slots that are still empty; rivals have that of the first one."""
    processes: dict[str, Process] = {}
    limit = 0
    try:
        for setup in setups:
            process = processes[setup.name] = Process(setup)
            process.answer()
            if setup.name in RIVALS:
                process.limit(limit)
            found = process.turn(warm[setup.name])
            if setup.name not in (IN_MEMORY, *RIVALS):
                process.limit(process.peak_bytes + process.ask("facts")["empty_bytes"] + SPARE_BYTES)
                limit = limit or process.limit_bytes
            memory = f"{process.peak_bytes / 2**20:.0f} MiB needed, limit {process.limit_bytes / 2**20:.0f}"
            say(f"  {setup.name}: warm after {warm[setup.name]} steps of {1e3 * found['seconds']:.0f} ms; {memory}")
        yield processes
    finally:
        for process in processes.values():
            process.close()


def take_turns(
    processes: dict[str, Process], steps: dict[str, int], rounds: int, say: Say
) -> dict[str, list[dict[str, Any]]]:
    """Have contestants take turns, in an order drawn for each round. Returns the figures of each one's turns."""
    dice, names = np.random.default_rng(SEED), list(processes)
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for place in dice.permutation(len(names)).tolist():
            turns[names[place]].append(processes[names[place]].turn(steps[names[place]]))
        last = ", ".join(f"{name} {1e3 * found[-1]['seconds']:.0f}" for name, found in turns.items())
        say(f"  round {number + 1} of {rounds}: ms: {last}")
    return turns
