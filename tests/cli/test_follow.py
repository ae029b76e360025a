"""`train --follow`: a run that trains on lines as they are appended, is stopped, killed, resumed, and ends when nothing comes."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.dense.metrics import quality
from adaptive_rec.runtime.progressive import logits_of_losses
from tests import forked
from tests.cli.test_processes import ranks_of

SETTINGS = ["--set", "data.max_table_rows=300", "--set", "run.batch_size=32", "--set", "eval.every_steps=5"]
SETTINGS += ["--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]", "--set", "knobs.report_every=1"]
SETTINGS += ["--set", "knobs.reclassify_every=10", "--label", "label"]
WaitFor = Callable[[Callable[[], bool]], None]


def lines(count: int, seed: int) -> str:
    dice = random.Random(seed)
    rows = ((dice.randrange(2), int(dice.paretovariate(0.6)) % 900, round(dice.gauss(50, 20), 2)) for _ in range(count))
    return "".join(f'{label},"item, {item}",{price}\n' for label, item, price in rows)


def start(folder: Path, *more: str) -> Any:
    """Start a run in a process of its own, which has its libraries loaded."""
    words = [
        "train",
        "--data",
        str(folder / "clicks.csv"),
        "--follow",
        *SETTINGS,
        "--out",
        str(folder / "runs" / "a"),
        *more,
    ]
    with (folder / "log.txt").open("ab") as log:
        return forked.start(words, log.fileno(), dict(os.environ))


def metrics(folder: Path, event: str, run: str = "a") -> list[dict[str, Any]]:
    path = folder / "runs" / run / "metrics.jsonl"
    found = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return [each for each in found if each["event"] == event]


def newest_step(folder: Path) -> int:
    return max([each["step"] for each in metrics(folder, "snapshot")], default=0)


@pytest.mark.slow
@pytest.mark.alone
def test_a_run_follows_a_file_through_a_stop_and_a_kill(
    tmp_path: Path, wait_for: WaitFor, capsys: pytest.CaptureFixture[str]
) -> None:
    path, parts = tmp_path / "clicks.csv", [lines(count, seed) for seed, count in enumerate((650, 330, 340, 300))]
    path.write_text("label,item,price\n" + parts[0])
    quiet = ["--no-serve", "--set", "checkpoint.every_steps=3"]

    process = start(tmp_path, *quiet)
    wait_for(lambda: newest_step(tmp_path) == 20 or process.poll() is not None)
    with path.open("a") as file:
        file.write(parts[1])
    wait_for(lambda: newest_step(tmp_path) == 30 or process.poll() is not None)
    process.send_signal(signal.SIGTERM)  # while it waits for more
    assert process.wait(300) == 128 + signal.SIGTERM
    assert (tmp_path / "runs/a/checkpoints/step-000000030/MANIFEST.json").exists()

    with path.open("a") as file:
        file.write(parts[2])
    process = start(tmp_path, *quiet, "--resume")
    wait_for(lambda: newest_step(tmp_path) >= 36 or process.poll() is not None)
    process.kill()
    process.wait()

    with path.open("a") as file:
        file.write(parts[3])
    words = ["train", "--data", str(path), "--follow", "--set", "data.follow_idle_seconds=1", *SETTINGS, "--no-serve"]
    assert main([*words, "--out", str(tmp_path / "runs/a"), "--resume"]) == 0
    assert main([*words, "--out", str(tmp_path / "runs/whole")]) == 0
    summaries = [json.loads((tmp_path / "runs" / run / "summary.json").read_text()) for run in ("a", "whole")]
    assert summaries[0]["samples_seen"] == summaries[1]["samples_seen"] == 1620
    assert summaries[0]["keys"] == summaries[1]["keys"]
    assert summaries[0]["train_logloss"] == summaries[1]["train_logloss"]
    assert main(["report", str(tmp_path / "runs/a")]) == 0
    assert main(["eval", str(tmp_path / "runs/a")]) == 2
    assert "must have held-out samples" in capsys.readouterr().err
    assert main(["checkpoint", "diff", str(tmp_path / "runs/a"), str(tmp_path / "runs/whole")]) == 0


@pytest.mark.alone
def test_a_run_that_waits_obeys_its_clients(tmp_path: Path, wait_for: WaitFor, told: Callable[..., str]) -> None:
    (tmp_path / "clicks.csv").write_text("label,item,price\n" + lines(650, 1))
    process = start(tmp_path, "--port", "0", "--set", "checkpoint.every_seconds=1")
    wait_for(lambda: newest_step(tmp_path) == 20 or process.poll() is not None)
    run = str(tmp_path / "runs/a")
    wait_for(lambda: any((tmp_path / "runs/a/checkpoints").glob("step-000000020")))  # by the clock, while it waits
    for words in (["knobs", "set", "admit_after=3"], ["status"], ["stop"]):
        told(*words, "--run", run)
    assert process.wait(300) == 0
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert (summary["steps"], summary["followed"]) == (20, True)
    assert [each["samples"] for each in metrics(tmp_path, "evaluation")] == [160] * 4


@pytest.mark.slow
@pytest.mark.alone
def test_two_processes_follow_a_file_through_a_kill_and_a_stop(
    tmp_path: Path, wait_for: WaitFor, told: Callable[..., str]
) -> None:
    """Rank 1 is killed while both wait for data; started again, they train on what comes then, and obey."""
    path, out = tmp_path / "clicks.csv", tmp_path / "runs" / "a"
    first, later = lines(650, 1), lines(330, 2)
    path.write_text("label,item,price\n" + first)
    two = ["--processes", "2", "--set", "run.precision=float64", "--set", "checkpoint.every_steps=3"]
    process = start(tmp_path, *two, "--restarts", "1", "--port", "0")
    wait_for(lambda: newest_step(tmp_path) == 20 or process.poll() is not None)
    os.kill(ranks_of(out)[1], signal.SIGKILL)
    wait_for(lambda: (tmp_path / "log.txt").read_text().count("is followed") == 2 or process.poll() is not None)
    with path.open("a") as file:
        file.write(later)
    wait_for(lambda: newest_step(tmp_path) == 30 or process.poll() is not None)
    for words in (["pause"], ["resume"], ["stop"]):
        told(*words, "--run", str(out))
    assert process.wait(300) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["steps"], summary["processes"], summary["resumed_at_step"] > 0) == (30, 2, True)
    scored = {each["step"]: each["samples"] for each in metrics(tmp_path, "evaluation")}
    assert scored == dict.fromkeys(range(5, 31, 5), 160)

    whole = ["--no-serve", "--out", str(tmp_path / "runs" / "whole")]
    assert start(tmp_path, *two, *whole, "--steps", "30").wait(120) == 0
    assert main(["checkpoint", "diff", str(out), str(tmp_path / "runs" / "whole")]) == 0


def test_losses_lead_back_to_the_logits() -> None:
    random = np.random.default_rng(1)
    logits, labels = random.normal(0, 6, 4000), (random.random(4000) < 0.3).astype(np.float32)
    losses = np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    np.testing.assert_allclose(logits_of_losses(losses, labels), logits, rtol=1e-9, atol=1e-9)
    again = quality(labels, logits_of_losses(losses, labels))
    assert again.auc == quality(labels, logits).auc
    extreme = logits_of_losses(np.array([0.0, 0.0, 1e30]), np.array([1.0, 0.0, 1.0]))
    assert (extreme > 0).tolist() == [True, False, False]
    assert np.isfinite(extreme).all()


def test_a_run_that_follows_is_planned_on_the_rows_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clicks.csv"
    words = ["train", "--data", str(path), *SETTINGS, "--out", str(tmp_path / "runs" / "a"), "--json", "--follow"]
    plans = []
    for count in (400, 20):  # more than a batch, and less
        path.write_text("label,item,price\n" + lines(count, 1) + '0,"half a li')
        assert main([*words, "--dry-run"]) == 0
        plans.append({part["name"]: part["bytes"] for part in json.loads(capsys.readouterr().out)["parts"]})
    assert plans[0].keys() == plans[1].keys() >= {"raw ids and their rows", "data being read", "batches ahead"}
    assert not (tmp_path / "runs" / "a").exists()
