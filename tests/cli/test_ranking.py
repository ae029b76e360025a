"""--group and --metrics, from a file to the screen, the files of a run, `eval` and the scores that `predict` writes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.cli.status import status_lines
from adaptive_rec.dense.ranking import ranking
from adaptive_rec.offline.compare.measures import read_figures
from adaptive_rec.offline.compare.processes import ProcessEnd

NAMES = ["gauc", "recall@2", "ndcg@3", "mrr"]
SETTINGS = [
    "run.batch_size=32", "run.device=cpu", "run.threads=1", "model.bottom_mlp=[8]", "model.top_mlp=[8]", "eval.every_steps=8",
    "data.max_table_rows=300", "data.test_range=[0.6,1.0]", "data.train_range=[0.0,0.6]",
]  # fmt: skip
ROWS = 600


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, dice = tmp_path_factory.mktemp("clicks"), np.random.default_rng(3)
    lines = [f"{dice.integers(2)},u{dice.integers(40)},i{int(dice.pareto(1)) % 20},{dice.normal():.3f}" for _ in range(ROWS)]
    (folder / "clicks.csv").write_text("\n".join(["label,user,item,price", *lines, ""]))
    (folder / "held_out.csv").write_text("\n".join(["label,user,item,price", *lines[-240:], ""]))
    return folder


def train(clicks: Path, *words: str) -> int:
    sets = [word for one in SETTINGS for word in ("--set", one)]
    data = ["train", "--data", str(clicks / "clicks.csv"), "--label", "label", "--no-serve", *sets]
    return main([*data, *words])


@pytest.fixture(scope="module")
def run(clicks: Path) -> Path:
    out = clicks / "runs" / "a"
    assert train(clicks, "--group", "user", "--metrics", ", ".join(NAMES), "--out", str(out)) == 0
    return out


def evaluation(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())["eval"]
    return found


def test_the_figures_are_those_of_the_scores_that_predict_writes(clicks: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    assert main(["predict", str(run), "--data", str(clicks / "held_out.csv"), "--out", str(out), "--keep", "user,label"]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    users = {row["user"]: number for number, row in enumerate(rows)}
    groups = np.array([users[row["user"]] for row in rows])
    labels, scores = (np.array([float(row[name]) for row in rows]) for name in ("label", "score"))
    own = ranking(NAMES, labels, scores, groups)
    found = evaluation(run)["ranking"]
    assert list(found["metrics"]) == NAMES
    assert found["metrics"] == pytest.approx(own.metrics, rel=0, abs=1e-12)
    assert found["groups"] == own.groups == len(users)


def test_eval_ranks_the_held_out_rows_and_others(clicks: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run)]) == 0
    shown = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {name: float(shown[name]) for name in NAMES} == pytest.approx(evaluation(run)["ranking"]["metrics"], abs=5e-5)
    assert float(shown["groups with both"]) > 0
    other = str(clicks / "held_out.csv")
    for data in ([], ["--data", other]):
        assert main(["eval", str(run), "--metrics", "recall@1, mrr", "--json", *data]) == 0
        found = json.loads(capsys.readouterr().out)["ranking"]
        assert list(found["metrics"]) == ["recall@1", "mrr"]
        assert found["metrics"]["mrr"] == pytest.approx(evaluation(run)["ranking"]["metrics"]["mrr"], rel=0, abs=1e-12)
    assert main(["eval", str(run), "--metrics", "", "--json"]) == 0
    assert "ranking" not in json.loads(capsys.readouterr().out)


def test_files_screens_and_pages_of_the_run_have_them(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line["ranking"] for line in lines if line["event"] == "evaluation"][-1]
    assert last == evaluation(run)["ranking"]
    report = (run / "report.html").read_text()
    for name in ("Grouped AUC", "Recall@2", "NDCG@3", "MRR"):
        assert report.count(name) > 1, name
    figures = read_figures(run, ProcessEnd(exit_code=0, process_seconds=1.0, started=0.0, conditions="", code=""))
    assert figures["ranked"] == NAMES
    assert figures["recall@2"] == evaluation(run)["ranking"]["metrics"]["recall@2"]
    now = {
        "run": {"name": "a", "seed": 1, "device": "cpu", "precision": "float32", "path": "a"}, "policy": "hotline",
        "phase": "training", "step": 1, "steps_total": None, "eta_seconds": None, "samples_per_second": 1, "seconds": 1,
        "loss": 0.5, "evaluation": {"step": 1, **evaluation(run)},
    }  # fmt: skip
    ratios = dict.fromkeys(("hot_lookup", "popular_sample", "skipped_row_update", "skipped_sample"))
    shown = dict(status_lines(now, {"ratios": ratios, "hot_rows": 0, "stale_rows": 0}, ""))
    assert f"grouped AUC {evaluation(run)['ranking']['metrics']['gauc']:.4f}  recall@2 " in shown["quality"]


def test_the_screen_says_metrics_and_groups(clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--group", "user", "--metrics", "mrr", "--out", str(tmp_path / "b"), "--set", "run.steps=4"]
    assert train(clicks, *words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = evaluation(tmp_path / "b")["ranking"]
    assert f"MRR {found['metrics']['mrr']:.4f}" in shown
    assert f"{found['groups']} groups, {found['groups_with_positive']} with a positive" in shown


def test_what_is_wrong_is_said_before_anything_is_prepared(
    clicks: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clicks.csv").write_text((clicks / "clicks.csv").read_text())
    for words, said in (
        (["--metrics", "gauc"], "eval.metrics (gauc) needs the column of the rows' groups, such as users: add --group COLUMN"),
        (["--metrics", "gauc,hits@3"], "--metrics: a ranking metric must be one of gauc, mrr, recall@K and ndcg@K"),
        (["--metrics", "gauc,gauc"], "--metrics must name each metric once, got gauc 2 times"),
    ):
        assert train(tmp_path, *words, "--out", str(tmp_path / "runs" / "b")) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "runs" / "data").exists()
    assert main(["eval", str(run), "--metrics", "hits"]) == 2
    assert "K from 1 to 1,000,000 (such as recall@20), got 'hits'" in capsys.readouterr().err


def test_a_run_on_rows_without_groups_is_not_ranked(
    finished_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(finished_run("plain")), "--metrics", "mrr"]) == 2
    assert "eval.metrics must be empty where rows have no groups, got mrr of synthetic; train --group" in capsys.readouterr().err
