"""Spoilt files of a run directory: every command shows what is whole or ends with an error."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests.run import spoilt
from tests.run.spoilt import faults

MUTATIONS, COMMANDS, ALL = 9, 3, 2000
"""Spoilt files of a test, commands that it executes over each of the few, and many spoilt files."""
SEED = 20261126


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a file of its own, with checkpoints of which some have changed rows only."""
    folder, dice = tmp_path_factory.mktemp("whole"), random.Random(1)
    rows = [
        f"{int(dice.random() < 0.3)},u{dice.randrange(400)},i{dice.randrange(900)},{dice.random():.3f}"
        for _ in range(3000)
    ]
    (folder / "clicks.csv").write_text("\n".join(["label,user,item,price", *rows]) + "\n")
    words = [
        "--data",
        str(folder / "clicks.csv"),
        "--label",
        "label",
        "--steps",
        "40",
        "--out",
        str(folder / "run"),
        "--no-serve",
    ]
    for setting in ("run.batch_size=64", "checkpoint.every_steps=10", "knobs.report_every=5", "eval.every_steps=10"):
        words += ["--set", setting]
    assert main(["train", *words]) == 0
    return folder / "run"


def test_no_spoilt_file_makes_a_command_fail(whole: Path, tmp_path: Path) -> None:
    """Each command meets about as many of them."""
    assert list(faults(whole, tmp_path, MUTATIONS, SEED, some=COMMANDS)) == []


def test_a_command_that_changes_the_run_is_found(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that trains may change it."""

    def changes_it(name: str, run: Path, out: Path) -> tuple[str, str, float]:
        (run / "new").write_text(name)
        return "", "", 0.0

    monkeypatch.setattr(spoilt, "timed", changes_it)
    found = list(faults(whole, tmp_path, 2, SEED, names=["report", "resume"]))
    assert [text.split(":")[0] for text in found] == ["0 report", "1 report"]
    assert all("the run has changed" in text for text in found)


@pytest.mark.slow
def test_no_command_fails_over_any_of_some_spoilt_files(whole: Path, tmp_path: Path) -> None:
    assert list(faults(whole, tmp_path, MUTATIONS, SEED)) == []


@pytest.mark.long
def test_none_of_2000_spoilt_files_makes_a_command_fail(whole: Path, tmp_path: Path) -> None:
    assert list(faults(whole, tmp_path, ALL, SEED + 1)) == []
