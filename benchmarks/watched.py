"""What it costs training to be watched, in steps and in processor seconds, and what memory streams take.

Runs of one configuration take turns of a few seconds, in an order drawn for each round: `alone` (not served), `served` (nobody
watches), and `watched`, with 4 streams at 10 Hz and 20 requests a second, nine routes in turn and /metrics once a second.
While one runs, the processes of the others are stopped, so all see the same machine. Clients speak HTTP over plain sockets, in
one process at the sidecar's niceness. `--before CHECKOUT` adds the watched run of another checkout, under the same clients. At
last, the sidecar's processor time is read for each route and for 1 to 64 streams, and its memory, beside the run that trains.

    python -m benchmarks.watched --rounds 15
    python -m benchmarks.watched --before ../before --only alone watched before
    python -m benchmarks.watched --before ../before --only watched before --parts    # in processor time, on a busy machine
    python -m benchmarks.watched --preset criteo_kaggle --set knobs.hot_budget_bytes=256MiB    # 33.8 M rows
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from adaptive_rec.system.openmp import wait_briefly
from benchmarks.common.command import ROOT, facts_of_call, parser
from benchmarks.common.statistics import quartiles, ratio_of_medians
from benchmarks.common.turns import SEED

WARM_SECONDS, SETTLE_SECONDS = 8.0, 0.3
"""Before the first turn, and left out at the beginning of each."""
MOST_STEPS = 1 << 20
REQUESTS_OF_A_ROUTE = 60
"""Requests of each route whose processor time is measured."""
ROUTES = {
    "status": "/api/v1/status",
    "stats": "/api/v1/stats",
    "history": "/api/v1/stats/history",
    "events": "/api/v1/events",
    "knobs": "/api/v1/knobs",
    "placement": "/api/v1/placement",
    "row": "/api/v1/placement/0/rows/0",
    "1000 hot rows": "/api/v1/placement/0?class=hot&sort=estimate&limit=1000",
    "1000 cold rows": "/api/v1/placement/0?class=cold&limit=1000",
}
SCRAPE, SCRAPED_EVERY = ("metrics", "/metrics"), 20
"""Each twentieth request."""
LOST = b""
"""Status of a request whose connection ended, as it was idle during a pause."""
ASKING = 4
"""Connections that requests come on, so that a slow answer does not hold up the next request."""


def main() -> None:
    line = parser(__doc__, "benchmarks.watched")
    line.add_argument("mode", nargs="?", choices=["compare", "train", "load"], default="compare", help=argparse.SUPPRESS)
    line.add_argument("--preset", default="synthetic")
    line.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    line.add_argument("--before", type=Path, help="folder of another checkout")
    line.add_argument("--only", nargs="+", default=["alone", "served", "watched"], metavar="NAME")
    line.add_argument("--rounds", type=int, default=15)
    line.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    line.add_argument("--viewers", type=int, default=4, help="open streams during turns")
    line.add_argument("--hz", type=float, default=10.0, help="messages a second of each")
    line.add_argument("--requests", type=float, default=20.0, help="requests a second")
    line.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16, 64], help="streams opened at the end, one by one")
    line.add_argument("--parts", action="store_true", help="measure only what requests and streams cost the sidecar")
    line.add_argument("--json", type=Path, help="file for all figures")
    line.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    line.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    line.add_argument("--about", type=Path, help=argparse.SUPPRESS)
    arguments = line.parse_args()
    {"compare": compare, "train": train, "load": load}[arguments.mode](arguments)


# The trainer ---------------------------------------------------------------------------------------------------------


def train(arguments: argparse.Namespace) -> None:
    """Train until a signal comes, and write down when each step ended."""
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.live.listen import ServeOptions
    from adaptive_rec.live.sidecar import Sidecar
    from adaptive_rec.run.training_run import TrainingRun

    endless = ["run.steps=0", "data.synthetic.samples=1000000000", "data.source=synthetic", "checkpoint.every_seconds=0"]
    training = TrainingRun(load_config(arguments.preset, {}, [*endless, *arguments.set]), arguments.out)
    runtime = training.runtime
    ended_at = np.lib.format.open_memmap(arguments.out / "ended_at.npy", "w+", np.float64, (MOST_STEPS,))
    pulse = runtime.publisher.pulse

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


# The clients ---------------------------------------------------------------------------------------------------------


class Reader(asyncio.Protocol):
    """A connection of a client: sends requests, counts messages, and ends a wait when an answer is whole."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[bytes] | None = None
        self.messages = self._missing = 0
        """Messages of a stream."""
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if self.whole is None:
            self.messages += data.count(b"event: snapshot")
            return
        if not self._missing:
            head, _, body = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            self._head, self._missing = head, int(length) - len(body)
        else:
            self._missing -= len(data)
        if not self._missing and not self.whole.done():
            self.whole.set_result(self._head.split(b" ", 2)[1])

    def connection_lost(self, exc: Exception | None) -> None:
        if self.whole is not None and not self.whole.done():
            self.whole.set_result(LOST)


