"""Figures of a run for a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.errors import UsageError
from adaptive_rec.offline.compare.measures import read_figures
from adaptive_rec.offline.compare.processes import ProcessEnd


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "summary.json").write_text('{"seconds": 1.0, "row_updates": "many"}')
    end = ProcessEnd(exit_code=0, process_seconds=1.0, started=0.0, conditions="", code="")
    with pytest.raises(UsageError, match=r"summary.json must be of a finished run, it lacks device, .*row_updates, .*remove"):
        read_figures(tmp_path, end)
