"""Every command that takes a run, over every kind of data and of numbers: it is served, or refused by name with what to do.

The right values are the run's own: scores of its held-out rows as a file are those of its evaluation, and the exported model,
which is plain torch, gives the scores of `predict`.
"""

from __future__ import annotations

import csv
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.offline.export import model as loader
from adaptive_rec.runtime import capabilities, start_checks

ROWS, HELD = 600, 60
NUMBERS = {
    "float32": [],
    "float64": ["run.precision=float64"],
    "bf16": ["run.precision=bf16"],
    "tf32": ["run.precision=tf32"],
    "rows of bf16": ["run.row_precision=bf16"],
    "rows of fp16": ["run.row_precision=fp16"],
}
SETTINGS = [
    "model.bottom_mlp=[8]", "model.top_mlp=[8]", "run.batch_size=64", "run.steps=4", "run.device=cpu", "run.threads=1",
    "checkpoint.every_steps=2", "knobs.hot_budget_bytes=16KiB", "data.max_table_rows=500",
]  # fmt: skip
KINDS = {
    "criteo": ["--data", "train.txt"],
    "criteo, folded": ["--data", "train.txt", "--set", "data.ids=hash", "--set", "data.max_table_rows=50"],
    "criteo, cut": ["--data", "train.txt", "--set", "data.max_table_rows=20"],
    "criteo, raw": ["--data", "train.txt", "--set", "data.ids=raw"],
    "criteo, prepared": ["--data", "criteo"],
    "csv": ["--data", "clicks.csv", "--label", "y"],
    "csv, raw": ["--data", "clicks.csv", "--label", "y", "--set", "data.ids=raw"],
    "csv, followed": ["--data", "clicks.csv", "--label", "y", "--follow", "--set", "data.follow_idle_seconds=0.1"],
    "synthetic": ["--set", "data.synthetic.samples=600", "--set", "data.synthetic.test_samples=60"],
}
NO_NAMES = "whose columns have names and values"
REFUSED = {
    **{("synthetic", what): NO_NAMES for what in ("eval file", "predict", "export")},
    ("synthetic", "nearest"): NO_NAMES,
    ("criteo, folded", "nearest"): 'data.ids must be "auto", "contiguous" or "raw"',
    ("criteo, cut", "nearest"): "data.max_table_rows has cut its table to 20 rows",
    ("csv, followed", "eval"): "metrics.jsonl has the score of each window",
    ("csv, followed", "plan"): "data.follow must be false but for a run that trains",
}
"""What is refused of a kind of data, with words that say why or what to do; all else is served."""
CLOSE = {"bf16": 2e-2, "tf32": 1e-5}
"""How far an exported model's scores may be from the run's: it computes in float32 what was trained in these."""


