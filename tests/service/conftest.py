"""A run that does not train: its files, its shared state and its end of the link, for tests to turn as they like."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h11
import httpx2 as httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.live.client_commands import answer_message
from adaptive_rec.live.knob_patch import KnobPatches
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.shared_state import StateReader
from adaptive_rec.live.state_writer import StateWriter, Tier
from adaptive_rec.service.app import create_app
from adaptive_rec.service.hello import Hello
from adaptive_rec.service.run_view import FinishedRun, LiveRun, RunView
from adaptive_rec.service.security import RequestLimits, Security
from adaptive_rec.service.trainer_link import KnobState, TrainerLink
from adaptive_rec.system.process_use import ProcessMeter
from tests.kernels.reference.sketch import sketch_add

CONTROL, READ = "c" * 43, "r" * 43
POLICIES = [
    {"name": "slipstream", "live": True, "reason": ""},
    {"name": "hotline", "live": True, "reason": ""},
    {"name": "fae", "live": False, "reason": "it arranges the stream before the run"},
]
Values = dict[str, Any]


class Placement:
    """A placement drawn by chance, kept beside the published one in the plainest form."""

    def __init__(self, tables: list[Values], hot_share: float = 0.1, seed: int = 0) -> None:
        dice = np.random.default_rng(seed)
        self.tables = tables
        self.pool_rows = [sum(t["rows"] for t in tables if t["pool"] == p) for p in {t["pool"] for t in tables}]
        self.slot_of_row = np.full(sum(self.pool_rows), -1, dtype=np.int32)
        self.counters, self.seeds = np.zeros((1024, 16), np.uint32), dice.integers(1, 2**63, 4, dtype=np.uint64)[:1] | 1
        self.unit = 16
        self.tiers = []
        first = 0
        for rows in self.pool_rows:
            capacity = int(rows * hot_share) + 3
            hot = first + dice.permutation(rows)[: capacity - 3]
            row_of_slot = np.full(capacity, -1, dtype=np.int64)
            slots = dice.permutation(capacity)[: len(hot)]
            row_of_slot[slots] = hot
            self.slot_of_row[hot] = slots
            stale = (dice.random(capacity) < 0.3) & (row_of_slot >= 0)
            estimate = dice.integers(0, 40, capacity).astype(np.float32) / 4  # many equal ones
            movement = np.where(dice.random(capacity) < 0.5, dice.random(capacity), np.inf).astype(np.float32)
            self.tiers.append(Tier(row_of_slot, stale, estimate, movement))
            first += rows
        rows_U = np.arange(0, len(self.slot_of_row), 7)[:500]
        sketch_add(self.counters, rows_U, np.full(len(rows_U), 3 * self.unit), self.seeds[0])


def make_tables(*sizes: tuple[str, int, int]) -> list[Values]:
    """Tables by name, rows and dimension; those of one dimension share a pool."""
    dims = list(dict.fromkeys(dim for _, _, dim in sizes))
    tables, first = [], 0
    for pool, dim in enumerate(dims):
        for name, rows, own in sizes:
            if own == dim:
                row_bytes = 8 * dim + 8
                about = {"name": name, "rows": rows, "dim": dim, "pool": pool, "first_row": first}
                tables.append({**about, "row_bytes": row_bytes})
                first += rows
    return tables


def ranks(*work_seconds_per_step: float) -> list[Values]:
    """Ranks of a snapshot whose own work takes so long."""
    return [
        {
            **{"work_seconds": 30 * work, "wait_seconds": 1.5, "sent_bytes": {"rows": 6000, "dense": 500}},
            **{"work_seconds_per_step": work, "wait_seconds_per_step": 0.05},
            **{"sent_bytes_per_sample": {"rows": 60.0, "dense": 5.0}, "hot_lookup_ratio": 0.75},
        }
        for work in work_seconds_per_step
    ]


def on_a_disk(step: int) -> Values:
    """What a snapshot has of rows on a disk, each count another one: its totals, its stages and its figures."""
    names = ("ahead", "again", "read", "found", "drawn", "written", "moved")
    counts = {f"rows_{name}": step * (place + 1) for place, name in enumerate(names)}
    counts["written_bytes"] = step << 20
    figures = {f"{name}_per_step": count / step for name, count in counts.items()}
    return {
        "totals": {"steps": step, "samples_seen": step * 512} | {f"disk_{name}": count for name, count in counts.items()},
        "stage_seconds": {"disk": step / 200, "execute": step / 100},
        "disk": {"size_bytes": 9 << 20, "segments": 3, "wait_seconds_per_step": 0.005, **figures},
    }


class FakeRun:
    """The trainer's part of a run."""

    def __init__(
        self, folder: Path, tables: list[Values] | None = None, live: bool = True, on_disk: bool = False, in_memory: bool = False,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.tables = tables or make_tables(("C1", 1000, 4), ("C2", 50, 4), ("<img onerror=x>", 3000, 8))
        self.placement = Placement(self.tables)
        cells = self.placement.counters.size
        self.writer = StateWriter(self.placement.pool_rows, cells, len(self.tables), on_disk=on_disk, in_memory=in_memory)
        self.on_disk, self.in_memory = on_disk, in_memory
        random = np.random.default_rng(3)
        if on_disk:  # rows that were never written have address 0
            self.writer.address_R[:] = random.integers(0, 3, sum(self.placement.pool_rows))
        if in_memory:
            self.writer.memory_slot_R[:] = random.integers(-1, 1, sum(self.placement.pool_rows))
        self.knobs, self.knobs_step = Knobs().model_dump(), 0
        self.mailbox = Mailbox(Knobs())
        self.patches = KnobPatches(self.mailbox, {"policies": POLICIES, "defaults": self.knobs})
        self.late: list[Values] = []
        self.at_boundary = True
        """Whether a change of knobs takes effect at once, or with the next `boundary`."""
        self.live = live
        self.step = 0
        (folder / "config.toml").write_text("[knobs]\nalpha = 0.7\n")
        self.publish()
        self.report(20)
        self.report(40)

    def hello(self, port: int = 8470) -> Values:
        """The first line on the link, but for the listeners."""
        return {
            "mode": "live" if self.live else "finished",
            **{"state_fd": self.writer.fd, "layout": self.writer.layout},
            **{"host": "127.0.0.1", "port": port},
            "allow_hosts": ["127.0.0.1", "localhost", "[::1]"],
            **{"control_token": CONTROL, "read_token": READ, "codes_since": 0.0, "sessions": {}},
            "run": str(self.folder),
            "run_name": self.folder.name,
            "started": 1_770_000_000.0,
            **{"seed": 1, "device": "cpu", "precision": "float32", "version": "0.0.0"},
            **{"on_disk": self.on_disk, "in_memory": self.in_memory},
            "tables": self.tables,
            "policies": POLICIES,
            **{"defaults": Knobs().model_dump(), "desired": self.knobs, "effective": self.knobs, "step": 0},
        }

    def publish(self) -> None:
        p = self.placement
        self.writer.write_placement(100, 5, p.slot_of_row, p.tiers, (p.counters, p.seeds, p.unit))

    def snapshot(self, step: int, **changes: Any) -> Values:
        hot = [self.count(i, ("hot", "stale")) for i in range(len(self.tables))]
        stale = [self.count(i, ("stale",)) for i in range(len(self.tables))]
        totals = {"steps": step, "samples_seen": step * 512, "samples_trained": step * 500, "lookups": 100 * step}
        more = ("lookups_hot", "samples_popular", "malformed_rows", "row_updates", "row_updates_skipped")
        rest = ("hot_row_updates", "host_to_device_bytes", "device_to_host_bytes", "migrated_rows")
        return {
            "step": step,
            "steps_total": 1000,
            "seconds": step / 50,
            "samples_per_second": 25_600.0,
            "loss": 0.5 - step / 10_000,
            **{"hot_lookup_ratio": 0.8, "popular_sample_ratio": 0.6},
            **{"skipped_sample_ratio": 0.02, "skipped_row_update_ratio": 0.1},
            "hot_rows": sum(hot),
            "stale_rows": sum(stale),
            "placement_version": 5,
            "stale_threshold": None,
            "totals": {**totals, **{name: step * 10 for name in (*more, *rest)}, "loss_sum": 1.5, "seconds": step / 50},
            "stage_seconds": {"execute": step / 100, "gather (ahead)": 0.1},
            "tables": {
                "lookups": [100 * step] * len(self.tables),
                "lookups_hot": [80 * step] * len(self.tables),
                "hot_rows": hot,
                "stale_rows": stale,
            },
            **changes,
        }

    def count(self, table: int, classes: tuple[str, ...]) -> int:
        about = self.tables[table]
        tier = self.placement.tiers[about["pool"]]
        mine = (tier.row_of_slot_H >= about["first_row"]) & (tier.row_of_slot_H < about["first_row"] + about["rows"])
        return int(mine.sum() if "hot" in classes else (mine & tier.stale_H).sum())

    def report(self, step: int, phase: str = "training", **changes: Any) -> None:
        """A snapshot into the file and onto the board."""
        self.step = step
        snapshot = self.snapshot(step, **changes)
        self.append("metrics.jsonl", {"event": "snapshot", **snapshot})
        self.board(phase, snapshot)

    def board(self, phase: str, snapshot: Values | None, **more: Any) -> None:
        self.writer.pulse(self.step)
        about = {"phase": phase, "step": self.step, "steps_total": 1000, "snapshot": snapshot, "evaluation": None}
        self.writer.write_board({**about, "knobs": self.knobs, "knobs_step": 0, "stopping": False, **more})

    def event(self, kind: str = "warning", text: str = "something", **details: Any) -> None:
        line = {"time": time.time(), "step": self.step, "kind": kind, "text": text, "details": details}
        self.append("events.jsonl", line)

    def append(self, file: str, line: Values) -> None:
        with open(self.folder / file, "a") as lines:
            lines.write(json.dumps(line) + "\n")

    def answer(self, message: Values) -> list[Values]:
        """What the trainer sends on a command; a change of knobs is checked by the trainer's own code."""
        number = message["id"]
        if message["command"] == "find_keys":
            keys = message["keys"]
            return [{"id": number, "ids": [0] * len(keys), "own": [False] * len(keys), "counted": [0] * len(keys)}]
        if message["command"] != "change_knobs":
            more = {"checkpoint": f"step-{self.step:09d}"} if message["command"] == "checkpoint" else {}
            return [{"id": number, "step": self.step, **more}]
        try:
            reply: Any = self.patches.take(message, lambda outcome: self.late.append(answer_message(number, outcome)))
        except AdaptiveRecError as error:
            reply = error
        answers = [self.reported(), answer_message(number, reply)]
        return [*answers, *self.boundary()] if self.at_boundary else answers

    def boundary(self) -> list[Values]:
        """Carry out the changes of knobs that wait; what the trainer sends then."""
        for command in self.mailbox.drain():
            before = Knobs.model_validate(self.knobs)
            after = before.changed(dict(command.values))
            self.knobs, self.knobs_step = after.model_dump(), self.step
            self.mailbox.settle(after)
            self.event("knobs", changed=before.differences(after), **command.note)
            command.answer({"step": self.step, "changed": before.differences(after)})
        answers, self.late = self.late, []
        return [self.reported(), *answers]

    def reported(self) -> Values:
        return {
            "knobs": {
                "desired": self.mailbox.desired.model_dump(),
                "effective": self.knobs,
                "step": self.knobs_step,
                "waiting": self.mailbox.waiting,
            }
        }


class FakeLink(TrainerLink):
    """A link whose other end answers on the spot as `answers` says."""

    def __init__(self, run: FakeRun) -> None:
        self.run = run
        self.answers: Callable[[Values], list[Values]] = run.answer
        self.messages: list[Values] = []
        super().__init__(None, self, KnobState(run.knobs, run.knobs))  # type: ignore[arg-type]

    def write(self, line: bytes) -> None:
        message = json.loads(line)
        self.messages.append(message)
        for reply in self.answers(message):
            asyncio.get_running_loop().call_soon(self.take, reply)


class Client(TestClient):
    """Asks with the control token, at the right host."""

    def __init__(self, view: RunView, token: str = CONTROL, limits: RequestLimits | None = None) -> None:
        many = RequestLimits(reads_per_second=1e6, reads_burst=1e6, writes_per_second=1e6, writes_burst=1e6)
        allowed = ("127.0.0.1", "localhost", "[::1]")
        self.view = view
        self.security = Security(CONTROL, READ, "127.0.0.1", 8470, allowed, limits or many)
        app = create_app(view, self.security)
        super().__init__(app, "http://127.0.0.1:8470", headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    fake = FakeRun(tmp_path)
    yield fake
    fake.writer.close()


@pytest.fixture
def run_on_disk(tmp_path: Path) -> Iterator[FakeRun]:
    """A run whose cold rows lie on a disk, but for those that were never written."""
    fake = FakeRun(tmp_path, on_disk=True)
    yield fake
    fake.writer.close()


@pytest.fixture
def run_in_three_homes(tmp_path: Path) -> Iterator[FakeRun]:
    """A run on a device, some of whose cold rows are in host memory."""
    fake = FakeRun(tmp_path, on_disk=True, in_memory=True)
    yield fake
    fake.writer.close()


def view_of(run: FakeRun) -> LiveRun:
    reader = StateReader(run.writer.fd, run.writer.layout)
    return LiveRun(Hello.parse(run.hello()), reader, FakeLink(run), ProcessMeter(os.getpid()))


@pytest.fixture
def view(run: FakeRun) -> LiveRun:
    return view_of(run)


@pytest.fixture
def client(view: LiveRun) -> Client:
    return Client(view)


@pytest.fixture
def finished(tmp_path: Path) -> Client:
    fake = FakeRun(tmp_path, live=False)
    fake.event("knobs", "alpha", changed={"alpha": {"old": 0.7, "new": 0.8}})
    (tmp_path / "summary.json").write_text("{}")
    return Client(FinishedRun(Hello.parse(fake.hello())))


@dataclass
class Reply:
    status: int
    headers: Message
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        assert {"type", "title", "detail"} < set(found)
        return found


class Called:
    """An application called as the server calls it, without a socket: h11 reads what is sent, as it does there."""

    def __init__(self, app: Any, port: int) -> None:
        self.app, self.port = app, port
        self.runner = asyncio.Runner()

    def answer(self, sent: bytes, unix: bool = False) -> Reply:
        """The answer to one whole request."""
        reader = h11.Connection(h11.SERVER)
        reader.receive_data(sent)
        request, body = reader.next_event(), b""
        assert isinstance(request, h11.Request)
        while isinstance(event := reader.next_event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage), "a whole request, and no more"
        path, _, query = request.target.partition(b"?")
        scope = {
            **{"type": "http", "http_version": "1.1", "scheme": "http", "root_path": "", "state": {}},
            **{"method": request.method.decode(), "path": unquote(path.decode()), "raw_path": path, "query_string": query},
            "headers": [(name.lower(), value) for name, value in request.headers],
            "server": ("/run/s", None) if unix else ("127.0.0.1", self.port),
        }
        return self.runner.run(self._answer(scope, body))

    async def _answer(self, scope: Values, body: bytes) -> Reply:
        told: list[Values] = [{"type": "http.request", "body": body}]
        sent: list[Values] = []

        async def receive() -> Values:
            return told.pop() if told else await asyncio.Future()

        async def send(message: Values) -> None:
            sent.append(message)

        with suppress(RuntimeError):  # what a test plants; the server notes it in its log
            await self.app(scope, receive, send)
        headers = Message()
        for name, value in sent[0]["headers"]:
            headers[name.decode("latin1")] = value.decode("latin1")
        return Reply(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


class Sidecar:
    """The real process, with a fake trainer at the other end of its link."""

    def __init__(self, run: FakeRun, port: int = 0) -> None:
        self.run = run
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        self.link, theirs = socket.socketpair()
        fds = [theirs.fileno(), self.listener.fileno(), run.writer.fd]
        command = [sys.executable, "-m", "adaptive_rec.service", "--link", str(fds[0])]
        # A session of its own, as under a trainer: the sidecar makes all of its session give way to other processes.
        self.process = subprocess.Popen(
            command, pass_fds=fds, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        theirs.close()
        self.say({**run.hello(self.port), "listeners": [{"fd": fds[1], "kind": "tcp"}]})
        self.heard = self.answered = 0
        """Lines that the trainer has heard, and those that it has answered."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        threading.Thread(target=self._answer, daemon=True).start()
        headers = {"Authorization": f"Bearer {CONTROL}"}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=120)

    def say(self, line: Values) -> None:
        self.link.sendall(json.dumps(line).encode() + b"\n")

    def _answer(self) -> None:
        with self.link.makefile("r") as lines, suppress(ConnectionResetError):  # it has ended with words unread
            for line in lines:
                self.heard += 1
                self.may_answer.wait()
                for reply in self.run.answer(json.loads(line)):
                    with suppress(BrokenPipeError):  # a test may have ended the process meanwhile
                        self.say(reply)
                self.answered += 1

    def end(self) -> str:
        """Close the link as a dying trainer would; what the process had to say on stderr."""
        self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()
        self.listener.close()
        _, said = self.process.communicate(timeout=300)  # it gives way to all other processes
        return said


@pytest.fixture
def sidecar(run: FakeRun) -> Iterator[Sidecar]:
    started = Sidecar(run)
    yield started
    if started.process.poll() is None:
        os.kill(started.process.pid, 9)
        started.process.wait()


@pytest.fixture(scope="module")
def lasting_sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for all tests of a module that leave it going."""
    run = FakeRun(tmp_path_factory.mktemp("lasting"))
    started = Sidecar(run)
    yield started
    started.process.kill()
    started.process.wait()
    run.writer.close()


@pytest.fixture
def make_run() -> Callable[..., FakeRun]:
    """A run with tables of one's own: (folder, (name, rows, dim), ...)."""
    return lambda folder, *sizes: FakeRun(folder, make_tables(*sizes))


@pytest.fixture
def client_on() -> Callable[[FakeRun], Client]:
    return lambda run: Client(view_of(run))
