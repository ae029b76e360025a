"""``train --detach``, and the whole way from there through the shell clients to the end of the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from adaptive_rec.cli import detach, main
from adaptive_rec.live.runtime_file import find_run, under_way

pytestmark = pytest.mark.alone

COMMAND = [sys.executable, "-m", "adaptive_rec"]
ENDLESS = ["train", "tiny", "--steps=0", "--set=data.synthetic.samples=1000000000", "--port=0"]
WAIT_SECONDS = 120


@pytest.fixture
def stopped_at_last() -> Iterator[None]:
    """No run outlives a test that failed."""
    yield
    for file in under_way():
        os.kill(file.pid, signal.SIGKILL)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=WAIT_SECONDS)


@pytest.mark.slow
def test_detach_returns_while_the_run_continues(wait_for, tmp_path, stopped_at_last):
    out = tmp_path / "deep" / "run"
    result = command(*ENDLESS, "--detach", "--json", "--out", out)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    with contextlib.suppress(ProcessLookupError):
        assert told["run"] == str(out)
        assert told["url"] == find_run("run").url
        assert os.getsid(told["pid"]) == told["pid"]
        assert not (out / "summary.json").exists()
        os.kill(told["pid"], signal.SIGTERM)
    wait_for((out / "summary.json").exists)
    wait_for(lambda: "directory" in (out / "log.txt").read_text())
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.slow
def test_detach_returns_where_several_processes_train(wait_for, tmp_path, told, stopped_at_last):
    """Each rank leads a session of its own. What is printed names the run's service, and the process that started them all."""
    out = tmp_path / "run"
    about = json.loads(told(*ENDLESS, "--processes=2", "--detach", "--json", "--out", str(out)))
    assert about["url"] == find_run("run").url
    assert not (out / "summary.json").exists(), "the command has returned while the run goes on"
    os.kill(about["pid"], signal.SIGTERM)
    wait_for(lambda: under_way() == [])
    assert json.loads((out / "summary.json").read_text())["processes"] == 2
    command = json.loads((out / "run.json").read_text())["command"].split()
    assert command[:3] == ["adaptive-rec", "train", ENDLESS[1]]
    assert [word for word in command if word.startswith("--out")] == ["--out"]


def test_detach_shows_why_a_run_ended(tmp_path, capsys):
    bad = tmp_path / "bad.tsv"
    bad.write_text("not a Criteo row\n")
    assert main(["train", "--detach", "--data", str(bad), "--out", str(tmp_path / "run")]) == 3
    complaints = capsys.readouterr().err
    assert "error: " in complaints
    assert "ended with exit code 3" in complaints
    assert list(tmp_path.iterdir()) == [bad]


RUN = """#!/bin/sh
for word; do case $word in --out=*) out=${word#--out=};; esac; done
mkdir "$out" && touch "$out/config.toml"
echo '{"step": 0, "kind": "started"}' > "$out/events.jsonl"
test -n "$FOLLOWED" || echo '{"step": 10, "steps_total": 157}' > "$out/metrics.jsonl"
exec sleep 10
"""


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (["tiny", "--steps=160"], "157 steps, all that the data has; run.steps is 160"),
        (["tiny", "--steps=157"], ""),
        (["tiny", "--steps=0", "--set=data.epochs=3"], "3 passes over the data, 157 steps"),
        (["--data=LOG", "--label=clicked", "--follow", "--set=data.ids=raw"], "LOG is followed"),
    ],
)
def test_detach_says_how_long_the_run_will_be(words, length, tmp_path, monkeypatch, capsys):
    """As the run itself does. Data that is followed may bring no report for hours; the command returns all the same."""
    run, log = tmp_path / "python", tmp_path / "log.csv"
    run.write_text(RUN)
    run.chmod(0o755)
    log.write_text("user,item,clicked\n" + "1,2,0\n3,4,1\n" * 20)
    monkeypatch.setenv("FOLLOWED", "x" * ("--follow" in words))
    monkeypatch.setattr(sys, "executable", str(run))
    monkeypatch.setattr(detach, "is_held_by", lambda out, session: True)
    words = [word.replace("LOG", str(log)) for word in words]
    assert main(["train", *words, "--detach", "--no-serve", f"--out={tmp_path / 'run'}"]) == 0
    told = dict(re.findall(r"^  (\w+) +(.*)", capsys.readouterr().out, flags=re.M))
    os.kill(int(told["pid"]), signal.SIGKILL)
    assert told.get("length", "") == length.replace("LOG", str(log))


@pytest.mark.slow
def test_a_detached_run_is_seen_and_stopped_from_the_shell(
    wait_for, tmp_path, told, refused, monkeypatch, stopped_at_last
):
    out = tmp_path / "run"
    about = dict(re.findall(r"^  (\w+) +(.*)", told(*ENDLESS, "--detach", "--out", str(out)), flags=re.M))
    file = find_run(about["pid"])
    assert os.getsid(file.pid) == file.pid
    assert not (out / "summary.json").exists(), "the command has returned while the run goes on"
    assert about["dashboard"].startswith(f"{file.url}   (adaptive-rec dashboard")
    assert about["stop"].startswith("adaptive-rec stop ")
    assert told("dashboard").startswith(f"{file.url}/#c=")
    assert json.loads(told("status", "--json", "--run", "run"))["run"]["path"] == str(out)
    assert re.fullmatch(r"alpha 0.9 -> 0.8, took effect at step \d+\n", told("knobs", "set", "alpha=0.8"))
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", file.read_token)
    assert re.search(r"^alpha +0.8 ", told("knobs", "get", "alpha", "--url", file.url), flags=re.M)
    assert "may only read" in refused("pause", "--url", file.url, code=1)
    assert told("stop").startswith("stopping at step ")
    wait_for(lambda: under_way() == [])
    assert json.loads((out / "summary.json").read_text())["eval"]["auc"] > 0.4
    for path in out.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert file.control_token.encode() not in content, path
            assert file.read_token.encode() not in content, path


@pytest.mark.slow
def test_a_run_that_was_paused_stays_so_when_it_is_resumed(wait_for, tmp_path, told, stopped_at_last):
    """Though it writes no figures while it waits, the command returns."""
    out = tmp_path / "run"
    first = json.loads(told(*ENDLESS, "--detach", "--json", "--out", str(out)))["pid"]
    step = re.fullmatch(r"paused at step ([\d,]+)\n", told("pause"))[1]
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: under_way() == [])
    told("train", "--resume", "--detach", "--port=0", "--out", str(out))
    assert json.loads(told("status", "--json"))["phase"] == "paused"
    assert told("resume") == f"resumed at step {step}\n"
    assert told("stop").startswith("stopping at step ")
    wait_for(lambda: under_way() == [])
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert kinds.count("paused") == 2
