"""Ranks are killed at random, with kill -9, in runs of several processes; each run must end equal, bit by bit, to one unbroken.

    python -m benchmarks.kills FOLDER [--kills 100] [--processes 2] [--seed 1]      about 25 seconds a kill

Each trial is `adaptive-rec train --processes N --restarts 3` with a checkpoint every 25 steps. After a time drawn from the length
of the unbroken run, start-up and checkpoints included, one rank is killed. At the end tables, optimizer state and dense part of
the last checkpoint are compared. Trials are numbered; their outcomes stand in FOLDER/trials.jsonl, and those that are there are
not run again. Ends with 1 if a trial hung, failed or differed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command import parser

ADAPTIVE_REC = [sys.executable, "-m", "adaptive_rec"]
SETTINGS = [
    "--no-serve", "--steps=150", "--set=checkpoint.every_steps=25", "--set=run.precision=float64",
    "--set=eval.max_samples=500",
]  # fmt: skip
LONGEST_SECONDS = 180
"""A trial that takes longer hangs."""


def train(out: Path, processes: int, *more: str) -> subprocess.Popen[str]:
    shutil.rmtree(out, ignore_errors=True)
    words = [*ADAPTIVE_REC, "train", "tiny", f"--processes={processes}", f"--out={out}", *SETTINGS, *more]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ranks_of(out: Path) -> list[int]:
    """Return the process numbers of a run's ranks."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            words, variables = (Path("/proc", number, name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if f"--out={out}".encode() in words and b"LOCAL_RANK=" in variables:
            found.append(int(number))
    return sorted(found)


def differences(one: Path, other: Path) -> list[str]:
    """Return the lines of `checkpoint diff` about tables and the dense part that differ."""
    words = [*ADAPTIVE_REC, "checkpoint", "diff", str(one), str(other)]
    found = subprocess.run(words, capture_output=True, text=True)
    if found.returncode not in (0, 1):
        return [found.stderr.strip()]
    return [line for line in found.stdout.splitlines() if line.startswith(("C", "dense"))]


def trial(number: int, folder: Path, seconds: float, processes: int, seed: int) -> dict[str, Any]:
    """Run once and kill a rank. `seconds`: length of the unbroken run."""
    random = np.random.default_rng([seed, number])
    out = folder / "broken"
    run = train(out, processes, "--restarts=3")
    began, wait = time.monotonic(), float(random.uniform(0, seconds))
    while (not ranks_of(out) or time.monotonic() < began + wait) and run.poll() is None:
        time.sleep(0.02)
    alive = ranks_of(out)
    killed = int(random.choice(alive)) if alive else None
    if killed is not None:
        os.kill(killed, signal.SIGKILL)
    try:
        _, said = run.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        for one in (*ranks_of(out), run.pid):
            os.kill(one, signal.SIGKILL)
        return {"trial": number, "after_seconds": wait, "killed": killed is not None, "outcome": "hung"}
    last = said.strip().splitlines()[-1:]
    wrong = differences(folder / "unbroken", out) if run.returncode == 0 else last
    return {
        "trial": number, "after_seconds": round(wait, 2), "killed": killed is not None, "code": run.returncode,
        "restarted": any("again" in line for line in said.splitlines()), "outcome": wrong or "equal",
    }  # fmt: skip


def main() -> None:
    parse = parser(__doc__, "benchmarks.kills")
    parse.add_argument("folder", type=Path)
    parse.add_argument("--kills", type=int, default=100)
    parse.add_argument("--processes", type=int, default=2)
    parse.add_argument("--seed", type=int, default=1)
    arguments = parse.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    _, said = (unbroken := train(folder / "unbroken", arguments.processes)).communicate()
    seconds = time.monotonic() - began
    if unbroken.returncode:
        raise SystemExit(f"error: the unbroken run must end with 0, got {unbroken.returncode}: {said}")
    log = folder / "trials.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    while sum(one["killed"] for one in done) < arguments.kills:
        done.append(trial(len(done), folder, seconds, arguments.processes, arguments.seed))
        with log.open("a") as file:
            print(json.dumps(done[-1]), file=file)
        print(json.dumps(done[-1]), flush=True)
    killed = [one for one in done if one["killed"]]
    equal = sum(one["outcome"] == "equal" for one in killed)
    print(f"seed {arguments.seed}: {equal} of {len(killed)} runs with a killed rank ended equal to the unbroken run")
    raise SystemExit(equal < len(killed))


if __name__ == "__main__":
    main()
