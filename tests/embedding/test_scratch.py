"""Folders of rows that no checkpoint names go with their store, with their process, or with the next folder beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive_rec.embedding.disk.scratch import ScratchFolder

KILLED = """
import os, signal, sys
from pathlib import Path
from adaptive_rec.embedding.disk.scratch import ScratchFolder
folder = ScratchFolder(Path(sys.argv[1]), "rows-")
(folder.path / "000.rows").write_bytes(b"rows")
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_in(folder: Path) -> Path:
    """Have a process make a folder and be killed. Returns the folder it left."""
    before = set(folder.iterdir())
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    (left,) = set(folder.iterdir()) - before
    return left


def test_a_killed_process_s_folder_goes_with_the_next_one(tmp_path: Path) -> None:
    with ScratchFolder(tmp_path, "rows-") as other:
        left = killed_in(tmp_path)
        assert (left / "000.rows").exists()

        with ScratchFolder(tmp_path, "rows-") as mine:
            assert not left.exists()
            assert mine.path.exists()
            assert other.path.exists(), "a folder in use stays"

    assert not list(tmp_path.iterdir())


def test_a_forked_process_leaves_the_folder_to_its_own(tmp_path: Path) -> None:
    folder = ScratchFolder(tmp_path, "rows-")
    child = os.fork()
    if not child:
        with folder:
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.exists()
    del folder
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["rows-mine", "other"])
def test_folders_that_are_no_scratch_folders_stay(tmp_path: Path, name: str) -> None:
    kept = tmp_path / name
    kept.mkdir()
    (kept / "000.rows").write_bytes(b"rows")

    with ScratchFolder(tmp_path, "rows-"):
        pass

    assert (kept / "000.rows").exists()
