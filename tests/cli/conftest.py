"""A service that answers as it is told to, over TCP and a Unix socket, and the runtime file that leads to it."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.live.runtime_file import RuntimeFile, remove, socket_path, write_runtime_file

SETTINGS = ["--no-serve", "--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]"]
CONTROL_TOKEN, READ_TOKEN = "control-token-of-the-tests", "read-token-of-the-tests"
ESCAPE = "\x1b[31mred"


class FakeService:
    """`answers` holds (status, body, headers) by method and path, or a function of the request's body that gives one."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Any] = {}
        self.requests: list[dict[str, Any]] = []
        self._servers: list[socketserver.BaseServer] = []
        self.url = ""

    def answer(self, method: str, path: str, body: Any, status: int = 200, **headers: str) -> None:
        self.answers[method, path] = (status, body, headers)

    def refuse(self, method: str, path: str, status: int, detail: str, **more: Any) -> None:
        self.answer(
            method,
            path,
            {"type": "about:blank", "title": "refused", "status": status, "detail": detail, **more},
            status,
        )

    def paths(self) -> list[str]:
        return [f"{request['method']} {request['path']}" for request in self.requests]

    def start(self, socket: Path) -> None:
        handler = handler_of(self)
        tcp = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{tcp.server_address[1]}"
        self._servers = [tcp, socketserver.ThreadingUnixStreamServer(str(socket), handler)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []


def handler_of(service: FakeService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            path, _, query = self.path.partition("?")
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(text) if text else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            over = "tcp" if isinstance(self.client_address, tuple) else "unix"
            told = {
                "method": self.command,
                "path": path,
                "query": query,
                "body": body,
                "headers": headers,
                "over": over,
            }
            service.requests.append(told)
            answer = service.answers.get(
                (self.command, path), (404, {"detail": f"no answer for {self.command} {path}"}, {})
            )
            status, content, more = answer(told) if isinstance(answer, Callable) else answer
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = reply

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runtime files of a test are its own."""
    folder = tmp_path_factory.mktemp("x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("ADAPTIVE_REC_TOKEN", raising=False)
    return folder / "adaptive-rec"


@pytest.fixture
def service(runtime_folder: Path) -> Iterator[FakeService]:
    """A run under way, in this process, that trains criteo."""
    fake = FakeService()
    runtime_folder.mkdir(mode=0o700)
    socket = socket_path(os.getpid())
    fake.start(socket)
    write_runtime_file(runtime_file(fake.url, str(socket)))
    fake.answer("GET", "/api/v1/status", STATUS)
    fake.answer("GET", "/api/v1/stats", STATS)
    fake.answer("GET", "/api/v1/knobs", KNOBS, ETag='"one"')
    fake.answer("GET", "/api/v1/placement", PLACEMENT)
    yield fake
    fake.stop()
    remove(os.getpid())


def runtime_file(url: str, socket: str | None = None) -> RuntimeFile:
    return RuntimeFile(os.getpid(), "/data/runs/criteo", url, socket, CONTROL_TOKEN, READ_TOKEN, 1_700_000_000.0)


STATUS = {
    "run": {
        "name": "criteo",
        "path": "/data/runs/criteo",
        "started": 1_700_000_000.0,
        "seed": 3,
        "device": "cpu",
        "precision": "float32",
        "version": "0",
    },
    "live": True,
    "scope": "control",
    "policy": "slipstream",
    "phase": "training",
    "step": 1437,
    "steps_total": 5000,
    "samples_seen": 735_744,
    "samples_per_second": 19_700.0,
    "steps_per_second": 38.5,
    "seconds": 75.0,
    "eta_seconds": 92.4,
    "loss": 0.54251,
    "evaluation": {"step": 1000, "auc": 0.71432, "logloss": 0.5373, "calibration": None},
    "last_step_age_seconds": 0.02,
}
STATS = {
    "step": 1437,
    "ratios": {"hot_lookup": 0.953, "popular_sample": 0.5, "skipped_sample": 0.0, "skipped_row_update": 0.183},
    "hot_rows": 61_700,
    "stale_rows": 1451,
}


def knob(effective: Any, desired: Any = None, unit: str = "ratio", **more: Any) -> dict[str, Any]:
    about = {"desired": effective if desired is None else desired, "effective": effective, "default": effective}
    limits = {"minimum": None, "maximum": None, "exclusive_minimum": False, "exclusive_maximum": False, "choices": None}
    return {**about, **limits, "type": "number", "unit": unit, "why": "What turning it does.", **more}


KNOBS = {
    "knobs": {
        "hot_budget_bytes": knob(8 << 20, unit="bytes", minimum=0, type="integer"),
        "alpha": knob(0.9, 0.7, minimum=0, exclusive_minimum=True, maximum=1),
        "action": knob("freeze", unit="name", choices=["freeze", "drop"], type="string"),
        "stale_threshold": knob("search", unit="movement", minimum=0, choices=["search"], type="number_or_choice"),
    },
    "pending": True,
    "effective_since_step": 40,
}
PLACEMENT = {
    "version": 14,
    "step": 1400,
    "device_bytes": 6 << 20,
    "budget_bytes": 8 << 20,
    "tables": [
        {
            "index": index,
            "table": name,
            "rows": 4000,
            "dim": 16,
            "hot": 1000,
            "stale": 250,
            "cold": 3000,
            "device_bytes": 3 << 20,
            "hot_lookup_ratio": ratio,
        }
        for index, name, ratio in ((0, "C1", 0.953), (1, ESCAPE, None))
    ],
}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with clicks.csv and a run that was trained on it, in runs/a."""
    folder, dice = tmp_path_factory.mktemp("own"), random.Random(1)
    tastes = [dice.gauss(0, 1) for _ in range(60)]
    with (folder / "clicks.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user_id", "item", "kinds", "price", "label"])
        for _ in range(6000):
            user, item = dice.randrange(40), dice.randrange(60)
            kinds = "|".join(dice.sample(["new", "old", "é"], dice.randint(1, 2)))
            price = "" if dice.random() < 0.2 else round(dice.expovariate(1 / 5000), 2)
            rows.writerow([user - 20, f"item, {item}", kinds, price, int(tastes[item] + dice.gauss(0, 1) > 0.3)])
    assert (
        main(
            [
                "train",
                "--data",
                str(folder / "clicks.csv"),
                "--label",
                "label",
                "--out",
                str(folder / "runs" / "a"),
                *SETTINGS,
            ]
        )
        == 0
    )
    return folder


@pytest.fixture
def answers() -> SimpleNamespace:
    """What the service says as long as it is told nothing else."""
    return SimpleNamespace(status=STATUS, stats=STATS, placement=PLACEMENT, knobs=KNOBS, runtime_file=runtime_file)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints that is carried out."""

    def carry_out(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return carry_out


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The error of a command that cannot be carried out, without the address of its explanation."""

    def carry_out(*words: str, code: int = 2) -> str:
        assert main(list(words)) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        return re.sub(r" \(see docs/faq\.md#[a-z-]+\)$", "", captured.err, flags=re.M)

    return carry_out


@pytest.fixture
def rows_of() -> Callable[[str], list[list[str]]]:
    """Lines of a table as their cells."""
    return lambda text: [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and commands take standard output for a terminal of 80 columns."""

    def pretend() -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # pytest has another stream while fixtures are made
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "dumb")

    return pretend


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so."""

    def wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 600
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    return wait


@pytest.fixture
def lines_of() -> Callable[[Path], int]:
    """How many lines a file has, which may not be there yet."""
    return lambda path: len(path.read_text().splitlines()) if path.exists() else 0