def write_data(folder: Path) -> None:
    """Write the same kind of clicks as a CSV file and as a Criteo file, and their held-out rows as files of their own."""
    dice, lines, rows = random.Random(5), [], []
    for _ in range(ROWS):
        values = [f"{dice.randrange(40) + (feature << 12):08x}" if dice.random() > 0.1 else "" for feature in range(26)]
        counts = [str(dice.randrange(-2, 90)) if dice.random() > 0.1 else "" for _ in range(13)]
        label = str(int(dice.random() < 0.4))
        lines.append("\t".join([label, *counts, *values]) + "\n")
        rows.append([label, dice.randrange(30), f"item {dice.randrange(50)}", round(dice.gauss(9, 4), 3)])
    for name, part in (("train.txt", lines), ("held.txt", lines[-HELD:])):
        (folder / name).write_text("".join(part))
    (folder / "unlabelled.txt").write_text("".join(line.partition("\t")[2] for line in lines[-HELD:]))
    for name, some in (("clicks.csv", rows), ("held.csv", rows[-HELD:])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([["y", "user", "item", "price"], *some])


class Place:
    """A folder with data, and the runs that were trained there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(folder)
        self.folder, self._capsys = folder, capsys

    def command(self, *words: str) -> tuple[int, str]:
        """Return exit code, and what a command says."""
        self._capsys.readouterr()
        code = main(list(words))
        said = self._capsys.readouterr()
        return code, said.err if code else said.out

    def run(self, kind: str, numbers: str) -> str:
        """Return a run of a kind, trained unless it is there."""
        name = f"runs/{re.sub('[^a-z0-9]+', '-', f'{kind} {numbers}')}"
        if kind == "criteo, prepared" and not Path("criteo").exists():
            assert self.command("data", "prepare", "train.txt", "--out", "criteo")[0] == 0
        if not Path(name, "summary.json").exists():
            held = [] if kind in ("csv, followed", "synthetic") else ["data.test_range=[0.9, 1.0]"]
            sets = [word for one in (*SETTINGS, *held, *NUMBERS[numbers]) for word in ("--set", one)]
            with pytest.MonkeyPatch.context() as patched:
                if numbers == "tf32":  # as on a GPU
                    for module in (start_checks, capabilities):
                        patched.setattr(module, "check_features", lambda *_: None)
                code, said = self.command("train", *sets, *KINDS[kind], "--no-serve", "--out", name)
            assert code == 0, said
        return name


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture
def place(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(data, monkeypatch, capsys)


def column(path: Path) -> np.ndarray[Any, Any]:
    return np.array(path.read_text().split()[1:], dtype=float)


def check(place: Place, kind: str, numbers: str) -> None:
    """Give every command that takes a run this one."""
    run, ending = place.run(kind, numbers), "txt" if kind.startswith("criteo") else "csv"
    new = f"{run}-new"
    nearest = {"t": ["C2", "0x00001001" if "raw" in kind else "00001001"], "c": ["item", "item 7"]}[ending[0]]
    commands = {
        "eval": ["eval", run, "--json"],
        "eval file": ["eval", run, "--data", f"held.{ending}", "--json"],
        "predict": ["predict", run, "--data", f"held.{ending}", "--out", f"{new}.csv"],
        "export": ["export", run, "--to", f"{new}-model", "--json"],
        "nearest": ["nearest", run, *nearest, "--json"],
        "report": ["report", run, "--out", f"{new}.html"],
        "branch": ["branch", run, "--no-train", "--out", f"{new}-branch"],
        "checkpoint list": ["checkpoint", "list", run],
        "checkpoint verify": ["checkpoint", "verify", run],
        "checkpoint export": ["checkpoint", "export", run, "--out", f"{new}-tables"],
        "plan": ["plan", f"{run}/config.toml", "--no-rehearsal", "--json"],
    }
    if numbers == "tf32":  # it is about this machine, which has no TF32
        del commands["plan"]
    said = {}
    for what, words in commands.items():
        code, said[what] = place.command(*words)
        if (kind, what) in REFUSED:
            assert (code, REFUSED[kind, what] in said[what]) == (2, True), (what, said[what])
        else:
            assert code == 0, (what, said[what])
    if (kind, "predict") not in REFUSED:
        check_scores(place, kind, numbers, run, said)


def check_scores(place: Place, kind: str, numbers: str, run: str, said: dict[str, str]) -> None:
    """Compare the scores of a run, of its held-out rows as a file, and of its exported model."""
    ending = "txt" if kind.startswith("criteo") else "csv"
    file = json.loads(said["eval file"])
    if kind != "csv, followed":
        own = json.loads(said["eval"])
        assert file["samples"] == own["samples"] == HELD
        assert file["logloss"] == pytest.approx(own["logloss"], abs=1e-7 if numbers != "float64" else 1e-12)
    scores, model = column(place.folder / f"{run}-new.csv"), place.folder / f"{run}-new-model"
    files = [f"held.{ending}", *["unlabelled.txt"] * (ending == "txt")]
    for name in files:
        exported = loader.Model(model)
        theirs = exported.scores(loader.table_of(name, **exported.facts["file"])).numpy()
        assert len(theirs) == HELD
        assert np.abs(theirs - scores).max() <= CLOSE.get(numbers, 1e-6)
    if ending == "txt":
        code, text = place.command("predict", run, "--data", "unlabelled.txt", "--out", f"{run}-unlabelled.csv")
        assert code == 0, text
        assert (column(place.folder / f"{run}-unlabelled.csv") == scores).all()


def test_a_run_on_a_criteo_file_in_float64_is_served(place: Place) -> None:
    check(place, "criteo", "float64")


@pytest.mark.slow
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_serves_a_run_or_says_what_to_do(place: Place, kind: str, numbers: str) -> None:
    if (kind, numbers) != ("criteo", "float64"):  # above
        check(place, kind, numbers)


@pytest.mark.slow
def test_the_exported_model_scores_a_criteo_file_in_a_process_of_its_own(place: Place) -> None:
    run = place.run("criteo", "float32")
    assert place.command("export", run, "--to", "alone")[0] == 0
    assert place.command("predict", run, "--data", "held.txt", "--out", "alone.csv")[0] == 0
    done = subprocess.run([sys.executable, "alone/model.py", "held.txt"], capture_output=True, text=True, check=True)
    assert np.abs(np.array(done.stdout.split(), dtype=float) - column(Path("alone.csv"))).max() <= 1e-6


def test_values_that_a_criteo_file_does_not_have_are_counted_and_add_nothing(place: Place) -> None:
    """A new value reads no row, so it scores as the mean of rows that are not trained, which is zero."""
    run = place.run("criteo", "float64")
    line = Path("held.txt").read_text().partition("\n")[0].split("\t")
    Path("strange.txt").write_text("\t".join([*line[:-1], "ffffffff"]) + "\n")
    code, said = place.command("predict", run, "--data", "strange.txt", "--out", "strange.csv", "--json")
    assert (code, json.loads(said)["unknown"]["C26"]) == (0, 1.0), said
    assert place.command("export", run, "--to", "strange-model")[0] == 0
    exported = loader.Model(place.folder / "strange-model")
    theirs = exported.scores(loader.table_of("strange.txt", **exported.facts["file"])).numpy()
    assert theirs == pytest.approx(column(Path("strange.csv")), abs=1e-7)
    with pytest.raises(ValueError, match="column 'C26', row 1: must be a hexadecimal number of at most 8 digits, got 'zz'"):
        exported.scores({**loader.table_of("strange.txt", **exported.facts["file"]), "C26": ["zz"]})


@pytest.mark.parametrize("gone", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_criteo_file_that_is_gone_or_another_one_is_refused_by_name(place: Place, tmp_path: Path, gone: bool) -> None:
    """Its values have their numbers from it."""
    train, name = tmp_path / "own.txt", str(tmp_path / "run")
    train.write_text(Path("train.txt").read_text())
    sets = [word for one in (*SETTINGS, "data.test_range=[0.9, 1.0]") for word in ("--set", one)]
    assert place.command("train", "--data", str(train), *sets, "--no-serve", "--out", name)[0] == 0
    train.unlink()
    if not gone:
        train.write_text("\n".join(Path("train.txt").read_text().splitlines()[1::2]) + "\n")
    for words in (["predict", name, "--data", "held.txt", "--out", "gone.csv"], ["export", name, "--to", "gone"]):
        code, said = place.command(*words)
        assert code in (2, 5), said
        assert ("needs the file or folder that it was trained on" if gone else "checkpoint") in said, said
