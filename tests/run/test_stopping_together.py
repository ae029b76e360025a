"""Early stopping together with what few runs have: logs of positives alone in several processes and branches, weighted rows of
which some batches are left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.checkpoint.difference import find_differences
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.run.branching import make_branch
from tests.run.test_stopping import assert_same, lost_and_resumed, outcome, trained


def prepared(folder: Path, columns: str, rows: list[str], schema: dict[str, object]) -> list[str]:
    """Prepare a folder; return the settings of a run on it that stops early."""
    (folder / "rows.csv").write_text("\n".join([columns, *rows]) + "\n")
    prepare_folder(Request((folder / "rows.csv",), folder / "made", schema=parse_schema(schema, "it")), lambda progress: None)
    return [
        f"data.source={folder / 'made'}", "data.train_range=[0.0,0.8]", "data.test_range=[0.8,1.0]", "data.max_table_rows=1000",
        "eval.patience=2", "data.epochs=8",
    ]  # fmt: skip


def test_positives_alone_stop_in_two_processes_as_in_one_and_in_a_branch(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    rows = [f"u{dice.integers(30)},i{int(40 * dice.random() ** 2)}" for _ in range(300)]
    schema = {"sparse": ["user", "item"], "implicit": {"item": "item", "user": "user"}}
    data = [*prepared(tmp_path, "user,item", rows, schema), "data.implicit.negatives=2", "run.precision=float64"]
    one, two = trained(tmp_path / "one", *data), trained(tmp_path / "two", *data, ranks=2)
    assert one["stopped_early"], "otherwise the test shows nothing"
    assert (two["steps"], two["eval_step"]) == (one["steps"], one["eval_step"])
    for name in ("best_eval", "eval"):
        assert two[name]["logloss"] == pytest.approx(one[name]["logloss"], rel=1e-10)
    assert two["eval"]["ranking"]["metrics"] == pytest.approx(one["eval"]["ranking"]["metrics"], rel=1e-9)
    branch = make_branch(tmp_path / "one", str(one["eval_step"]), tmp_path / "branch", {}, [], "branch")
    trained(branch.out, resume=True)
    assert_same(tmp_path / "one", branch.out)


def test_weighted_rows_of_which_batches_are_left_out_stop_after_a_loss_as_before_it(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    numbers = [{100: "3e38", 101: "-3e38"}.get(n, f"{dice.normal():.3f}") for n in range(500)]
    rows = [f"{dice.integers(2)},u{dice.integers(30)},{number},{n % 3 + 1}" for n, number in enumerate(numbers)]
    schema = {"label": "click", "sparse": ["user"], "dense": [{"column": "x", "transform": "none"}], "weight": "weight"}
    data = [*prepared(tmp_path, "click,user,x,weight", rows, schema), "run.on_nan=skip_batch", "eval.train_slice=true"]
    whole = trained(tmp_path / "whole", *data)
    assert whole["samples_skipped"] >= 64, "a batch of each pass is left out"
    assert whole["slice_trained"]
    lost_and_resumed(tmp_path / "whole", tmp_path / "cut", [3, outcome(tmp_path / "whole")["summary"]["steps"] - 1], *data)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "whole" / "events.jsonl").read_text().splitlines()]
    assert "nan" in kinds


TRIALS = [
    "eval.mode=held_out", "eval.patience=0", "eval.per_epoch=0", "run.steps=26", "data.epochs=1", "data.shuffle=false",
    "run.batch_size=32", "knobs.policy=adaptive", "knobs.reclassify_every=2", "knobs.probe_ratio=0.4",
    "knobs.stale_threshold=1e9", "knobs.min_probe_touches=1", "knobs.min_touch_ratio=0", "knobs.alpha=0.5",
    "knobs.guard_ratio=1.0", "policy.trial_steps=8",
    "knobs.guard_max_logloss_increase=10", "knobs.report_every=3", "checkpoint.every_steps=5", "checkpoint.keep=5",
]  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (["run.on_nan=skip_batch"], "nan"),
        (["watch.rules=['loss is nan: rollback skipping data with lr_factor*=0.5 for 6 steps']"], "rolled_back"),
    ],
    ids=["left out", "rolled back"],
)
def test_a_trial_goes_on_where_a_batch_is_left_out_or_a_rule_rolls_back(
    faults: list[str], kind: str, tmp_path: Path
) -> None:
    """Lost in the trial, resumed and replayed. The batch comes in the trial's ninth to sixteenth step."""
    dice = np.random.default_rng(1)
    numbers = [{331: "3e38", 332: "-3e38"}.get(n, f"{dice.normal():.3f}") for n in range(1400)]
    rows = [f"{dice.integers(2)},u{int(60 * dice.random() ** 2)},{number},{n % 3}" for n, number in enumerate(numbers)]
    schema = {"label": "click", "sparse": ["user"], "dense": [{"column": "x", "transform": "none"}], "weight": "weight"}
    words = [*prepared(tmp_path, "click,user,x,weight", rows, schema), *TRIALS, *faults]
    whole, cut, again = (tmp_path / name for name in ("whole", "cut", "again"))
    trained(whole, *words)
    trained(cut, *words, lost_at=14)
    trained(cut, resume=True)
    trained(again, *words, replay=whole)
    ends = [max((out / "checkpoints").glob("step-000000026*")) for out in (whole, cut, again)]
    for end in ends[1:]:
        assert list(find_differences(DISK, ends[0], end)) == []
    events = [json.loads(line) for line in (whole / "events.jsonl").read_text().splitlines()]
    assert {kind, "guard"} <= {event["kind"] for event in events}
