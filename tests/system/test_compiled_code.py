"""Other users of a machine cannot put code where torch looks for what it has compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive_rec.kernels.jit import cache_folder
from adaptive_rec.system.compiled_code import VARIABLE, keep_to_ourselves

SCRIPT = """
from adaptive_rec.cli import main
import torch
torch.compile = lambda model, dynamic: model
words = ["train", "tiny", "--no-serve", "--steps=2", "--out", "run", "--set=run.device=cpu", "--set=run.compile=true"]
assert main(words) == 0
from torch._inductor.runtime.cache_dir_utils import cache_dir
print("KEPT IN", cache_dir())
"""

LOADING_TORCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("KEPT IN", os.environ.get("TORCHINDUCTOR_CACHE_DIR"), flush=True)
            os._exit(0)

from adaptive_rec.cli import main
from adaptive_rec.system.libraries import import_quickly
import_quickly()
sys.meta_path.insert(0, Watch())  # before the finder of the command, which would find torch first
main(["train", "tiny", "--no-serve", "--steps=2", "--out", "run", "--set=run.device=cpu", "--set=run.compile=true"])
"""


@pytest.mark.parametrize("script", [LOADING_TORCH, pytest.param(SCRIPT, marks=pytest.mark.slow)], ids=["until torch", "whole"])
def test_a_run_that_compiles_keeps_the_code_in_the_users_folder(tmp_path: Path, script: str) -> None:
    """The import of torch settles the folder, so a process of its own shows what is named by then, and what torch takes."""
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment = {**kept, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.setdefault("NUMBA_CACHE_DIR", str(cache_folder()))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"KEPT IN {tmp_path}/adaptive-rec/torch\n" in done.stdout, done.stderr[-2000:]


def test_a_folder_that_is_named_is_kept_and_one_that_cannot_be_made_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for given in ({VARIABLE: "/mine"}, {"XDG_CACHE_HOME": str(tmp_path / "file")}):
        environment = dict(given)
        keep_to_ourselves(environment)
        assert environment == given
