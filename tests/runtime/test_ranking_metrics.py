"""Metrics that rank (`eval.metrics`), of whole runs: every kind of data, several ranks, windows, followed data, resumed runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.metrics import scores_of_logits
from adaptive_rec.dense.ranking import ranking
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Evaluation, Ranking
from adaptive_rec.runtime import evaluator, loop
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.start_checks import check_scored
from adaptive_rec.system.group import ALONE, Group
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY

ROWS = 400
METRICS = ("gauc", "recall@2", "ndcg@3", "mrr")
SCHEMA = """label = "label"
sparse = ["user", "item"]
time = "when"
group = "user"
"""
COMMON = [
    *(each for each in TINY if not each.startswith(("data.", "run.batch_size", "run.steps"))),
    "run.batch_size=20", "run.steps=6", "eval.batch_size=27", "data.max_table_rows=60", "run.precision=float64",
    f"eval.metrics={list(METRICS)}", "data.test_range=[0.7,1.0]", "data.train_range=[0.0,0.7]",
]  # fmt: skip
FOLLOW = ["data.follow=true", "data.follow_idle_seconds=0.1", "data.ids=raw", "eval.every_steps=4", "run.steps=0"]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `clicks.csv`, whose users have few items, so that many samples are equal, and the same prepared."""
    folder, dice = tmp_path_factory.mktemp("clicks"), np.random.default_rng(7)
    lines = [f"{dice.integers(2)},u{dice.integers(25)},i{int(dice.pareto(1)) % 9},{1_600_000_000 + n}" for n in range(ROWS)]
    (folder / "clicks.csv").write_text("\n".join(["label,user,item,when", *lines, ""]))
    (folder / "schema.toml").write_text(SCHEMA)
    words = ["data", "prepare", str(folder / "clicks.csv"), "--schema", str(folder / "schema.toml"), "--out"]
    assert main([*words, str(folder / "made")]) == 0
    return folder


def settings_of(clicks: Path, kind: str) -> list[str]:
    if kind == "prepared":
        return [f"data.source={clicks / 'made'}", "data.shuffle=false"]
    raw = [f"data.source={clicks / 'clicks.csv'}", f"data.schema_file={clicks / 'schema.toml'}", "data.ids=raw"]
    if kind == "followed":
        return [*raw, *FOLLOW]
    return [*raw, "data.order=time", "data.shuffle=false"]


def ranked(settings: list[str], ranks: int = 1, **more: Any) -> list[Ranking]:
    """Return the rankings of a run's evaluations and of the one at its end; of several ranks all have the same."""

    def of_rank(group: Group) -> list[Ranking]:
        runtime = assemble(load_config(None, {}, [*COMMON, *settings]), group=group)
        check_scored(runtime.config, runtime.source)
        reports = [each for each in runtime.run() if isinstance(each, Evaluation)]
        found = [each.quality.ranking for each in (*reports, runtime.evaluate()) if each is not None]
        assert all(each is not None for each in found)
        return [each for each in found if each is not None]

    if ranks == 1:
        return of_rank(ALONE)
    one, *others = LateThreads.train(ranks, of_rank, seed=3)
    assert all(repr(other) == repr(one) for other in others)
    return one


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WAIT_SECONDS", 0.01)


@pytest.mark.parametrize("kind", ["prepared", "raw", "followed"])
def test_two_ranks_have_the_metrics_of_one_bit_by_bit(clicks: Path, kind: str) -> None:
    settings = [*settings_of(clicks, kind), *(["eval.every_steps=3"] if kind != "followed" else [])]
    one = ranked(settings)
    assert len(one) > 2
    assert all(0 < value < 1 for each in one for value in each.metrics.values())
    assert all(each.groups >= each.groups_with_positive >= each.groups_with_both > 0 for each in one)
    assert repr(ranked(settings, 2)) == repr(one)


