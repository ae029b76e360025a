"""Every command says at once what it does, on a terminal too, where torch and Numba take seconds to load."""

from __future__ import annotations

import json
import os
import pty
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.cli.commands import COMMANDS
from tests import forked
from tests.stopwatch import Stopwatch

LIMIT_SECONDS = 1.5
"""Limit of the wait for the first output, without waiting for a processor: it takes at most 0.5 s, and loading torch two."""
TRIES = 3
SETTINGS = ["--no-serve", "--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]", "--steps", "3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of rows, a run that was trained on it, and the folder that was prepared for that."""
    folder, dice = tmp_path_factory.mktemp("place"), random.Random(1)
    lines = [f"{dice.randrange(40)},{dice.randrange(60)},{dice.randrange(2)}" for _ in range(600)]
    (folder / "rows.csv").write_text("\n".join(["user,item,label", *lines]) + "\n")
    words = ["train", "--data", str(folder / "rows.csv"), "--label", "label", *SETTINGS]
    for name in ("one", "other"):
        assert main([*words, "--out", str(folder / "runs" / name)]) == 0
    (folder / "prepared").symlink_to(next((folder / "runs" / "data").iterdir()))
    return folder


SLOW = [
    "train tiny --no-serve --steps 3 --out runs/new",
    "train --data rows.csv --label label --no-serve --steps 3 --out runs/own",
    "train tiny --dry-run",
    "train --print-config",
    "branch runs/one --no-train --out runs/branch",
    "eval runs/one",
    "predict runs/one --data rows.csv --out scores.parquet",
    "export runs/one --to model",
    "nearest runs/one item 7",
    "report runs/one",
    "checkpoint list runs/one",
    "checkpoint verify runs/one",
    "checkpoint diff runs/one runs/other",
    "checkpoint export runs/one --out tables",
    "checkpoint import tables --config tiny --out runs/imported",
    "data prepare rows.csv --label label --out again",
    "data verify prepared",
    "profile prepared",
    "simulate prepared --policies hybrid",
    "calibrate tiny",
    "compare tiny --policies hybrid,hotline --seeds 1 --steps 3 --out runs/compare",
    "plan tiny --no-rehearsal",
    "doctor",
    "serve runs/one --port 0",
]
OF_A_RUN = {
    "status", "knobs", "placement", "pause", "resume", "stop", "reclassify", "rollback", "runs", "dashboard",
    "checkpoint",
}  # fmt: skip
"""Commands to a run, which load nothing large; without a run their error is the first output."""
FIRST = ("train --data", "compare", "predict", "checkpoint list", "plan", "status")
"""Beginnings of the commands that `make test` starts: those that load the most and the least, each by a way of its own."""


def on_a_terminal(words: list[str], folder: Path, runtime: Path, fresh: bool = True) -> Iterator[tuple[float, bytes]]:
    """Execute a command on a terminal, in a fresh process or in one that has its libraries loaded; yield when it prints what."""
    terminal, stream = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "100"}
    watch = Stopwatch()
    if fresh:
        command = [sys.executable, "-m", "adaptive_rec", *words]
        child = subprocess.Popen(command, cwd=folder, env=environment, stdin=stream, stdout=stream, stderr=stream)
    else:
        child = forked.start(words, stream, environment, folder)
    os.close(stream)
    watch.include(child.pid)
    try:
        while select.select([terminal], [], [], 120)[0]:
            try:
                text = os.read(terminal, 1 << 16)
            except OSError:  # how Linux reports the end of a terminal
                break
            yield watch.seconds, text
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def test_no_command_is_left_out() -> None:
    assert set(COMMANDS) == {line.split()[0] for line in SLOW} | OF_A_RUN


@pytest.mark.alone
@pytest.mark.parametrize(
    "line",
    [
        line if line.startswith(FIRST) else pytest.param(line, marks=pytest.mark.slow)
        for line in SLOW + sorted(OF_A_RUN - {"checkpoint"})
    ],
)
def test_a_command_says_at_once_what_it_does(line: str, place: Path, tmp_path: Path) -> None:
    waits = []
    for _ in range(TRIES):
        seconds, text = next(on_a_terminal(line.split(), place, tmp_path))
        assert b"Traceback" not in text
        waits.append(seconds)
        if seconds < LIMIT_SECONDS:
            return
    raise AssertionError(f"{line} must print something within {LIMIT_SECONDS} s, it took {waits}")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("train tiny --no-serve --steps 3 --out runs/shown", "report.html"),
        pytest.param("data prepare rows.csv --label label --out shown", "adaptive-rec train", marks=pytest.mark.slow),
        ("data verify prepared", "prepared is whole"),
        pytest.param(
            "compare tiny --policies hybrid,hotline --seeds 1 --steps 3 --out runs/shown-too", "compare.json",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_command_with_a_live_display_works_on_a_terminal(line: str, end: str, place: Path, tmp_path: Path) -> None:
    words = line.split()
    text = b"".join(part for _, part in on_a_terminal(words, place, tmp_path, fresh=words[0] == "data")).decode()
    assert "Traceback" not in text
    assert end in text


LIGHT = [
    "train --print-config", "checkpoint list runs/one", "checkpoint verify runs/one", "checkpoint diff runs/one runs/other",
    "checkpoint export runs/one --out tables-of-one",
]  # fmt: skip
EACH_IN_TURN = """
import sys
from adaptive_rec.cli import main
for line in sys.argv[1:]:
    code = main(line.split())
    print("AFTER", line, code, [name for name in ("torch", "numba") if name in sys.modules])
"""


def test_configurations_and_work_on_checkpoints_load_neither_torch_nor_numba(place: Path) -> None:
    """One process executes all of them and tells after each what is loaded by then."""
    command = [sys.executable, "-c", EACH_IN_TURN, *LIGHT]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("AFTER ")]
    assert told == [f"AFTER {line} 0 []" for line in LIGHT], done.stderr


def test_standard_output_has_the_answer_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(place / "runs" / "one"), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["step"] == 3
    assert printed.err == f"loading {place / 'runs' / 'one'} ...\n"


def test_runs_that_differ_in_measured_times_only_are_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (str(place / "runs" / name) for name in ("one", "other"))
    assert main(["checkpoint", "diff", one, other]) == 0
    assert capsys.readouterr().out.endswith("are the same, bit by bit (measured times are not compared)\n")