class Clients:
    """Clients of one run in this process."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.address = urlsplit(about["url"])
        self._headers = f"Host: {self.address.netloc}\r\nAuthorization: Bearer {about['read_token']}\r\n\r\n"
        self.seconds: dict[str, list[float]] = defaultdict(list)

    async def connect(self) -> Reader:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Reader, self.address.hostname, self.address.port))[1]

    async def stream(self, hz: float) -> Reader:
        reader = await self.connect()
        self.send(reader, f"/api/v1/stream?hz={hz:g}")
        return reader

    def send(self, reader: Reader, path: str) -> None:
        reader.transport.write(f"GET {path} HTTP/1.1\r\n{self._headers}".encode())

    async def ask(self, first: int, per_second: float) -> None:
        """Send one request after the other until cancelled."""
        reader, due = await self.connect(), time.perf_counter() + first / per_second
        routes = itertools.islice(itertools.cycle(ROUTES.items()), first, None, ASKING)
        for number, route in zip(itertools.count(first, ASKING), routes, strict=False):
            name, path = SCRAPE if number % SCRAPED_EVERY == 0 else route
            due = max(due + ASKING / per_second, time.perf_counter())  # a turn's pause is not made up for
            await asyncio.sleep(due - time.perf_counter())
            if reader.transport.is_closing():
                reader = await self.connect()
            await self.answer(reader, name, path)

    async def answer(self, reader: Reader, name: str, path: str) -> None:
        """Send a request, wait for its answer, and note how long that took."""
        began = time.perf_counter()
        reader.whole = asyncio.get_running_loop().create_future()
        self.send(reader, path)
        status = await asyncio.wait_for(reader.whole, 60)
        if status != LOST:
            name = name if status == b"200" else f"{name}: {status.decode()}"
            self.seconds[name].append(time.perf_counter() - began)


def load(arguments: argparse.Namespace) -> None:
    """Read streams and send requests until a signal comes; then write seconds by route to a file."""
    from adaptive_rec.service.serve import give_way

    give_way()
    clients = Clients(json.loads(arguments.about.read_text()))

    async def go() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
        streams = [await clients.stream(arguments.hz) for _ in range(arguments.viewers)]
        asking = [
            asyncio.create_task(clients.ask(first, arguments.requests))
            for first in range(ASKING if arguments.requests else 0)
        ]
        await done.wait()
        for task in asking:
            task.cancel()
        about = {"seconds": clients.seconds, "messages": [reader.messages for reader in streams]}
        arguments.out.write_text(json.dumps(about))

    asyncio.run(go())


# The comparison ------------------------------------------------------------------------------------------------------


class Side:
    """One contestant: a run in a process of its own, its sidecar and its clients, where it has some."""

    def __init__(self, name: str, folder: Path, checkout: Path, arguments: argparse.Namespace) -> None:
        self.name, self.out = name, folder / name
        self._environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{ROOT}", "XDG_RUNTIME_DIR": str(folder)}
        wait_briefly(self._environment)
        words = ["--preset", arguments.preset, *(word for key in arguments.set for word in ("--set", key))]
        serve = [] if name == "alone" else ["--serve"]
        self.trainer = self._start("train", "--out", str(self.out), *serve, *words)
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
            load = [f"--{key}={getattr(arguments, key)}" for key in ("viewers", "hz", "requests")]
            self.clients = self._start("load", "--about", str(self.about), "--out", str(self.out / "load.json"), *load)
        time.sleep(WARM_SECONDS)
        self.tell(signal.SIGSTOP)
        self.turns: list[dict[str, float]] = []

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).resolve()), *words]
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


def compare(arguments: argparse.Namespace) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as named:
        sides = {}
        for name in arguments.only:
            checkout = arguments.before.resolve() if name == "before" else ROOT
            sides[name] = Side(name, Path(named), checkout, arguments)
        dice = random.Random(SEED)
        for _ in range(0 if arguments.parts else arguments.rounds):
            for name in dice.sample(list(sides), len(sides)):
                sides[name].turn(arguments.seconds)
        loads = {name: side.end_clients() for name, side in sides.items()}
        costs = {name: parts(side, arguments) for name, side in sides.items() if loads[name]}
        for side in sides.values():
            side.close()
    found = {
        "call": facts_of_call("benchmarks.watched", began),
        "sides": {name: figures(side.turns, sides["alone"].turns) for name, side in sides.items() if side.turns},
        "requests_per_second": {name: requests_per_second(sides[name], each) for name, each in loads.items() if each},
        "latencies_ms": {name: spread(each["seconds"]) for name, each in loads.items() if each},
        "sidecar": costs,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps({**found, "turns": {name: side.turns for name, side in sides.items()}}))
    print(json.dumps(found, indent=1))


def figures(turns: list[dict[str, float]], alone: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians over turns. `rate_ratio` is of the turns of one round; `processor_ratio` is the processor time of a step
    alone over that of a step of this run with its sidecar."""
    ratios = [mine["rate"] / other["rate"] for mine, other in zip(turns, alone, strict=True)]

    def per_step(turn: dict[str, float]) -> float:
        return (turn["trainer"] + turn.get("sidecar", 0.0)) / turn["steps"]

    own = {
        f"{name}_ms_per_second": round(float(np.median([1e3 * turn[name] / turn["seconds"] for turn in turns])), 2)
        for name in ("sidecar", "clients")
        if name in turns[0]
    }
    return {
        "rate": round(float(np.median([turn["rate"] for turn in turns])), 2),
        "rate_ratio": [round(each, 3) for each in (float(np.median(ratios)), *quartiles(ratios))],
        "trainer_ms_per_step": round(float(np.median([1e3 * turn["trainer"] / turn["steps"] for turn in turns])), 3),
        "processor_ratio": {
            name: round(value, 4) for name, value in ratio_of_medians(
                [per_step(turn) for turn in alone], [per_step(turn) for turn in turns]
            ).items()
        },
        **own,
    }  # fmt: skip