def test_the_metrics_are_those_of_the_scores_and_groups_of_the_rows(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    joined = evaluator.score_batches.__globals__["Scored"].joined

    def noted(parts: Any) -> Any:
        kept.append(joined(parts))
        return kept[-1]

    monkeypatch.setattr(evaluator.score_batches.__globals__["Scored"], "joined", staticmethod(noted))
    found = ranked(settings_of(clicks, "prepared"))[-1]
    users = [line.split(",")[1] for line in (clicks / "clicks.csv").read_text().splitlines()[1:]][-120:]
    numbers = {user: number for number, user in enumerate(dict.fromkeys(users))}
    groups = np.array([numbers[user] for user in users])
    own = ranking(METRICS, kept[-1].labels_B, scores_of_logits(kept[-1].logits_B), groups)
    assert own.metrics == pytest.approx(found.metrics, rel=0, abs=1e-12)
    assert (own.groups, own.groups_with_both) == (found.groups, found.groups_with_both)


def test_windows_of_the_stream_have_them_and_their_means(clicks: Path) -> None:
    windows = ["eval.mode=next_window", "eval.every_steps=5", "data.test_range=[0.7,1.0]", "run.steps=0"]
    settings = [*settings_of(clicks, "prepared"), "data.order=time", *windows]
    runtime = assemble(load_config(None, {}, [*COMMON, *settings]))
    found = [each.quality.ranking for each in runtime.run() if isinstance(each, Evaluation)]
    summary = runtime.state.windows.summary()
    assert summary is not None
    assert len(found) > 1
    assert repr(ranked(settings, 2)[:-1]) == repr(found)
    for name in METRICS:
        values = [each.metrics[name] for each in found if each is not None]
        assert summary["metrics_mean"][name] == pytest.approx(np.mean(values))


def test_a_followed_run_goes_on_with_the_groups_of_its_window(clicks: Path, tmp_path: Path) -> None:
    settings = settings_of(clicks, "followed")

    def trained(until: int = 0, saved: Path | None = None) -> tuple[Any, list[Ranking | None]]:
        runtime = assemble(load_config(None, {}, [*COMMON, *settings]))
        if saved is not None:
            checkpoint.load(runtime.parts, checkpoint.newest(saved))
        found = []
        for each in runtime.run():
            if isinstance(each, Evaluation):
                found.append(each.quality.ranking)
            if until and runtime.step_number == until:
                runtime.hurry()
        return runtime, found

    _, whole = trained()
    runtime, first = trained(until=6)  # within a window
    checkpoint.save(runtime.parts, tmp_path)
    _, rest = trained(saved=tmp_path)
    assert repr([*first, *rest]) == repr(whole)
    assert len(rest) > 1


def test_the_best_model_may_be_chosen_by_one(clicks: Path) -> None:
    by = ["eval.mode=validation", "eval.validation_ratio=0.4", "eval.metric=gauc", "eval.every_steps=2"]
    more = ["run.steps=10", "optimizer.embedding=rowwise_adagrad"]
    runtime = assemble(load_config(None, {}, [*COMMON, *settings_of(clicks, "prepared"), *by, *more]))
    found = [each for each in runtime.run() if isinstance(each, Evaluation)]
    best = max(found, key=lambda each: each.quality.value("gauc"))
    assert runtime.state.trend.best is not None
    assert (runtime.state.trend.best.step, runtime.state.trend.best.value) == (best.step, best.quality.value("gauc"))
    assert len({each.quality.value("gauc") for each in found}) > 1
    with pytest.raises(ConfigError, match="eval.metrics must name mrr, by which eval.metric chooses the best model"):
        load_config(None, {}, ["eval.metrics=['gauc']", "eval.metric=mrr"])


def test_rows_without_groups_are_refused_with_the_option_that_names_them(clicks: Path) -> None:
    bare = clicks / "bare.toml"
    bare.write_text(SCHEMA.replace('group = "user"\n', ""))
    for settings in (
        [*settings_of(clicks, "raw"), f"data.schema_file={bare}"],
        [each for each in TINY if each.startswith("data.")],
    ):
        with pytest.raises(ConfigError, match=r"no groups, got gauc, recall@2, ndcg@3, mrr of .*--group COLUMN"):
            ranked(settings)


def test_without_metrics_groups_change_nothing(clicks: Path) -> None:
    def quality(*more: str) -> Any:
        runtime = assemble(load_config(None, {}, [*COMMON, *settings_of(clicks, "prepared"), *more]))
        list(runtime.run())
        return runtime.evaluate().quality

    with_metrics, without = quality(), quality("eval.metrics=[]")
    assert without.ranking is None
    assert {**vars(with_metrics), "ranking": None} == vars(without)
    assert math.isnan(without.value("gauc"))


def test_a_rule_watches_a_metric_that_ranks(clicks: Path) -> None:
    rule = 'watch.rules=["recall@2 < 2 for 2 evaluations: warn"]'
    settings = [*settings_of(clicks, "prepared"), "eval.every_steps=2", rule]
    runtime = assemble(load_config(None, {}, [*COMMON, *settings]))
    told = [each for each in runtime.run() if getattr(each, "kind", "") == "watchdog"]
    assert [(each.details["breach_step"], each.details["metric"]) for each in told] == [(4, "recall@2")]
    with pytest.raises(ConfigError, match="eval.metrics must name mrr, which"):
        load_config(None, {}, ["eval.metrics=['gauc']", 'watch.rules=["mrr is nan: stop"]'])
