"""eval.mode=next_window: what is scored is what is trained on next, in order of time, and scoring changes nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptive_rec.runtime.evaluator as evaluator_module
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.live.telemetry import Evaluation
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.doubles.late_threads import LateThreads
from tests.settings import AS_IN_MEMORY, TINY

ROWS, BATCH, EVERY = 700, 20, 6
SCHEMA = """label = "label"
dense = [{ column = "number" }]
sparse = ["user", { column = "tags", separator = "|" }]
time = "when"
"""
WINDOWS = ["eval.mode=next_window", f"eval.every_steps={EVERY}", "data.shuffle=false"]
COMMON = [
    *(each for each in TINY if not each.startswith(("data.", "run.batch_size", "run.steps"))),
    f"run.batch_size={BATCH}", "run.steps=0", "eval.batch_size=50", "data.max_table_rows=400",
]  # fmt: skip


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file that is not in order of time, `clicks.csv`, the same rows in order, `sorted.csv`, and their schema.
    Each row has its own number."""
    folder = tmp_path_factory.mktemp("clicks")
    dice = np.random.default_rng(5)
    when = dice.integers(1_600_000_000, 1_600_000_300, ROWS)  # several rows of each second
    rows = [
        (
            dice.integers(2),
            int(dice.integers(60)),
            "|".join(map(str, dice.integers(0, 40, dice.integers(1, 4)))),
            n,
            int(when[n]),
        )
        for n in range(ROWS)
    ]
    for name, kept in (("clicks", rows), ("sorted", [rows[n] for n in np.argsort(when, kind="stable")])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("label", "user", "tags", "number", "when"), *kept])
    (folder / "schema.toml").write_text(SCHEMA)
    words = [
        "data",
        "prepare",
        str(folder / "clicks.csv"),
        "--schema",
        str(folder / "schema.toml"),
        "--out",
        str(folder / "made"),
    ]
    assert main(words) == 0
    return folder


def source_of(clicks: Path, kind: str) -> list[str]:
    if kind == "synthetic":
        return [
            *(each for each in TINY if each.startswith("data.")),
            "data.synthetic.samples=900",
            "data.synthetic.test_samples=200",
        ]
    if kind == "prepared":
        return [f"data.source={clicks / 'made'}", "data.order=time"]
    raw = [f"data.source={clicks / 'sorted.csv'}", f"data.schema_file={clicks / 'schema.toml'}", "data.ids=raw"]
    return [*raw, "data.order=time", "knobs.admit_after=2", "data.shared_rows=2"]


def runtime_of(folder: Path, *settings: str, group: Any = None) -> Runtime:
    return assemble(load_config(None, {}, [*COMMON, *settings]), options=RunOptions(rows=folder), group=group)


