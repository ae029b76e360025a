"""A short run that tests copy and spoil."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests.settings import TINY

SETTINGS = [f"--set={each}" for each in (*TINY, "run.steps=4", "checkpoint.every_steps=2")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of four steps with two checkpoints."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "--no-serve", "--out", str(out), *SETTINGS]) == 0
    return out
