"""What it costs training to be watched, and how soon a watcher is answered.

Two runs of the same configuration take turns, a few seconds each: one alone (`--no-serve`), one with its sidecar and clients:
4 streams at 10 Hz and 20 requests a second, the routes in turn and a scrape of /metrics each second, the clients at the sidecar's
niceness. While one runs the other's processes are stopped, so both see the same machine. Steps that a turn interrupts are left
out. `--second alone` compares a run with its like: what of a difference is the machine's.

    python -m benchmarks.sidecar --preset synthetic --turns 20
    python -m benchmarks.sidecar --preset criteo_kaggle --set knobs.hot_budget_bytes=256MiB --turns 10    # 33.8 M rows
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command import ROOT, parser

WARM_SECONDS = 15.0
TURN_SECONDS = 4.0
EVERY_SECONDS = 0.05
"""Between two requests."""
MOST_STEPS = 1 << 20


# The trainer ---------------------------------------------------------------------------------------------------------


def train(arguments: argparse.Namespace) -> None:
    """Train until told to stop, noting when each step ended."""
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.live.listen import ServeOptions
    from adaptive_rec.live.sidecar import Sidecar
    from adaptive_rec.run.training_run import TrainingRun

    endless = ["run.steps=0", "data.synthetic.samples=1000000000", "data.source=synthetic"]
    training = TrainingRun(load_config(arguments.preset, {}, [*endless, *arguments.set]), arguments.out)
    runtime = training.runtime
    ended_at, pulse = np.zeros(MOST_STEPS), runtime.publisher.pulse

    def note() -> None:
        ended_at[runtime.step_number] = time.perf_counter()
        pulse()

    runtime.publisher.pulse = note  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: runtime.state.stop())
    if arguments.serve:
        with Sidecar(ServeOptions(port=0), training.out, training.runtime, print):
            for _ in training.events():
                pass
    else:
        for _ in training.events():
            pass
    np.save(arguments.out / "ended_at.npy", ended_at[1 : runtime.step_number + 1])


# The clients ---------------------------------------------------------------------------------------------------------


def load(arguments: argparse.Namespace) -> None:
    """Streams, requests and scrapes until told to stop; latencies in seconds by kind of request go to a file."""
    import httpx2

    from adaptive_rec.service.serve import give_way

    give_way()
    about = json.loads(Path(arguments.runtime_file).read_text())
    headers = {"Authorization": f"Bearer {about['read_token']}"}

    def client() -> httpx2.Client:
        return httpx2.Client(base_url=about["url"], headers=headers, timeout=30, trust_env=False)

    def stream() -> None:
        with client() as own, own.stream("GET", "/api/v1/stream?hz=10", timeout=None) as response:
            for _ in response.iter_bytes():
                pass

    seen: dict[str, list[float]] = {}
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    with client() as own:
        tables = [entry["table"] for entry in own.get("/api/v1/placement").json()["tables"]]
        for _ in range(4):
            threading.Thread(target=stream, daemon=True).start()
        dice, number, due = random.Random(1), 0, time.perf_counter()
        while not done.wait(max(0.0, due - time.perf_counter())):
            due = max(due + EVERY_SECONDS, time.perf_counter() - 1)  # a turn's pause is not made up for
            table = dice.choice(tables)
            requests = [
                ("status", "/api/v1/status"),
                ("stats", "/api/v1/stats"),
                ("history", "/api/v1/stats/history"),
                ("events", "/api/v1/events"),
                ("knobs", "/api/v1/knobs"),
                ("placement", "/api/v1/placement"),
                ("row", f"/api/v1/placement/{table}/rows/0"),
                ("page of 1000, hot by estimate", f"/api/v1/placement/{table}?class=hot&sort=estimate&limit=1000"),
                ("page of 1000, cold", f"/api/v1/placement/{table}?class=cold&limit=1000"),
            ]
            name, path = requests[number % len(requests)]
            if number % 20 == 0:
                name, path = "metrics", "/metrics"
            began = time.perf_counter()
            status = own.get(path).status_code
            seen.setdefault(name if status == 200 else f"{name}: {status}", []).append(time.perf_counter() - began)
            number += 1
    Path(arguments.out).write_text(json.dumps(seen))
    os._exit(0)


# The comparison ------------------------------------------------------------------------------------------------------


def start(*words: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.sidecar", *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(environment or {})}, start_new_session=True)


def family(process: subprocess.Popen[bytes]) -> list[int]:
    """A process and its children; the sidecar leads a session of its own."""
    found = [process.pid]
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def tell(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        for pid in family(process):
            os.kill(pid, number)


def warm_up(run: Path) -> None:
    """Until the run has trained for a while."""
    while not (run / "metrics.jsonl").exists():
        time.sleep(0.1)
    time.sleep(WARM_SECONDS)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        words = ["--preset", arguments.preset, *(word for key in arguments.set for word in ("--set", key))]
        quiet = {"XDG_RUNTIME_DIR": named}
        alone = start("train", "--out", str(folder / "alone"), *words, environment=quiet)
        warm_up(folder / "alone")
        tell([alone], signal.SIGSTOP)
        serve = [] if arguments.second == "alone" else ["--serve"]
        watched = start("train", *serve, "--out", str(folder / "watched"), *words, environment=quiet)
        warm_up(folder / "watched")
        sides = {"alone": [alone], "watched": [watched]}
        if arguments.second == "watched":
            runtime_file = str(folder / "adaptive-rec" / f"{watched.pid}.json")
            clients = start("load", "--runtime-file", runtime_file, "--out", str(folder / "latencies.json"))
            sides["watched"].insert(0, clients)
            time.sleep(2)
        tell(sides["watched"], signal.SIGSTOP)
        turns: dict[str, list[tuple[float, float]]] = {"alone": [], "watched": []}
        for turn in range(arguments.turns):
            for side in ("alone", "watched") if turn % 2 else ("watched", "alone"):
                tell(sides[side], signal.SIGCONT)
                began = time.perf_counter()
                time.sleep(TURN_SECONDS)
                turns[side].append((began, time.perf_counter()))
                tell(sides[side], signal.SIGSTOP)
        for side in ("watched", "alone"):
            tell(sides[side], signal.SIGCONT)
            for process in sides[side]:
                process.terminate()
                process.wait(60)
        found = folder / "latencies.json"
        latencies = json.loads(found.read_text()) if found.exists() else {}
        steps = {side: np.load(folder / side / "ended_at.npy") for side in turns}
    return {"steps": summarize(steps, turns), "latencies": {name: spread(values) for name, values in latencies.items()}}


def summarize(steps: dict[str, Any], turns: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Steps a second of each turn, durations of all steps that lie within one, and the ratios of neighbouring turns."""
    rate: dict[str, list[float]] = {"alone": [], "watched": []}
    durations: dict[str, list[float]] = {"alone": [], "watched": []}
    for side, spans in turns.items():
        for began, ended in spans:
            inside = steps[side][(steps[side] > began) & (steps[side] < ended)]
            each = np.diff(inside)
            rate[side].append(len(each) / float(each.sum()))
            durations[side].extend(each.tolist())
    ratios = [mine / other for mine, other in zip(rate["watched"], rate["alone"], strict=True)]
    p99 = {side: 1e3 * float(np.percentile(values, 99)) for side, values in durations.items()}
    return {
        "rate_alone": float(np.median(rate["alone"])),
        "rate_watched": float(np.median(rate["watched"])),
        "ratio": float(np.median(ratios)),
        "ratio_quartiles": [float(np.percentile(ratios, q)) for q in (25, 75)],
        "p50_ms": {side: 1e3 * float(np.median(values)) for side, values in durations.items()},
        "p99_ms": p99,
        "p99_ratio": p99["watched"] / p99["alone"],
        "steps": {side: len(values) for side, values in durations.items()},
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Without those that a turn's end interrupted."""
    kept = [value for value in seconds if value < TURN_SECONDS / 2]
    return {
        "requests": len(kept),
        **{f"p{q}_ms": round(1e3 * float(np.percentile(kept, q)), 2) for q in (50, 90, 99)},
        "max_ms": round(1e3 * max(kept), 2),
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument(
        "mode", nargs="?", choices=["compare", "train", "load"], default="compare", help=argparse.SUPPRESS
    )
    line.add_argument("--preset", default="synthetic")
    line.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    line.add_argument("--turns", type=int, default=20)
    line.add_argument(
        "--second", choices=["alone", "served", "watched"], default="watched", help="what the second run is"
    )
    line.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    line.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    line.add_argument("--runtime-file", help=argparse.SUPPRESS)
    arguments = line.parse_args()
    if arguments.mode == "compare":
        print(json.dumps(compare(arguments), indent=1))
    else:
        {"train": train, "load": load}[arguments.mode](arguments)


if __name__ == "__main__":
    main()
