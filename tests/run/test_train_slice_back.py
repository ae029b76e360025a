"""A run that goes back from its validation slice or at the end of its passes, and a replay of what was changed on both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive_rec.live.mailbox import Command
from adaptive_rec.run.training_run import TrainingRun
from tests.run.test_stopping import assert_same, outcome, roll_back_to, trained
from tests.run.test_train_slice import SLICE, STOP, straight_run


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return straight_run(tmp_path_factory.mktemp("straight") / "run")


def steered_in_both_parts(run: TrainingRun, step: int) -> None:
    on_slice = run.runtime.state.position.on_slice
    rate = {(24, False): 0.5, (21, True): 0.1}.get((step, on_slice))
    if rate is not None:
        run.runtime.mailbox.change_knobs(lr_factor=rate)


def test_a_replay_repeats_what_was_changed_before_the_run_went_back_and_after_it(tmp_path: Path, straight: Path) -> None:
    trained(tmp_path / "whole", *SLICE, steered=steered_in_both_parts)
    trained(tmp_path / "again", *SLICE, replay=tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "again")
    assert outcome(straight)["scores"] != outcome(tmp_path / "whole")["scores"], "otherwise the test shows nothing"
    assert outcome(straight)["last"] != outcome(tmp_path / "whole")["last"]


def test_a_run_goes_back_from_the_slice_to_its_passes_and_leaves_out_nothing_of_the_slice(tmp_path: Path, straight: Path) -> None:
    sent = []

    def back(run: TrainingRun, step: int) -> None:
        if run.runtime.state.position.on_slice and not sent:
            sent.append(step)
            skipping = {"checkpoint": None, "to_step": 11, "skip_data": True, "knobs": {}}
            run.runtime.mailbox.send(Command("rollback", skipping))
            run.runtime.mailbox.send(roll_back_to(11))

    trained(tmp_path / "back", *SLICE, steered=back)
    assert sent
    events = [json.loads(line) for line in (tmp_path / "back" / "events.jsonl").read_text().splitlines()]
    said = [each["text"] for each in events if each["kind"] == "warning"]
    assert any("skip_data must be false while the validation slice is trained on, got true" in text for text in said)
    assert [each["details"]["on_slice"] for each in events if each["kind"] == "rolled_back"] == [True, False, True]
    assert_same(straight, tmp_path / "back")


@pytest.mark.parametrize("slice_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_rule_goes_back_at_the_step_of_an_early_stop(tmp_path: Path, slice_too: bool) -> None:
    """The stopping evaluation is also the first that the rule breaks on, so the run goes on from before it with other knobs."""
    out = tmp_path / "run"
    changes = [*SLICE, "data.epochs=4", f"eval.train_slice={str(slice_too).lower()}"]
    trained(tmp_path / "plain", *changes)
    scores = outcome(tmp_path / "plain")["scores"]
    before, at = (scores[step]["logloss"] for step in (STOP - 10, STOP))
    assert before < at, "otherwise the rule breaks earlier"
    rule = f'watch.rules=["logloss > {(before + at) / 2}: rollback with lr_factor*=0.01"]'
    trained(out, *changes, rule)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    kinds = [each["kind"] for each in events if each["kind"] in ("stopped_early", "rolled_back", "watchdog")]
    assert kinds[:3] == ["stopped_early", "watchdog", "rolled_back"]
    back = next(each for each in events if each["kind"] == "rolled_back")
    assert (back["details"]["from_step"], back["details"]["on_slice"]) == (STOP, False)
    assert back["step"] < STOP
