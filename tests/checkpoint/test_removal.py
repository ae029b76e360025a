"""Old checkpoints are removed while other processes read, and while the run is killed: what is visible is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in
from adaptive_rec.checkpoint.history import hold_generation, newest_held, newest_valid, prune, verify_all
from adaptive_rec.cli import main
from adaptive_rec.errors import CheckpointError

from .histories import checked_step, name_of, write

ROOT = Path(__file__).parent.parent.parent

WRITER = """
import sys
from itertools import count
from pathlib import Path
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in
from adaptive_rec.checkpoint.history import prune
from tests.checkpoint.histories import write
folder = Path(sys.argv[1])
found = [int(name[5:]) for name in generations(names_in(DISK, folder))]
chain = ()
for step in count(max(found, default=0) + 1):
    chain = () if step % 3 == 1 else chain
    write(DISK, step, folder, on=chain)
    chain = (*chain, step)
    prune(DISK, folder, keep=2)
    print(step, flush=True)
"""
"""Writes checkpoints without end, of all rows and of changes, and removes old ones after each."""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that writes and removes checkpoints all the time."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    process = start(folder)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 4:
        pass
    threading.Thread(target=process.stdout.read, daemon=True).start()
    yield folder
    assert process.poll() is None, "the run has written all the time"
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("most", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_a_killed_run_leaves_only_whole_checkpoints_visible(folder: Path, most: int) -> None:
    folder.parent.mkdir()
    seed = random.randrange(1 << 32)
    rng, kills = random.Random(seed), 0
    while kills < most:
        process = start(folder)
        assert process.stdout is not None
        assert process.stdout.readline(), "the writer made a checkpoint"
        time.sleep(rng.random() / 5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        kills += 1
        visible = generations(names_in(DISK, folder))
        assert len(visible) >= min(kills, 2)
        for name in visible:
            try:
                verify_all(DISK, folder / name)
            except CheckpointError as error:
                raise AssertionError(f"seed {seed}, kill {kills}") from error


@pytest.mark.parametrize("times", [8, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["list", "verify", "export", "diff"])
def test_commands_beside_a_run_that_removes_checkpoints_call_none_damaged(
    command: str, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], times: int
) -> None:
    for number in range(times):
        words = [command, str(written.parent)]
        words += ["--out", str(tmp_path / f"export-{number}")] if command == "export" else []
        words += [str(written.parent)] if command == "diff" else []
        code = main(["checkpoint", *words])
        out, err = capsys.readouterr()
        assert code == 0 or (command, code) == ("diff", 1), f"{number}: {out}{err}"
        for wrong in ("damaged", "missing", "skipped", "failed", "must"):
            assert wrong not in out + err, f"{number}: {out}{err}"


def test_what_is_being_read_is_removed_later(folder: Path) -> None:
    folder.parent.mkdir()
    for step in (7, 40, 123):
        write(DISK, step, folder)
    for step in (180, 300):
        write(DISK, step, folder)
    with hold_generation(DISK, folder / name_of(40)):
        assert prune(DISK, folder, keep=2) == [name_of(123)], "40 is read, and builds on 7"
        assert checked_step(DISK, folder / name_of(40)) == 40
    assert prune(DISK, folder, keep=2) == [name_of(7), name_of(40)]


def test_a_checkpoint_that_is_gone_says_why(folder: Path) -> None:
    folder.parent.mkdir()
    write(DISK, 7, folder)
    removed = pytest.raises(CheckpointError, match="step-000000006 was removed by its run")
    with removed, hold_generation(DISK, folder / name_of(6)):
        pass


def test_a_search_that_meets_a_removal_starts_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is damaged, and the one before it goes while the damage is found."""
    folder.parent.mkdir()
    for step in (7, 40, 123):
        write(DISK, step, folder)
    (folder / name_of(123) / "state.json").write_text("{}")
    from adaptive_rec.checkpoint import history

    checked, real = [], history.Verified.damage

    def damage(self: history.Verified, name: str) -> str:
        checked.append(name)
        if len(checked) == 1:
            write(DISK, 180, folder)
            for gone in (40, 7):
                (folder / name_of(gone)).rename(folder / f".{name_of(gone)}.removed")
        return real(self, name)

    monkeypatch.setattr(history.Verified, "damage", damage)
    with newest_held(DISK, folder) as found:
        assert found.generation == folder / name_of(180)
        assert found.skipped == []
    assert newest_valid(DISK, folder).generation == folder / name_of(180)
