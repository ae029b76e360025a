"""A segment of rows on the disk that is cut off is named before a row of it is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adaptive_rec import checkpoint
from adaptive_rec.cli import main
from adaptive_rec.errors import CheckpointError
from tests.finished_runs import settings

SHORT = 64
"""Bytes that are left: a segment is made longer than the rows in it."""


def test_a_checkpoint_with_a_segment_cut_off_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, sets = tmp_path / "run", [f"--set={each}" for each in settings("disk")]
    assert main(["train", "tiny", "--no-serve", f"--out={run}", *sets]) == 0
    segment = max(run.rglob("*.rows"), key=lambda path: path.stat().st_size)
    with segment.open("r+b") as file:
        file.truncate(SHORT)
    with pytest.raises(CheckpointError, match=rf"must be whole, none is: .*{re.escape(segment.name)} must have .* got {SHORT}"):
        checkpoint.find(run / "checkpoints")
    assert main(["checkpoint", "verify", str(run)]) != 0
    assert "must have" in "".join(capsys.readouterr())
