"""SIGINT and SIGTERM: the first ends a run in good order, the second at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from adaptive_rec.live.runtime_file import under_way
from tests import forked
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.alone

COMMAND = [sys.executable, "-m", "adaptive_rec"]
ENDLESS = ["train", "tiny", "--steps=0", "--set=data.synthetic.samples=1000000000", "--port=0"]
WAIT_SECONDS = 120


@pytest.mark.parametrize(
    ("number", "fresh"),
    [
        (signal.SIGINT, False),
        *(pytest.param(number, True, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_a_signal_ends_the_run_in_good_order_and_soon(wait_for, lines_of, tmp_path, number, fresh):
    out, printed = tmp_path / "run", tmp_path / "printed.txt"
    words = [
        *ENDLESS,
        "--set=data.synthetic.test_samples=500000000",
        "--out",
        str(out),
    ]  # hours of evaluation, left out
    with printed.open("wb") as output:
        if fresh:
            process = subprocess.Popen([*COMMAND, *words], stdout=output, stderr=output)
        else:
            process = forked.start(words, output.fileno(), dict(os.environ))
    try:
        wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2 or process.poll() is not None)
        process.send_signal(number)
        watch = Stopwatch(process.pid)
        code = watch.wait(process, WAIT_SECONDS)
        seconds = watch.seconds
    finally:
        process.kill()
    text = printed.read_text()
    assert code == 128 + number, text
    assert seconds < 15
    summary = json.loads((out / "summary.json").read_text())
    assert summary["eval"] is None
    assert (out / "checkpoints" / f"step-{summary['steps']:09d}" / "MANIFEST.json").exists()
    assert re.search("quality +not scored, the run was stopped", text)
    assert re.search("stopped +before its end", text)
    assert "nanobind" not in text, "Triton, which torch loads, reports no leaks"
    assert under_way() == []


SLOW_TO_STOP = """
import sys, time
from types import SimpleNamespace
from adaptive_rec.cli.signals import StopSignals

screen = SimpleNamespace(stopping=lambda: print("stopping", flush=True), abandon=lambda: print("abandoned", flush=True))
with StopSignals(screen) as signals:
    signals.watch(SimpleNamespace(hurry=lambda: None))
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("first", "second"), [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_it_at_once(first, second):
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_STOP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(first)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(second)
        assert process.stdout.read() == "abandoned\n"
        assert process.wait(WAIT_SECONDS) == 128 + second


def test_a_signal_before_training_ends_it_without_ado(tmp_path):
    code = SLOW_TO_STOP.replace("signals.watch(SimpleNamespace(hurry=lambda: None))", "")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 143
