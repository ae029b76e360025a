"""A configuration that names other tables than the checkpoint has: it is refused before memory is taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.run import resume
from tests.settings import TINY

SETTINGS = [f"--set={each}" for each in (*TINY, "run.steps=2", "data.ids=raw", "data.max_table_rows=600")]


@pytest.mark.parametrize("words", [["eval"], ["train", "--resume", "--no-serve", "--steps=4", "--out"]])
def test_tables_of_another_size_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "--no-serve", "--out", str(run), *SETTINGS]) == 0
    config = (run / "config.toml").read_text()
    assert "max_table_rows = 600\n" in config
    (run / "config.toml").write_text(config.replace("max_table_rows = 600\n", "max_table_rows = 100000000\n"))
    monkeypatch.setattr(resume, "assemble", lambda *_, **__: pytest.fail("it makes the tables"))
    assert main([*words, str(run)]) == 5
    assert "data.max_table_rows of checkpoint" in (error := capsys.readouterr().err)
    assert "must be 600, got 100000000" in error
