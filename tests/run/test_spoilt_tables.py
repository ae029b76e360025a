"""A configuration that names other tables than the checkpoint has: it is refused before memory is taken for them."""

from __future__ import annotations

import pytest

from adaptive_rec.cli import main
from adaptive_rec.run import resume
from tests.finished_runs import FinishedRun


@pytest.mark.parametrize("words", [["eval"], ["train", "--resume", "--no-serve", "--steps=44", "--out"]])
def test_tables_of_another_size_are_not_made(
    finished_run: FinishedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    run = finished_run("raw")
    config = (run / "config.toml").read_text()
    assert "max_table_rows = 500\n" in config
    (run / "config.toml").write_text(config.replace("max_table_rows = 500\n", "max_table_rows = 100000000\n"))
    monkeypatch.setattr(resume, "assemble", lambda *_, **__: pytest.fail("it makes the tables"))
    assert main([*words, str(run)]) == 5
    assert "data.max_table_rows of checkpoint" in (error := capsys.readouterr().err)
    assert "must be 500, got 100000000" in error
