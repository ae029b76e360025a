"""The wheel and the sdist install into an empty environment and run there. Takes minutes, most of them for pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Built

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
WAIT_SECONDS = 900

SCRIPT = """
import torch, adaptive_rec
bag = adaptive_rec.AdaptiveEmbeddingBag(50, 4, mode="sum", optimizer="sgd", lr=0.5, budget="4KiB")
before = bag.weight.clone()
bag(torch.tensor([[1, 2], [2, 3]])).sum().backward()
moved = before - bag.weight
assert torch.allclose(moved[1:4], torch.tensor([[0.5], [1.0], [0.5]]).expand(3, 4)), moved[:5]
print(bag.runtime.stats().steps)
"""


class Environment:
    """A virtual environment outside of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.folder = folder / "environment" / "bin", folder
        made = self._try([sys.executable, "-m", "venv", self.bin.parent])
        if made.returncode and self._try([sys.executable, "-m", "virtualenv", self.bin.parent]).returncode:
            pytest.skip("no virtual environment can be made here: install python3-venv or virtualenv")

    def run(self, program: str, *words: str) -> str:
        """Run a program of the environment; return what it prints, errors included."""
        done = self._try([self.bin / program, *words])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *words: object) -> None:
        done = self._try(
            [self.bin / "python", "-m", "pip", "install", "-c", ROOT / "constraints.txt", *map(str, words)]
        )
        if "No matching distribution found for torch" in done.stderr:
            pytest.skip("no package index can be reached that has torch")
        assert done.returncode == 0, done.stderr

    def _try(self, words: list[object]) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "HTTP", "NO_PROXY"))}
        return subprocess.run(
            list(map(str, words)),
            cwd=self.folder,
            env={**kept, "PATH": "/usr/bin:/bin", "HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )


def test_wheel_and_sdist_install_into_an_empty_environment_and_run(built: Built, tmp_path: Path) -> None:
    """With their dependencies and nothing else, the command line, a run with its service, and the modules work."""
    environment = Environment(tmp_path)
    environment.install(built.wheel)
    assert environment.run("python", "-m", "pip", "check") == "No broken requirements found.\n"
    assert "examples" in environment.run("adaptive-rec", "train", "--help")
    assert "0 problems" in environment.run("adaptive-rec", "doctor")
    assert "dashboard   http://127.0.0.1:" in environment.run(
        "adaptive-rec", "train", "tiny", "--steps=12", "--out=run"
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 12
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [each["text"] for each in events if each["kind"] in {"warning", "failed"}] == []
    assert environment.run("python", "-c", SCRIPT) == "1\n"
    environment.run("python", "-m", "pip", "uninstall", "--yes", "adaptive-rec")
    environment.install("--no-deps", built.sdist)
    assert environment.run("python", "-c", SCRIPT) == "1\n"
    assert "table_rows" in environment.run("adaptive-rec", "train", "tiny", "--print-config")
