"""Mutations of the files of a run directory, and the commands that read them: `python -m tests.run.spoilt --count 2000`.

Each mutation spoils one file of a copy of a run. Then every command that reads the run is executed. It may show what is whole or
end with an error of a line; it may not hang, give a traceback, or change the run.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
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
"""Longest time of a command that meets a spoilt file, on an idle machine."""
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1.5, -1e308, 1e308, 2**31, 2**63, 2**64, 10**400, float("nan"), float("inf"), "", "x", "\x00",
    "\ud800", "../..", "/dev/zero", "x" * 100_000, [], [[]], [None], [1, 2], {}, {"a": 1}, {"": None}, "NaN", "2026-01-01",
    "evil:Module",
]  # fmt: skip
Spoil = Callable[[random.Random, Path], str]


class Hung(BaseException):
    """A command took too long."""


# Mutations -----------------------------------------------------------------------------------------------------------


def flip(chance: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 3, 20))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)
    return "bytes changed"


def cut(chance: random.Random, path: Path) -> str:
    size = chance.randrange(path.stat().st_size)
    with open(path, "r+b") as file:
        file.truncate(size)
    return f"cut to {size} bytes"


def fill(chance: random.Random, path: Path) -> str:
    what = chance.choice(
        (
            b"",
            b"\0" * 4096,
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b"\xff\xfe" * 500,
            b"null",
            b"[]",
            b"7",
            b'"x"',
            b"a = " * 999,
        )
    )
    path.write_bytes(what)
    return f"filled with {what[:8]!r}"


def add(chance: random.Random, path: Path) -> str:
    what = chance.choice(
        (
            b"\n[[[[",
            b"\n" + b"[" * 50_000 + b"\n",
            b"\n{}\n",
            b"\nnull\n",
            b"\0" * 100,
            b"\n" + b"x" * 2_000_000,
            b"\n=1\n",
        )
    )
    with open(path, "ab") as file:
        file.write(what)
    return f"{what[:8]!r} behind it"


def lines(chance: random.Random, path: Path) -> str:
    """Lines that are missing, twice, or in another order."""
    found = path.read_bytes().splitlines(keepends=True)
    how = chance.choice(("missing", "twice", "shuffled"))
    place = chance.randrange(len(found))
    if how == "missing":
        del found[place]
    elif how == "twice":
        found.insert(place, found[chance.randrange(len(found))])
    else:
        chance.shuffle(found)
    path.write_bytes(b"".join(found))
    return f"lines {how}"


def value(chance: random.Random, path: Path) -> str:
    """One value of a JSON file, or of one of its lines, replaced; or a key removed."""
    text = path.read_text()
    each = [text] if path.suffix == ".json" else text.splitlines()
    place = chance.randrange(len(each))
    tree = json.loads(each[place])
    at, keys = tree, []
    while True:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        keys.append(key)
        if not isinstance(at[key], (dict, list)) or not at[key] or chance.random() < 0.25:
            break
        at = at[key]
    new = chance.choice(HOSTILE)
    if chance.random() < 0.15:
        del at[key]
        said = "removed"
    else:
        at[key] = new
        said = f"= {str(new)[:20]!r}"
    each[place] = json.dumps(tree)
    path.write_text("\n".join(each) + "\n")
    return f"{'.'.join(map(str, keys))} {said}"


def toml_value(chance: random.Random, path: Path) -> str:
    found = path.read_text().splitlines()
    place = chance.choice([number for number, line in enumerate(found) if " = " in line])
    name = found[place].partition(" = ")[0]
    new = chance.choice(
        (
            "nan",
            "-1",
            "1e400",
            '""',
            "[]",
            "true",
            "9" * 400,
            "{}",
            '"evil:Module"',
            '"\\u0000"',
            "[" * 3000 + "]" * 3000,
            "0",
        )
    )
    found[place] = f"{name} = {new}"
    path.write_text("\n".join(found) + "\n")
    return f"{name} = {new[:20]}"


def gone(chance: random.Random, path: Path) -> str:
    path.unlink()
    if chance.random() < 0.5:
        path.mkdir()
        return "a folder"
    return "gone"


def ways(path: Path) -> list[Spoil]:
    fitting: list[Spoil] = [flip, cut, fill, add, gone]
    if path.suffix in (".json", ".jsonl"):
        fitting += [value] * 6
    if path.suffix in (".jsonl", ".toml"):
        fitting += [lines]
    if path.suffix == ".toml":
        fitting += [toml_value] * 6
    return fitting


# Commands ------------------------------------------------------------------------------------------------------------

READS = (
    "report",
    "eval",
    "export",
    "checkpoint list",
    "checkpoint verify",
    "checkpoint diff",
    "checkpoint export",
    "serve",
)
TRAINS = ("resume", "replay")


def command_line(name: str, run: Path, out: Path) -> list[str]:
    return {
        "report": ["report", str(run), "--out", str(out / "report.html")],
        "eval": ["eval", str(run), "--json"],
        "export": ["export", str(run), "--to", str(out / "model")],
        "checkpoint list": ["checkpoint", "list", str(run)],
        "checkpoint verify": ["checkpoint", "verify", str(run)],
        "checkpoint diff": ["checkpoint", "diff", str(run), str(run)],
        "checkpoint export": ["checkpoint", "export", str(run), "--out", str(out / "tables")],
        "resume": ["train", "--resume", "--out", str(run), "--no-serve", "--set", "run.steps=61"],
        "replay": ["train", "--replay", str(run), "--out", str(out / "again"), "--no-serve", "--steps", "20"],
    }[name]


def serve(run: Path) -> str:
    """Ask the service of an ended run everything. Returns the error that it ends with, or nothing."""
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
    wrong = []
    for path in ("status", "stats", "stats/history", "events", "placement", "knobs", "config"):
        code = client.get(f"/api/v1/{path}").status_code
        if code >= 500:
            wrong.append(f"{path} {code}")
    if (code := client.get("/metrics").status_code) != 200:
        wrong.append(f"metrics {code}")
    if wrong:
        raise RuntimeError(", ".join(wrong))
    return ""


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


def execute(name: str, run: Path, out: Path) -> tuple[str, str]:
    """Execute a command. Returns what is wrong with how it ended, or nothing, and what it printed."""
    said = io.StringIO()
    out.mkdir()
    try:
        with deadline(6 * SECONDS), redirect_stdout(said), redirect_stderr(said):
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


def spoilt_runs(whole: Path, work: Path, count: int, seed: int) -> Iterator[tuple[int, Path, str, str]]:
    """Yield (number, run, file, what was done) for copies of a run with one spoilt file each."""
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        run = work / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        file = chance.choice(files)
        try:
            how = chance.choice(ways(run / file))(chance, run / file)
        except (ValueError, IndexError, TypeError) as error:
            how = f"not spoilt: {error}"
        yield number, run, str(file), how


def faults(whole: Path, work: Path, count: int, seed: int, first: int = 0, names: Sequence[str] = ()) -> Iterator[str]:
    """Yield what went wrong, a text each."""
    for number, run, file, how in spoilt_runs(whole, work, count, seed):
        if number < first:
            continue
        before = contents(run)
        for name in names or (*READS, *TRAINS):
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            wrong, text = execute(name, run, out)
            took = time.perf_counter() - began
            if not wrong and took > SECONDS:
                wrong = "slow"
            if not wrong and name in READS and contents(run) != before:
                wrong = "the run has changed"
            if wrong:
                yield f"{number} {name}: {file} {how}: {wrong} ({took:.1f} s)\n{text[-1500:]}"


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def main_fuzz() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, help="a whole run of some checkpoints")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first mutation to make")
    parser.add_argument("--only", default="", help="commands, separated by commas")
    parser.add_argument("--work", type=Path, required=True, help="folder for copies")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    names = args.only.split(",") if args.only else ()
    bad = 0
    for text in faults(args.run, args.work, args.count, args.seed, args.first, names):
        bad += 1
        print(f"## {text}", flush=True)
    print(f"{bad} went wrong, of {args.count} mutations, seed {args.seed}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main_fuzz())
