"""The sidecar's niceness: what training loses to clients, and how soon a client is answered on a busy machine.

One run trains. Its sidecar's niceness and the clients change from turn to turn, in an order drawn anew for each round, so all
see the same machine. First `one` (a request every 60 ms) beside busy processes of normal niceness, each in a session of its
own. Then without them: `none` (no clients), `one`, `usual` (4 streams at 10 Hz and 20 requests a second, the routes in
turn), `many` (64 connections with 3 requests a second each, nearly the rate limit). Needs root, which may lower a niceness.

    python -m benchmarks.niceness --rounds 10 --busy 8
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.common.command import facts_of_call, parser
from benchmarks.sidecar import family, start, warm_up

TURN_SECONDS = 4.0
SETTLE_SECONDS = 0.3
"""Left out at the beginning of a turn."""
Turn = tuple[int, str]
"""A niceness, and the clients."""
PATHS = ["status", "stats", "stats/history", "events", "knobs", "placement", "placement/{}/rows/0", "placement/{}?limit=1000"]
EVERY_SECONDS = {"one": 0.06, "usual": 0.05, "many": 1 / 3}
CONNECTIONS = {"none": 0, "one": 1, "usual": 1, "many": 64}


class Clients:
    """Clients of a run in this process; latencies of their requests in seconds."""

    def __init__(self, about: dict[str, Any], table: str) -> None:
        self._address = urlsplit(about["url"])
        self._token, self._table = about["read_token"], table
        self.seconds: list[float] = []
        self.refused = 0

    async def ask(self, kind: str, turn_seconds: float) -> None:
        """Send the requests of a turn. One that is not answered at its end counts with its age."""
        paths = [path.format(self._table) for path in PATHS] if kind == "usual" else ["status"]
        tasks = [asyncio.create_task(self._one(paths, EVERY_SECONDS[kind])) for _ in range(CONNECTIONS[kind])]
        tasks += [asyncio.create_task(self._stream()) for _ in range(4 if kind == "usual" else 0)]
        await asyncio.sleep(turn_seconds)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self.refused += 1

    async def _open(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port, limit=1 << 24)
        self._send(writer, path)
        return reader, writer

    def _send(self, writer: asyncio.StreamWriter, path: str) -> None:
        head = f"GET /api/v1/{path} HTTP/1.1\r\nHost: {self._address.netloc}\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        writer.write(head.encode())

    async def _stream(self) -> None:
        reader, writer = await self._open("stream?hz=10")
        try:
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()

    async def _one(self, paths: list[str], every_seconds: float) -> None:
        await asyncio.sleep(random.random() * every_seconds)
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port, limit=1 << 24)
        number, due = 0, time.perf_counter()
        try:
            while True:
                began = time.perf_counter()
                try:
                    self._send(writer, paths[number % len(paths)])
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                    self.refused += b" 200 " not in head.split(b"\r\n")[0]
                finally:
                    self.seconds.append(time.perf_counter() - began)
                number, due = number + 1, max(due + every_seconds, time.perf_counter())
                await asyncio.sleep(due - time.perf_counter())
        finally:
            writer.close()


def renice(pid: int, niceness: int) -> None:
    """Give a sidecar another niceness, and its session too."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


