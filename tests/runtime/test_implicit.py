"""Runs on logs of positives alone: resumed, in several processes, under a policy that reads ahead, with raw ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.live.telemetry import Evaluation, Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY

ROWS, STEPS = 500, 24
COMMON = [
    *(each for each in TINY if not each.startswith(("data.", "run.steps"))),
    f"run.steps={STEPS}", "run.batch_size=50", "data.implicit.negatives=3", "eval.batch_size=64",
]  # fmt: skip
EXACT = [*COMMON, "run.precision=float64"]
SCHEMA = {"sparse": ["user", "item", "brand", "hour"], "implicit": {"item": "item", "user": "user"}}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is prepared, beside the file that it is made of."""
    path = tmp_path_factory.mktemp("implicit")
    dice = np.random.default_rng(1)
    rows = ["user,item,brand,hour"]
    for n in range(ROWS):
        item = int(40 * dice.random() ** 2)
        rows.append(f"u{dice.integers(30)},i{item},b{item % 6},{n % 24}")
    (path / "log.csv").write_text("\n".join(rows) + "\n")
    prepare_folder(Request((path / "log.csv",), path / "folder", schema=parse_schema(SCHEMA, "it")), lambda progress: None)
    return path


def losses_and_score(log: Path, group: Group, *settings: str) -> tuple[list[float], Evaluation]:
    config = load_config("clicks_small", {}, [f"data.source={log / 'folder'}", *EXACT, *settings])
    runtime = assemble(config, group=group)
    losses = [report.loss for report in runtime.run() if isinstance(report, Snapshot)]
    evaluation = runtime.evaluate()
    assert evaluation is not None
    return losses, evaluation


def close(one: Evaluation, other: Evaluation, rel: float) -> None:
    for name in ("auc", "logloss", "accuracy", "calibration"):
        assert getattr(one.quality, name) == pytest.approx(getattr(other.quality, name), rel=rel), name
    assert one.quality.ranking is not None
    assert other.quality.ranking is not None
    assert one.quality.ranking.metrics == pytest.approx(other.quality.ranking.metrics, rel=rel)


def test_two_processes_train_and_rank_as_one(log: Path) -> None:
    losses, alone = losses_and_score(log, Alone())
    assert len(losses) == STEPS
    for own, one in LateThreads.train(2, lambda group: losses_and_score(log, group)):
        assert own == pytest.approx(losses, rel=1e-10)
        close(one, alone, 1e-9)


def test_a_policy_that_reads_ahead_sees_the_same_negatives(log: Path) -> None:
    losses, plain = losses_and_score(log, Alone(), "knobs.policy=hotline")
    ahead, read_twice = losses_and_score(log, Alone(), "knobs.policy=cdlrm")
    assert ahead == pytest.approx(losses, rel=1e-12)
    close(read_twice, plain, 1e-9)


def test_a_policy_that_reorders_the_stream_trains_all_samples(log: Path) -> None:
    config = load_config("clicks_small", {}, [f"data.source={log / 'folder'}", *EXACT, "knobs.policy=fae", "run.steps=0"])
    runtime = assemble(config)
    for _ in runtime.run():
        pass
    assert runtime.state.tally.counters.samples_trained == 4 * round(0.9 * ROWS)


def test_a_validation_slice_is_ranked_and_the_held_out_rows_at_the_end(log: Path) -> None:
    given = [f"data.source={log / 'folder'}", *EXACT, "run.steps=0", "data.epochs=2", "eval.per_epoch=1"]
    config = load_config("clicks_small", {}, [*given, "eval.mode=validation", "eval.patience=5"])
    runtime = assemble(config)
    assert runtime.source.train_samples == 4 * (450 - 45)
    made = [report for report in runtime.run() if isinstance(report, Evaluation)]
    assert len(made) == 2
    held_out = runtime.evaluator.score_held_out()
    assert held_out is not None
    users = [each.quality.ranking.groups for each in (*made, held_out) if each.quality.ranking is not None]
    assert users[0] == users[1]
    slice_, test = (runtime.evaluator.candidates(0, validation).users for validation in (True, False))
    assert users == [len(slice_.ids_G), len(slice_.ids_G), len(test.ids_G)]
    assert slice_.first_row_G.max() < 45


def words(*settings: str) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


def trained(out: Path, *given: str) -> dict[str, Any]:
    assert main(["train", "--no-serve", "--out", str(out), *given]) == 0
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


@pytest.mark.parametrize("raw", [False, True])
def test_the_best_model_ranks_the_held_out_rows_among_all_items(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: bool
) -> None:
    """It is not the last one, so that it is read from its checkpoint, with a source of its own."""
    data = ["--data", str(log / "log.csv"), "--item", "item", "--user", "user"] if raw else ["--data", str(log / "folder")]
    ids = ["data.ids=raw", "data.max_table_rows=200"] if raw else []
    sets = words(*COMMON, *ids, "eval.metric=accuracy", "eval.every_steps=1")
    summary = trained(tmp_path / "run", *data, *sets, "--patience", "1")
    assert summary["eval_step"] == summary["best_eval"]["step"] < summary["steps"]
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert summary["eval"]["ranking"] == again["ranking"]
    assert summary["eval"]["logloss"] == again["logloss"]


@pytest.mark.parametrize("raw", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_is_resumed_equals_one_that_was_not(log: Path, tmp_path: Path, raw: bool) -> None:
    file = str(log / "log.csv")
    data = ["--data", file, "--item", "item", "--user", "user"] if raw else ["--data", str(log / "folder")]
    sets = words(*COMMON, *(["data.ids=raw", "data.max_table_rows=200"] if raw else []))
    whole = trained(tmp_path / "whole", *data, *sets)
    first = trained(tmp_path / "parts", *data, *sets, "--steps", "11")
    assert first["steps"] == 11
    parts = trained(tmp_path / "parts", "--resume", "--steps", str(STEPS))
    assert parts["eval"] == whole["eval"]
    assert set(whole["eval"]["ranking"]["metrics"]) == {"recall@20", "ndcg@20", "mrr"}
    again = tmp_path / "replay"
    replayed = trained(again, "--replay", str(tmp_path / "whole"))
    assert replayed["eval"] == whole["eval"]
