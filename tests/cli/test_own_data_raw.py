"""CSV files trained on by raw ids from the command line: no folder is prepared, and a killed run goes on where it was."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests import forked

WORDS = ["--no-serve", "--set", "data.ids=raw", "--set", "data.max_table_rows=300", "--set", "run.batch_size=32"]
WORDS += ["--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]", "--set", "knobs.admit_after=2"]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two CSV files of 4,000 rows in all, and a run that was trained on them, in runs/whole."""
    folder, dice = tmp_path_factory.mktemp("raw"), random.Random(2)
    (folder / "clicks").mkdir()
    for part in (1, 2):
        with (folder / "clicks" / f"{part}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["label", "user_id", "item", "price"])
            for _ in range(2000):
                item = int(dice.paretovariate(0.6)) % 900
                price = "" if dice.random() < 0.1 else round(dice.gauss(50, 20), 2)
                rows.writerow([int(item % 3 == dice.randrange(3)), dice.randrange(400) - 9, f"item, {item}", price])
    assert main([*train_words(folder, "whole"), "--label", "label"]) == 0
    return folder


def train_words(folder: Path, run: str) -> list[str]:
    return ["train", "--data", str(folder / "clicks"), *WORDS, "--out", str(folder / "runs" / run)]


def summary(folder: Path, run: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads((folder / "runs" / run / "summary.json").read_text())
    return found


def test_nothing_is_prepared_and_the_schema_of_the_run_is_its_own(
    clicks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list((clicks / "runs" / "data").iterdir())
    assert [path.name[-12:] for path in kept] == [".schema.toml"]
    assert summary(clicks, "whole")["keys"]["keys"] > 300
    monkeypatch.chdir(clicks)
    raw = ["--label", "label", "--set", "data.ids=raw"]
    for words in (["plan", "--no-rehearsal", "--data", "clicks"], ["profile", "clicks"]):
        assert main([*words, *raw, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)
    assert main(["report", "runs/whole"]) == 0
    assert main(["eval", "runs/whole"]) == 0


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            ["train", "--data", "clicks", "--set", "data.schema_file=x.toml", "--set", "data.ids=auto"],
            'schema_file must be empty unless ids = "raw"',
        ),
        (
            ["train", "--set", "data.source=clicks", *WORDS, "--set", "data.schema_file=x.toml"],
            "data.schema_file x.toml cannot be",
        ),
        (["train", "--data", "clicks", *WORDS], r"a folder of CSV, TSV or Parquet files needs --label COLUMN"),
    ],
)
def test_what_raw_files_cannot_have_is_refused_by_name(
    clicks: Path, words: list[str], rule: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clicks)
    assert main(words) > 1
    assert re.search(rule, capsys.readouterr().err)


@pytest.mark.alone
def test_a_killed_run_goes_on_bit_by_bit(
    clicks: Path, capsys: pytest.CaptureFixture[str], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    words = [*train_words(clicks, "killed"), "--label", "label", "--set", "checkpoint.every_steps=10"]
    with open(os.devnull, "wb") as nothing:
        process = forked.start(words, nothing.fileno(), dict(os.environ))
    checkpoints = clicks / "runs" / "killed" / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("step-*0/MANIFEST.json")) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (clicks / "runs" / "killed" / "summary.json").exists()
    schema = clicks / "runs" / "clicks.schema.toml"
    before = schema.read_text()
    schema.write_text(before.replace('"item"', '{ column = "item", separator = "," }'))  # of runs that begin later
    assert main(["train", "--resume", "--out", str(clicks / "runs" / "killed"), "--no-serve"]) == 0
    schema.write_text(before)
    assert summary(clicks, "killed")["keys"] == summary(clicks, "whole")["keys"]
    assert summary(clicks, "killed")["eval"] == summary(clicks, "whole")["eval"]
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(clicks / "runs" / "whole"), str(clicks / "runs" / "killed")]) == 0
