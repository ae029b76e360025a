"""The commands that read a run directory, executed over a spoilt one, and what may be wrong with how they end."""

from __future__ import annotations

import gc
import io
import json
import shutil
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from adaptive_rec.cli import main
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.live.sidecar import _description
from adaptive_rec.service.app import create_app
from adaptive_rec.service.hello import Hello
from adaptive_rec.service.run_view import FinishedRun
from adaptive_rec.service.security import RequestLimits, Security

SECONDS = 5
"""Most processor time of a command that meets a spoilt file."""
READS = (
    "report", "eval", "predict", "nearest", "export", "checkpoint list", "checkpoint verify", "checkpoint diff",
    "checkpoint export", "serve", "branch",
)  # fmt: skip
TRAINS = ("resume", "replay")
FIGURES = ("eval", "predict", "nearest", "export", "checkpoint export")
"""Commands whose results come from a checkpoint: with a spoilt one they are those of the whole run, or damage is named."""
NAMED = ("passed over", "is skipped", "damaged", "warning", "error:")


HANGS_SECONDS = 100
"""Time after which a command counts as hung; a busy machine may stop it for a minute."""


class Hung(BaseException):
    """A command took too long."""


def command_line(name: str, run: Path, out: Path) -> list[str]:
    """Return the words of a command that reads a run and writes into a folder."""
    resumed = ["--no-serve", "--set", "run.steps=61"]
    return {
        "report": ["report", str(run), "--out", str(out / "report.html")],
        "eval": ["eval", str(run), "--json"],
        "predict": ["predict", str(run), "--data", str(out.parent / "clicks.csv"), "--out", str(out / "scores.csv")],
        "nearest": ["nearest", str(run), "item", "i7", "--json"],
        "export": ["export", str(run), "--to", str(out / "model")],
        "checkpoint list": ["checkpoint", "list", str(run)],
        "checkpoint verify": ["checkpoint", "verify", str(run)],
        "checkpoint diff": ["checkpoint", "diff", str(run), str(run)],
        "checkpoint export": ["checkpoint", "export", str(run), "--out", str(out / "tables")],
        "branch": ["branch", str(run), "--no-train", "--out", str(out / "branch")],
        "resume": ["train", "--resume", "--out", str(run), *resumed],
        "replay": ["train", "--replay", str(run), "--out", str(out / "again"), "--no-serve", "--steps", "20"],
    }[name]


ASKED = ("status", "stats", "stats/history", "events", "placement", "knobs", "config", "runs", "runs/run/history")


def serve(run: Path, paths: Sequence[str] = (*ASKED, "/metrics")) -> str:
    """Ask the service of an ended run everything. Returns the answers, or the error that it ends with."""
    hello = _description(run / "run.json") | {
        "mode": "finished", "run": str(run), "state_fd": None, "layout": None, "control_token": "c" * 43, "read_token": "r" * 43,
        "codes_since": 0.0, "sessions": {}, "host": "127.0.0.1", "port": 8470, "allow_hosts": [], "listeners": [],
    }  # fmt: skip
    many = RequestLimits(reads_per_second=1e6, reads_burst=1e6, writes_per_second=1e6, writes_burst=1e6)
    security = Security("c" * 43, "r" * 43, "127.0.0.1", 8470, ("127.0.0.1",), many)
    try:
        view = FinishedRun(Hello.parse(hello))
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # the process ends with this line
        return f"error: {error}"
    client = TestClient(
        create_app(view, security), "http://127.0.0.1:8470", headers={"Authorization": f"Bearer {'c' * 43}"}
    )
    said, wrong = [], []
    for path in paths:
        answer = client.get(path if path == "/metrics" else f"/api/v1/{path}")
        if path != "/metrics":  # its help has words of warnings
            said.append(f"{path} {answer.text}")
        if answer.status_code >= 500:
            wrong.append(f"{path} {answer.status_code}")
    if wrong:
        raise RuntimeError(", ".join(wrong))
    return "\n".join(said)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def execute(name: str, run: Path, out: Path, seconds: float = HANGS_SECONDS) -> tuple[str, str]:
    """Execute a command. Returns what is wrong with how it ended, or nothing, and what it printed."""
    said = io.StringIO()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        with deadline(seconds), redirect_stdout(said), redirect_stderr(said):
            if name == "serve":
                try:
                    said.write(serve(run))
                except AdaptiveRecError as error:
                    said.write(f"error: {error}")
                return "", said.getvalue()
            code = main(command_line(name, run, out))
    except Hung:
        return "hangs", said.getvalue()
    except SystemExit as error:
        return f"SystemExit {error}", said.getvalue()
    except Exception:
        return "traceback", traceback.format_exc(limit=-6)
    text = said.getvalue()
    if "Traceback" in text:
        return "traceback", text
    if code and "error: " not in text and "damaged" not in text.lower() and "differ" not in text:
        return f"exit {code} without an error", text
    return "", text


def figures(name: str, out: Path, text: str) -> Any:
    """Return the results of a command that has succeeded, to compare."""
    if name in ("eval", "nearest"):
        lines = [line for line in text.splitlines() if line.startswith(("{", "[", " ", "}", "]"))]
        found = json.loads("\n".join(lines))
        return {key: value for key, value in found.items() if key != "seconds"} if isinstance(found, dict) else found
    return contents(out)


def wrong_figures(name: str, out: Path, text: str, whole: Mapping[str, Any]) -> bool:
    """Return whether a command gave other results than over the whole run and named no damage."""
    return not any(word in text for word in NAMED) and figures(name, out, text) != whole[name]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def timed(name: str, run: Path, out: Path) -> tuple[str, str, float]:
    """Execute a command. Returns as `execute` does, and its seconds of processor time: others may keep the machine busy.
    What takes long is tried again, as the first one loads libraries."""
    took = float("inf")
    for _ in range(2):
        began = time.process_time()
        wrong, text = execute(name, run, out)
        took = min(took, time.process_time() - began)
        gc.collect()  # tables that a command leaves in circles of references may be large
        if took <= SECONDS:
            break
    return wrong, text, took