def requests_per_second(side: Side, load: dict[str, Any]) -> float:
    """Return about how many requests were answered in a second while the run was watched."""
    watched = sum(turn["seconds"] + SETTLE_SECONDS for turn in side.turns) + WARM_SECONDS
    return round(sum(map(len, load["seconds"].values())) / watched, 1)


def spread(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return quantiles of latencies, without those that a turn's end interrupted."""
    kept = {name: [value for value in values if value < 1.0] for name, values in seconds.items()}
    return {
        name: {"n": len(values), **{f"p{q}": round(1e3 * float(np.percentile(values, q)), 1) for q in (50, 99)}}
        for name, values in kept.items()
        if values
    }


def parts(side: Side, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the sidecar of a run that trains takes: processor milliseconds a second while nobody watches, for a request of
    each route, and a second for some numbers of streams, with its private memory meanwhile. Where we may, it gets a normal
    priority, so that it keeps the rate of its messages on a busy machine."""
    clients = Clients(json.loads(side.about.read_text()))
    assert side.sidecar is not None
    with suppress(OSError):
        for thread in Path(f"/proc/{side.sidecar}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        Path(f"/proc/{side.sidecar}/autogroup").write_text("0", encoding="ascii")

    async def used(wait: Awaitable[Any]) -> float:
        before = processor_seconds(side.sidecar)
        await wait
        return 1e3 * (processor_seconds(side.sidecar) - before)

    async def request(name: str, path: str) -> float:
        async def ask() -> None:
            for _ in range(REQUESTS_OF_A_ROUTE):
                await clients.answer(reader, name, path)
                await asyncio.sleep(0.02)

        reader = await clients.connect()
        await clients.answer(reader, name, path)
        return await used(ask()) / REQUESTS_OF_A_ROUTE

    async def go() -> dict[str, Any]:
        nobody = await used(asyncio.sleep(arguments.seconds)) / arguments.seconds
        routes = {name: round(await request(name, path), 3) for name, path in [*ROUTES.items(), SCRAPE]}
        streams, readers = {0: {"ms_per_second": round(nobody, 2), "mib": private_mib(side.sidecar)}}, []
        for number in arguments.streams:
            readers += [await clients.stream(arguments.hz) for _ in range(number - len(readers))]
            await asyncio.sleep(1)
            before = [reader.messages for reader in readers]
            taken, got = await used(asyncio.sleep(arguments.seconds)), [reader.messages for reader in readers]
            messages = [(new - old) / arguments.seconds for new, old in zip(got, before, strict=True)]
            about = {"ms_per_second": round(taken / arguments.seconds, 2), "mib": private_mib(side.sidecar)}
            streams[number] = {**about, "messages": round(max(messages), 1), "refused": got.count(0)}
        return {"request_ms": routes, "streams": streams}

    side.tell(signal.SIGCONT)
    try:
        return asyncio.run(go())
    finally:
        side.tell(signal.SIGSTOP)


def private_mib(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return round((kib["Private_Clean"] + kib["Private_Dirty"]) / 1024, 2)


if __name__ == "__main__":
    main()