class Study:
    """Turns of one run under way, and what was measured in each."""

    def __init__(self, sidecar: int, about: dict[str, Any], table: str, seed: int) -> None:
        self._sidecar, self._about, self._table = sidecar, about, table
        self._dice = random.Random(seed)
        self.spans: dict[Turn, list[tuple[float, float]]] = defaultdict(list)
        self.seconds: dict[Turn, list[float]] = defaultdict(list)
        self.refused: dict[Turn, int] = defaultdict(int)
        self.load: dict[Turn, list[float]] = defaultdict(list)

    def round(self, turns: list[Turn], suffix: str = "") -> None:
        """Take each turn once."""
        for niceness, kind in self._dice.sample(turns, len(turns)):
            turn = niceness, kind + suffix
            renice(self._sidecar, niceness)
            clients = Clients(self._about, self._table)
            began = time.perf_counter()
            asyncio.run(clients.ask(kind, TURN_SECONDS))
            self.spans[turn].append((began + SETTLE_SECONDS, time.perf_counter()))
            self.seconds[turn] += clients.seconds
            self.refused[turn] += clients.refused
            self.load[turn].append(os.getloadavg()[0])

    def rows(self, ended_at: np.ndarray[Any, np.dtype[np.float64]]) -> list[dict[str, Any]]:
        """Return a row for each kind of turn. Ratios are medians over the rounds, of neighbours in time."""
        rates = {turn: [rate(ended_at, span) for span in spans] for turn, spans in self.spans.items()}
        rows = []
        for turn, mine in sorted(rates.items(), key=lambda item: (item[0][1], -item[0][0])):
            niceness, kind = turn
            row: dict[str, Any] = {"clients": kind, "nice": niceness, "steps_per_second": round(float(np.median(mine)), 2)}
            for name, other in (("of_none", (19, "none")), ("of_nice_19", (19, kind))):
                if len(rates.get(other, [])) == len(mine) and not (name == "of_none" and "beside" in kind):
                    ratios = [a / b for a, b in zip(mine, rates[other], strict=True)]
                    row[name] = [round(float(np.percentile(ratios, q)), 3) for q in (50, 25, 75)]
            if self.seconds[turn]:
                found = np.percentile(self.seconds[turn], (50, 90, 99))
                row |= {f"p{q}_ms": round(1e3 * float(value), 1) for q, value in zip((50, 90, 99), found, strict=True)}
                row |= {"requests": len(self.seconds[turn]), "refused": self.refused[turn]}
            rows.append(row | {"load": round(float(np.median(self.load[turn])), 1)})
        return rows


def rate(ended_at: np.ndarray[Any, np.dtype[np.float64]], span: tuple[float, float]) -> float:
    """Steps a second in a span; of a step that lies partly in it, that part counts."""
    begun, ended = np.interp(span, ended_at, np.arange(len(ended_at)))
    return float(ended - begun) / (span[1] - span[0])


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def study(arguments: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        words = ["--preset", arguments.preset, *(word for key in arguments.set for word in ("--set", key))]
        run = start("train", "--serve", "--out", str(folder / "run"), *words, environment={"XDG_RUNTIME_DIR": named})
        busy: list[subprocess.Popen[bytes]] = []
        try:
            warm_up(folder / "run")
            about = json.loads((folder / "adaptive-rec" / f"{run.pid}.json").read_text())
            table = json.loads((folder / "run" / "run.json").read_text())["tables"][0]["name"]
            sidecar = next(pid for pid in family(run) if b"adaptive_rec.service" in Path(f"/proc/{pid}/cmdline").read_bytes())
            done = Study(sidecar, about, table, arguments.seed)
            command = [sys.executable, "-c", "while True: pass"]
            busy = [subprocess.Popen(command, start_new_session=True) for _ in range(arguments.busy)]
            for _ in range(arguments.busy_rounds):
                done.round([(nice, "one") for nice in arguments.busy_nice], f" beside {arguments.busy} busy")
            end(busy)
            kinds = [kind for kind in arguments.clients if kind != "none"]
            for _ in range(arguments.rounds):
                done.round([(19, "none"), *((nice, kind) for nice in arguments.nice for kind in kinds)])
        finally:
            end(busy)
            run.send_signal(signal.SIGTERM)
            run.wait(60)
        return done.rows(np.load(folder / "run" / "ended_at.npy"))


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--preset", default="synthetic")
    line.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    line.add_argument("--rounds", type=int, default=10)
    line.add_argument("--busy", type=int, default=8, help="busy processes")
    line.add_argument("--busy-rounds", type=int, default=10)
    line.add_argument("--busy-nice", type=int, nargs="+", default=[19, 15, 12, 10, 7, 5, 0])
    line.add_argument("--nice", type=int, nargs="+", default=[19, 10, 5, 0])
    line.add_argument("--clients", nargs="+", choices=[*CONNECTIONS], default=[*CONNECTIONS])
    line.add_argument("--seed", type=int, default=1)
    line.add_argument("--json", type=Path, help="write the rows here")
    arguments, began = line.parse_args(), time.perf_counter()
    rows = study(arguments)
    for row in rows:
        print(json.dumps(row))
    if arguments.json:
        facts = facts_of_call("benchmarks.niceness", began)
        arguments.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
