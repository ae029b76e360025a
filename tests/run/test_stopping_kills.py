"""A run with patience whose process is killed at random moments chooses the same model as the uninterrupted one, bit by bit."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.run.test_stopping import KINDS, OVERFITS, assert_same, trained

WAIT_SECONDS = 240
RUN_SECONDS = 3.0
"""About what a run takes from its start to its end."""


def start(out: Path, log: Path, changes: list[str], ranks: int) -> Any:
    settings = [] if (out / "config.toml").exists() else ["tiny", *(f"--set={each}" for each in [*OVERFITS, *changes])]
    processes = [] if ranks == 1 else ["--processes", str(ranks)]
    with open(log, "ab") as output:
        words = ["train", *settings, "--no-serve", "--json", "--resume", "--out", str(out), *processes]
        return forked.start(words, output.fileno(), dict(os.environ))


def killed_often(tmp_path: Path, kills: int, *changes: str) -> None:
    """Kill a run after random times, each time further on, until it has had its kills or has ended; then start it again."""
    seed = int(os.environ.get("ADAPTIVE_REC_KILL_SEED", random.randrange(1 << 30)))
    print(f"seed of the kills: {seed} (ADAPTIVE_REC_KILL_SEED={seed} makes them again)")
    dice, number = random.Random(seed), 0
    trained(tmp_path / "whole", *changes)
    while number < kills:
        out, log = tmp_path / f"cut-{number}", tmp_path / f"log-{number}.txt"
        while True:
            process, deadline = start(out, log, list(changes), 1), time.monotonic() + dice.random() * RUN_SECONDS
            while process.poll() is None and time.monotonic() < deadline and number < kills:
                time.sleep(0.002)
            if number == kills or process.poll() is not None:
                assert process.wait(WAIT_SECONDS) == 0, log.read_text()
                break
            process.kill()
            if process.wait(WAIT_SECONDS) == 0:
                break
            number += (out / "config.toml").exists()
        assert_same(tmp_path / "whole", out)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_killed_some_times_chooses_the_same_model(tmp_path: Path) -> None:
    killed_often(tmp_path, 4)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["plain", "raw", "disk", "released"])
def test_a_run_killed_many_times_chooses_the_same_model(tmp_path: Path, kind: str) -> None:
    """`ADAPTIVE_REC_KILLS` of them, shared by the kinds."""
    killed_often(tmp_path, int(os.environ.get("ADAPTIVE_REC_KILLS", "100")) // 4, *KINDS[kind])
