"""What goes with raw ids only, or not with raw ids, is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.knobs import KnobError
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import TrainingError
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions

RAW = ["--set", "data.ids=raw"]


def test_simulate_replays_only_policies_that_train_on_raw_ids(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "tiny", "--steps", "5", "--budgets", "8KiB", *RAW, "--set", "knobs.evict_ratio=0.1"]
    assert main([*words, "--policies", "hotline,fae"]) == 2
    assert "knobs.evict_ratio must be 0 under a policy that reorders the stream" in capsys.readouterr().err
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("hotline", "cdlrm", "oracle", "xdl"))
    assert not any(name in shown for name in ("fae", "slipstream_released"))


@pytest.mark.parametrize("command", ["train", "plan", "simulate"])
def test_a_knob_for_raw_ids_is_refused_where_ids_are_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    more = ["--no-serve", "--out", str(tmp_path / "run")] if command == "train" else []
    assert main([command, "tiny", "--set", "knobs.admit_after=3", *more]) == 2
    assert 'knobs.admit_after must be 1 unless data.ids = "raw", got 3' in capsys.readouterr().err


def test_a_change_of_it_while_such_a_run_trains_is_refused_too(tmp_path: Path) -> None:
    runtime = assemble(load_config("tiny", {}, []), options=RunOptions(rows=tmp_path))
    with pytest.raises(
        KnobError, match=r"knobs.admit_after must be 1, as the ids of this run are rows \(data.ids\), got 2"
    ):
        runtime.mailbox.change_knobs(admit_after=2)
    runtime.mailbox.change_knobs(alpha=0.5)
    assert [command.values for command in runtime.mailbox.drain()] == [{"alpha": 0.5}]


@pytest.mark.parametrize(("ids", "word"), [("raw", "row"), ("auto", "id")])
def test_a_faulty_sample_is_shown_with_rows_that_are_not_called_ids(tmp_path: Path, ids: str, word: str) -> None:
    settings = [f"data.ids={ids}", "optimizer.dense_lr=1e30", "run.steps=9"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path))
    with pytest.raises(TrainingError, match=rf"which looks up C1 {word} \d+, C2 {word} \d+, "):
        list(runtime.run())
