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
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command import ROOT, facts_of_call, parser
from benchmarks.common.statistics import quartiles, ratio_of_medians
from benchmarks.common.turns import SEED
from benchmarks.watched.load import ROUTES, SCRAPE, Clients, Reader
from benchmarks.watched.sides import SETTLE_SECONDS, WARM_SECONDS, Side, private_mib, processor_seconds

REQUESTS_OF_A_ROUTE = 60
"""Requests of each route whose processor time is measured."""


def main() -> None:
    line = parser(__doc__, "benchmarks.watched")
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
    compare(line.parse_args())


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
    sidecar = side.sidecar
    assert sidecar is not None
    with suppress(OSError):
        for thread in Path(f"/proc/{sidecar}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        Path(f"/proc/{sidecar}/autogroup").write_text("0", encoding="ascii")

    async def used(wait: Awaitable[Any]) -> float:
        before = processor_seconds(sidecar)
        await wait
        return 1e3 * (processor_seconds(sidecar) - before)

    async def request(name: str, path: str) -> float:
        async def ask() -> None:
            for _ in range(REQUESTS_OF_A_ROUTE):
                await clients.answer(reader, name, path)
                await asyncio.sleep(0.02)

        reader = await clients.connect()
        await clients.answer(reader, name, path)
        return await used(ask()) / REQUESTS_OF_A_ROUTE

    async def go() -> dict[str, Any]:
        await asyncio.sleep(2)  # it reads on, and closes the connections that have ended
        nobody = await used(asyncio.sleep(arguments.seconds)) / arguments.seconds
        routes = {name: round(await request(name, path), 3) for name, path in [*ROUTES.items(), SCRAPE]}
        streams: dict[int, dict[str, float]] = {0: {"ms_per_second": round(nobody, 2), "mib": private_mib(sidecar)}}
        readers: list[Reader] = []
        for number in arguments.streams:
            readers += [await clients.stream(arguments.hz) for _ in range(number - len(readers))]
            await asyncio.sleep(1)
            before = [reader.messages for reader in readers]
            taken, got = await used(asyncio.sleep(arguments.seconds)), [reader.messages for reader in readers]
            messages = [(new - old) / arguments.seconds for new, old in zip(got, before, strict=True)]
            about = {"ms_per_second": round(taken / arguments.seconds, 2), "mib": private_mib(sidecar)}
            streams[number] = {**about, "messages": round(max(messages), 1), "refused": got.count(0)}
        return {"request_ms": routes, "streams": streams}

    side.tell(signal.SIGCONT)
    try:
        return asyncio.run(go())
    finally:
        side.tell(signal.SIGSTOP)


if __name__ == "__main__":
    main()