class Seen:
    """What a run has trained on and scored, in order: the first dense feature of each sample."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
        self.trained: list[float] = []
        self.scored: list[tuple[int, list[float], Evaluation]] = []
        now: list[float] = []
        make, evaluate = runtime.steps.make, evaluator_module.score_batches

        def noted(batches: Any) -> Any:
            for batch in batches:
                now.extend(batch.dense_BX[:, 0].tolist())
                yield batch

        def trained(work: Any, probe: bool) -> None:
            self.trained += work.batch.dense_BX[:, 0].tolist()
            make(work, probe)

        monkeypatch.setattr(runtime.steps, "make", trained)
        monkeypatch.setattr(evaluator_module, "score_batches", lambda batches, *more: evaluate(noted(batches), *more))
        for report in runtime.run():
            if isinstance(report, Evaluation):
                self.scored.append((len(self.trained), list(now), report))
                now.clear()
        last = runtime.evaluate()
        assert last is not None
        self.scored.append((len(self.trained), list(now), last))


@pytest.mark.parametrize("kind", ["prepared", "raw", "synthetic"])
@pytest.mark.parametrize("depth", [0, 5])
def test_what_is_scored_is_what_is_trained_on_next(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, kind: str, depth: int
) -> None:
    settings = source_of(clicks, kind)
    seen = Seen(monkeypatch, runtime_of(tmp_path, *settings, *WINDOWS, f"knobs.prefetch_depth={depth}"))

    steps = len(seen.trained) // BATCH
    assert [found.step for _, _, found in seen.scored] == [*range(EVERY, steps, EVERY), steps]
    following = seen.scored[-1][1]
    for (trained, scored, found), (later, _, _) in zip(
        seen.scored, [*seen.scored[1:], (len(seen.trained), [], None)], strict=True
    ):
        length = later - trained if later > trained else EVERY * BATCH  # the last window is only scored
        assert scored == [*seen.trained, *following][trained : trained + length]
        if kind != "synthetic":  # whose samples have no number of their own
            assert not set(scored) & set(seen.trained[:trained])
        assert found.window is not None
        assert found.quality.samples == length
        assert (found.window.first_sample, found.window.end_sample) == (trained, trained + length)
    if kind != "synthetic":
        whole = [*csv.DictReader((clicks / "sorted.csv").open())]
        in_time = [float(row["number"]) for row in whole]
        assert [*seen.trained, *following] == in_time[: len(seen.trained) + len(following)]
        assert ROWS - len(seen.trained) - len(following) < BATCH
        trained, scored, found = seen.scored[1]
        assert found.window.first_time == float(whole[trained]["when"])
        assert found.window.last_time == float(whole[trained + len(scored) - 1]["when"])


@pytest.mark.parametrize(
    ("kind", "policy"), [("prepared", "oracle"), ("raw", "cdlrm")], ids=["prepared", "raw"]
)
def test_policies_that_read_ahead_score_the_windows_of_hybrid(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, kind: str, policy: str
) -> None:
    found = []
    for name in ("hybrid", policy):
        (tmp_path / name).mkdir()
        settings = [*source_of(clicks, kind), *WINDOWS, f"knobs.policy={name}", "knobs.lookahead_batches=4"]
        runtime = runtime_of(tmp_path / name, *settings)
        seen = Seen(monkeypatch, runtime)
        figures = [(trained, scored, each.window, each.quality) for trained, scored, each in seen.scored]
        found.append((seen.trained, figures, everything(runtime)))
    assert found[0][:2] == found[1][:2]
    assert_same(found[0][2], found[1][2])


def everything(runtime: Runtime) -> list[Any]:
    """All that training has made: tables, the dense part, keys, figures."""
    tables = [each for table in range(len(runtime.source.tables)) for each in runtime.store.contents.export(table)]
    dense = [each.detach().numpy() for each in runtime.dense.model.parameters()]
    keys = runtime.state.input.raw_ids
    return [*tables, *dense, runtime.reports.totals()["loss_sum"], keys.counts() if keys else {}]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("prepared", ["knobs.policy=slipstream", "knobs.prefetch_depth=4"]),
        ("raw", ["knobs.prefetch_depth=5", "knobs.evict_ratio=0.3"]),
        ("raw", ["run.host_memory=1MiB", "knobs.prefetch_depth=3", *AS_IN_MEMORY]),
    ],
    ids=["prepared", "raw", "disk"],
)
def test_scoring_windows_leaves_training_as_it_is_bit_by_bit(
    tmp_path: Path, clicks: Path, kind: str, more: list[str]
) -> None:
    found = []
    for name, windows in (("often", [f"eval.every_steps={EVERY}"]), ("once", ["eval.every_steps=25"])):
        (tmp_path / name).mkdir()
        settings = [*source_of(clicks, kind), *WINDOWS, *windows, *more, "run.steps=9"]
        runtime = runtime_of(tmp_path / name, *settings)
        reports = list(runtime.run())
        assert sum(isinstance(each, Evaluation) for each in reports) == (name == "often")
        found.append(everything(runtime))
    assert_same(*found)


def test_several_ranks_score_what_one_scores(tmp_path: Path, clicks: Path) -> None:
    settings = [*source_of(clicks, "raw"), *WINDOWS, "run.precision=float64"]

    def evaluations(group: Any = None) -> list[Evaluation]:
        runtime = runtime_of(tmp_path, *settings, group=group)
        found = [report for report in runtime.run() if isinstance(report, Evaluation)]
        last = runtime.evaluate()
        assert last is not None
        return [*found, last]

    one = evaluations()
    for several in LateThreads.train(2, evaluations):
        assert [each.window for each in several] == [each.window for each in one]
        np.testing.assert_allclose([e.quality.logloss for e in several], [e.quality.logloss for e in one], rtol=1e-10)


def lines_of(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = "seconds", "processor_seconds"
    return [{k: v for k, v in each.items() if k not in times} for each in found if each["event"] == "evaluation"]


def trained(out: Path, *settings: str, resume: bool = False, replay: Path | None = None, stop_at: int = 0,
            at: Callable[[Runtime], None] | None = None) -> TrainingRun:  # fmt: skip
    run = TrainingRun(load_config(None, {}, [*COMMON, *settings]), out, resume=resume, replay=replay)
    for _ in run.events():
        if at is not None and run.runtime.step_number == 8:
            at(run.runtime)
            at = None
        if stop_at and run.runtime.step_number == stop_at:
            run.runtime.hurry()
    run.finish()
    return run


@pytest.mark.parametrize("policy", ["hotline", "cdlrm"])
def test_a_run_that_is_resumed_between_windows_scores_the_same_ones_and_a_replay_too(
    tmp_path: Path, clicks: Path, policy: str
) -> None:
    settings = [*source_of(clicks, "prepared"), *WINDOWS, f"knobs.policy={policy}", "knobs.lookahead_batches=3"]

    def more_often(runtime: Runtime) -> None:
        runtime.mailbox.change_knobs(eval_every_steps=4)

    whole = trained(tmp_path / "whole", *settings, at=more_often)
    trained(tmp_path / "cut", *settings, at=more_often, stop_at=14)
    cut = trained(tmp_path / "cut", *settings, resume=True)
    again = trained(tmp_path / "again", *settings, replay=tmp_path / "whole")

    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole") == lines_of(tmp_path / "again")
    summaries = [json.loads((run.out / "summary.json").read_text())["windows"] for run in (whole, cut, again)]
    assert summaries[0] == summaries[1] == summaries[2]
    assert summaries[0]["count"] == len(lines_of(whole.out))
    assert summaries[0]["auc_mean"] == pytest.approx(np.mean([each["auc"] for each in lines_of(whole.out)]))
    assert_same(everything(whole.runtime), everything(cut.runtime))
    # the window scored at 6 is as long as was planned then; later ones have the new length, and training ends where it would have
    spans = {each["step"]: each["end_sample"] - each["first_sample"] for each in lines_of(whole.out)}
    assert spans == {6: 6 * BATCH, **dict.fromkeys(range(12, 28, 4), 4 * BATCH), 28: BATCH, 29: 4 * BATCH}


@pytest.mark.parametrize(
    ("kind", "settings", "rule"),
    [
        ("synthetic", ["data.order=time", "data.shuffle=false"], "the synthetic stream has none"),
        ("prepared", ["data.order=time", "data.shuffle=true"], "shuffle must be false where order = \"time\", got true"),
        ("prepared", ["data.order=time", "data.shuffle=false", "data.epochs=2"], "epochs must be 1 where order = \"time\""),
        ("prepared", [*WINDOWS, "data.shuffle=true", "data.order=file"], "data.shuffle must be false where eval.mode"),
        ("prepared", [*WINDOWS, "data.order=file", "data.epochs=3"], "data.epochs must be 1 where eval.mode"),
        ("prepared", [*WINDOWS, "eval.every_steps=0"], "eval.every_steps or eval.count must be set"),
        ("prepared", [*WINDOWS, "eval.every_steps=35"], "eval.every_steps must leave a step to train on of the 35"),
        ("prepared", [*WINDOWS, "data.train_range=[0.0,0.5]"], "data.test_range must begin where data.train_range ends"),
        ("prepared", [*WINDOWS, "knobs.policy=fae"], "knobs.policy must keep the order of the stream where .*, got fae"),
        ("raw", [*WINDOWS, "data.order=file", "data.follow=true"], 'eval.mode must be "held_out" where data is followed'),
        ("raw", ["data.follow=true", "data.shuffle=false"], 'order must be "file" where data is followed'),
    ],
)  # fmt: skip
def test_what_has_no_next_window_or_no_order_of_time_is_refused_by_name(
    tmp_path: Path, clicks: Path, kind: str, settings: list[str], rule: str
) -> None:
    with pytest.raises(AdaptiveRecError, match=rule):
        runtime_of(tmp_path, *source_of(clicks, kind), *settings)
