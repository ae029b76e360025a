"""Contestants of a comparison of runs that are watched and not: processes that take turns, and what they use."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.system.openmp import wait_briefly
from benchmarks.common.command import ROOT

WARM_SECONDS, SETTLE_SECONDS = 8.0, 0.3
"""Before the first turn, and left out at the beginning of each."""


class Side:
    """One contestant: a run in a process of its own, its sidecar and its clients, where it has some."""

    def __init__(self, name: str, folder: Path, checkout: Path, arguments: argparse.Namespace) -> None:
        self.name, self.out = name, folder / name
        self._environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{ROOT}", "XDG_RUNTIME_DIR": str(folder)}
        wait_briefly(self._environment)
        serve = name != "alone"
        self.trainer = self._start("train.py", preset=arguments.preset, set=arguments.set, out=str(self.out), serve=serve)
        self.sidecar: int | None = None
        self.clients: subprocess.Popen[bytes] | None = None
        while not (self.out / "metrics.jsonl").exists():
            if self.trainer.poll() is not None:
                raise RuntimeError(f"{name} must train, its process ended with {self.trainer.returncode}")
            time.sleep(0.1)
        self.steps: Any = np.load(self.out / "ended_at.npy", mmap_mode="r")
        if serve:
            children = Path(f"/proc/{self.trainer.pid}/task/{self.trainer.pid}").parent.glob("*/children")
            self.sidecar = next(int(child) for each in children for child in each.read_text().split())
            self.about = folder / "adaptive-rec" / f"{self.trainer.pid}.json"
        if name not in ("alone", "served"):
            load = {key: getattr(arguments, key) for key in ("viewers", "hz", "requests")}
            self.clients = self._start("load.py", about=str(self.about), out=str(self.out / "load.json"), **load)
        time.sleep(WARM_SECONDS)
        self.tell(signal.SIGSTOP)
        self.turns: list[dict[str, float]] = []

    def _start(self, script: str, **values: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).with_name(script).resolve()), json.dumps(values)]
        return subprocess.Popen(command, cwd=self.out.parent, env=self._environment, start_new_session=True)

    def tell(self, number: int) -> None:
        for pid in self.pids().values():
            os.kill(pid, number)

    def pids(self) -> dict[str, int]:
        found = {"clients": self.clients and self.clients.pid, "sidecar": self.sidecar, "trainer": self.trainer.pid}
        return {name: pid for name, pid in found.items() if pid}

    def turn(self, seconds: float) -> None:
        """Let it run, and note steps and processor seconds."""
        self.tell(signal.SIGCONT)
        time.sleep(SETTLE_SECONDS)
        before, began = {name: processor_seconds(pid) for name, pid in self.pids().items()}, time.perf_counter()
        time.sleep(seconds)
        used, ended = {name: processor_seconds(pid) - before[name] for name, pid in self.pids().items()}, time.perf_counter()
        self.tell(signal.SIGSTOP)
        inside = self.steps[(self.steps > began) & (self.steps < ended)]
        found = {"seconds": ended - began, "steps": len(inside), "rate": (len(inside) - 1) / float(inside[-1] - inside[0])}
        self.turns.append({**found, **used})

    def end_clients(self) -> dict[str, Any]:
        """End the clients, if there are some, and return what they have noted."""
        if self.clients is None:
            return {}
        self.clients.send_signal(signal.SIGCONT)
        self.clients.terminate()
        self.clients.wait(60)
        self.clients = None
        return dict(json.loads((self.out / "load.json").read_text()))

    def close(self) -> None:
        self.tell(signal.SIGCONT)
        self.trainer.terminate()
        self.trainer.wait(60)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process's threads, by its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def private_mib(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return round((kib["Private_Clean"] + kib["Private_Dirty"]) / 1024, 2)
