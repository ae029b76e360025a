"""Several starts at once on one file, in one folder: each one trains, in a directory of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from adaptive_rec.system.drafts import is_draft
from tests import forked

pytestmark = pytest.mark.alone
SMALL = ["--no-serve", "--set=model.bottom_mlp=[8]", "--set=model.top_mlp=[8]", "--set=run.threads=1"]
TRAIN = ["train", "--data", "clicks.csv", "--label", "y", "--steps", "2", "--json", *SMALL]
PROCESSES = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"{number % 3 == 0:d},{number % 37},item-{number % 53},{number}.5\n" for number in range(800)]
    (tmp_path / "clicks.csv").write_text("y,user,item,price\n" + "".join(rows))
    return tmp_path


def at_once(folder: Path, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Start commands at once. Returns exit code and output of each."""
    logs = [folder / f"log-{number}" for number in range(len(commands))]
    started = []
    for log, words in zip(logs, commands, strict=True):
        with open(log, "wb") as output:
            started.append(forked.start(words, output.fileno(), dict(os.environ), folder))
    ends = [process.wait(240) for process in started]
    return [(code, log.read_text()) for code, log in zip(ends, logs, strict=True)]


def check_runs(folder: Path, number: int) -> None:
    """As many runs ended, the same ones, and no process left a draft or a half-made folder."""
    runs = [path.parent for path in folder.glob("runs/*/summary.json")]
    scores = {json.loads((run / "summary.json").read_text())["eval"]["logloss"] for run in runs}
    assert (len(runs), len(scores)) == (number, 1), runs
    assert len(list(folder.glob("runs/*.schema.toml"))) == 1
    assert not [path for path in folder.rglob("*") if is_draft(path.name) or path.name.endswith(".part")]


def test_two_starts_on_one_file(folder: Path) -> None:
    for code, told in at_once(folder, [TRAIN] * 2):
        assert code == 0, told
    check_runs(folder, 2)


@pytest.mark.slow
@pytest.mark.parametrize("raw", [False, True])
def test_eight_starts_on_one_file(folder: Path, raw: bool) -> None:
    for code, told in at_once(folder, [[*TRAIN, *["--set=data.ids=raw"] * raw]] * PROCESSES):
        assert code == 0, told
    check_runs(folder, PROCESSES)
    assert len(list(folder.glob("runs/data/*"))) == 1


@pytest.mark.slow
def test_eight_commands_on_one_run(folder: Path) -> None:
    """Scores, pages and an exported model: each is whole, whoever wrote it."""
    ((code, told),) = at_once(folder, [[*TRAIN, "--out", "runs/a"]])
    assert code == 0, told
    words = [
        ["predict", "runs/a", "--data", "clicks.csv", "--out", "scores.csv"],
        ["report", "runs/a"],
        ["export", "runs/a", "--to", "model"],
        ["data", "prepare", "clicks.csv", "--label", "y", "--out", "prepared"],
    ]
    ends = at_once(folder, [each for each in words for _ in range(2)])
    assert [code for code, _ in ends[:4]] == [0] * 4, ends
    for (one, told), (other, more) in zip(ends[4::2], ends[5::2], strict=True):
        assert sorted((one, other)) in ([0, 0], [0, 2]), told + more
        assert 0 in (one, other)
        for code, text in ((one, told), (other, more)):
            refusals = ("must be a folder that can be made", "must be a new directory", "is being prepared by another process")
            assert code == 0 or any(rule in text for rule in refusals), text
    assert len((folder / "scores.csv").read_text().splitlines()) == 801
    assert (folder / "runs" / "a" / "report.html").read_text().endswith("</html>")
    assert (folder / "model" / "model.py").is_file()
    assert (folder / "prepared" / "meta.json").is_file()
    assert not [path for path in folder.rglob("*") if is_draft(path.name) or path.name.endswith(".part")]


@pytest.mark.slow
def test_eight_starts_in_one_directory(folder: Path) -> None:
    """One of them has it, and the others are refused by name and leave it as it is."""
    ends = at_once(folder, [[*TRAIN, "--out", "runs/a"]] * PROCESSES)
    assert sorted(code for code, _ in ends) == [0, *[2] * (PROCESSES - 1)], ends
    for code, told in ends:
        assert code == 0 or "another one trains there" in told or "must be a new directory" in told, told
    check_runs(folder, 1)


@pytest.mark.slow
def test_four_detached_starts_in_one_directory(folder: Path) -> None:
    """The log of the one that trains is in its directory, and those of the others are said and gone."""
    ends = at_once(folder, [[*TRAIN, "--detach", "--out", "runs/a"]] * 4)
    assert sorted(code for code, _ in ends) == [0, 2, 2, 2], ends
    assert "Traceback" not in str(ends)
    assert (folder / "runs" / "a" / "log.txt").is_file()
    assert {path.name for path in (folder / "runs").iterdir()} == {"a", "data", "clicks.schema.toml"}


@pytest.mark.slow
def test_a_folder_that_another_process_prepares_is_waited_for(folder: Path) -> None:
    plan = ["plan", "--data", "clicks.csv", "--label", "y", "--no-rehearsal", "--json"]
    ends = at_once(folder, [plan] * 4)
    assert [code for code, _ in ends] == [0] * 4, ends
    assert len(list(folder.glob("runs/data/*"))) == 1
