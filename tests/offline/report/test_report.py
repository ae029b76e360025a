"""Reports of runs are self-contained, show the true figures, and need no complete run directory."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import UsageError
from adaptive_rec.offline.report import record
from adaptive_rec.offline.report.record import read_run
from adaptive_rec.offline.report.run_report import phase, write_report
from adaptive_rec.offline.report.series import series_of
from adaptive_rec.run import run_log
from adaptive_rec.run.training_run import TrainingRun

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"
STEPS = 40


class Page(HTMLParser):
    """Elements with their attributes, and the text of the page without scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._within: list[str] = []
        self.scripts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style"}:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if self._within == ["script"]:
            self.scripts.append(data)
        elif not self._within:
            self.text += data

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for element, attributes in self.elements if element == name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run to its end."""
    run = tmp_path_factory.mktemp("report") / "run"
    settings = [f"run.steps={STEPS}", "knobs.report_every=4", "eval.every_steps=10", "knobs.reclassify_every=8"]
    command = ["train", "tiny", "--set", "a b"]
    training = TrainingRun(load_config("tiny", {}, settings), run, command=command, write_report=write_report)
    for _ in training.events():
        pass
    training.finish()
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil, without its report."""
    copy = tmp_path / "run"
    shutil.copytree(finished, copy, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
    return copy


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, values: list[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in values))


def add_event(run: Path, **event: Any) -> None:
    with (run / "events.jsonl").open("a") as journal:
        journal.write(json.dumps({"time": 1e9, "details": {}, **event}) + "\n")


# The page ------------------------------------------------------------------------------------------------------------


def test_the_report_of_a_finished_run_makes_no_request(finished: Path) -> None:
    page = Page(finished / "report.html")
    text = (finished / "report.html").read_text(encoding="utf-8")
    for _, attributes in page.elements:
        assert not attributes.keys() & {"src", "href", "srcset", "action", "poster", "data"}
        assert not [name for name in attributes if name.startswith("on")]
    assert "@import" not in text
    assert "url(" not in text
    assert not {name for name, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "base"}
    [policy] = [each["content"] or "" for each in page.named("meta") if each.get("http-equiv")]
    assert "default-src 'none'" in policy
    digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_results_of_a_run_stand_at_the_top(finished: Path) -> None:
    page, summary = Page(finished / "report.html"), json.loads((finished / "summary.json").read_text())
    for name in ("auc", "logloss", "calibration"):
        assert f"{summary['eval'][name]:.4f}" in page.text
    assert "finished" in page.text
    assert "adaptive-rec train tiny --set 'a b'" in page.text
    assert f"{STEPS} steps" in page.text


def test_every_plot_has_a_description(finished: Path) -> None:
    page = Page(finished / "report.html")
    assert "\\x20" not in page.text, "our own blanks are no part of a name"
    pictures = [each for each in page.named("div") if each.get("role") == "img"]
    assert len(pictures) >= 9
    assert all(len(each.get("aria-label") or "") > 20 for each in pictures)
    assert all(each.get("aria-hidden") == "true" for each in page.named("svg"))
    wanted = {"loss", "auc", "hot", "rows", "skipped", "moved", "migrated", "speed", "tables", "stages", "beside"}
    assert wanted == {each.get("id") for each in page.named("figure")}


def test_rows_on_a_disk_have_a_plot_and_a_line_where_there_are_some(run: Path, tmp_path: Path) -> None:
    assert "Rows on the disk" not in Page(write_report(run)).text
    assert series_of(read_run(run)).disk == {}
    on_disk = begin(tmp_path / "disk", "run.host_memory=1MiB", "knobs.hot_budget_bytes=8KiB", f"run.steps={STEPS}")
    for _ in on_disk.events():
        pass
    on_disk.finish()
    page, series = Page(tmp_path / "disk/report.html"), series_of(read_run(tmp_path / "disk"))
    summary = json.loads((tmp_path / "disk/summary.json").read_text())
    assert "Rows on the disk" in page.text
    assert f"{summary['disk']['rows_written']:,} written" in page.text
    steps = [now - before for before, now in zip([0, *series.steps], series.steps, strict=False)]
    ahead = sum(rows * count for rows, count in zip(series.disk["ahead"], steps, strict=True) if rows is not None)
    assert ahead == pytest.approx(summary["disk"]["rows_ahead"])


def test_names_and_texts_from_elsewhere_stay_text(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    about["tables"][0]["name"] = about["run_name"] = about["command"] = about["version"] = HOSTILE
    (run / "run.json").write_text(json.dumps(about))
    for kind in ("warning", "knobs", HOSTILE):
        add_event(run, step=5, kind=kind, text=HOSTILE, details={HOSTILE: HOSTILE})
    changed = {HOSTILE: {"old": HOSTILE, "new": HOSTILE}, "policy": {"old": "a", "new": HOSTILE}}
    add_event(run, step=6, kind="knobs", text=HOSTILE, details={"changed": changed})
    page = Page(write_report(run))
    assert page.text.count(HOSTILE.replace("\u202e", "\\u202e")) >= 9
    assert not page.named("img")
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_changes_are_numbered_in_plots_and_journal(run: Path) -> None:
    change = {"hot_budget_bytes": {"old": 8192, "new": 4096}, "alpha": {"old": 0.9, "new": 0.5}}
    add_event(run, step=12, kind="knobs", text="two at once", details={"changed": change})
    add_event(run, step=20, kind="paused", text="paused")
    page = Page(write_report(run))
    marks = [each for each in page.named("i") if str(each.get("class")).startswith("mark ")]
    assert {each["title"] for each in marks if each.get("title")} >= {"step 12: two at once", "step 20: paused"}
    at = {str(each["style"]) for each in marks if each.get("title") == "step 12: two at once"}
    assert at == {f"left:{100 * 12 / STEPS:.2f}%"}
    for told in ("hot_budget_bytes", "8KiB", "4KiB", "alpha", "0.9", "0.5", "paused"):
        assert told in page.text


def test_what_a_rollback_lost_is_not_on_the_line(run: Path) -> None:
    changed = {"policy": {"old": "a", "new": "b"}}
    saved = {"checkpoint": "step-000000020"}
    add_event(run, step=12, kind="knobs", text="kept", details={"changed": {"alpha": {"old": 0.9, "new": 0.5}}})
    add_event(run, step=20, kind="saving", text="saved", details=saved)
    for step in (20, 30):
        add_event(run, step=step, kind="knobs", text=f"lost at {step}", details={"changed": changed})
    add_event(run, step=20, kind="rolled_back", text="went back", details={"from_step": 30, **saved})
    add_event(run, step=20, kind="paused", text="paused")
    page = Page(write_report(run))
    said = {str(each["title"]) for each in page.named("i") if each.get("title")}
    assert {"step 12: kept", "step 20: went back", "step 20: paused"} <= said
    assert not any("lost" in each for each in said)
    assert ", then b" not in page.text


# The figures ---------------------------------------------------------------------------------------------------------


def test_points_are_what_happened_since_the_one_before(finished: Path) -> None:
    read = read_run(finished)
    series = series_of(read)
    snapshots = [each for each in lines_of(finished / "metrics.jsonl") if each["event"] == "snapshot"]
    assert series.steps == [each["step"] for each in snapshots]
    assert series.samples == [each["totals"]["samples_seen"] for each in snapshots]
    for place, now in enumerate(snapshots):
        before = snapshots[place - 1] if place else None
        assert series.hot_lookups[place] == pytest.approx(now["hot_lookup_ratio"], abs=1e-9)
        assert series.popular_samples[place] == pytest.approx(now["popular_sample_ratio"], abs=1e-9)
        assert series.skipped_updates[place] == pytest.approx(now["skipped_row_update_ratio"], abs=1e-9)
        assert series.loss[place] == pytest.approx(now["loss"], rel=1e-6)
        steps = now["step"] - (before["step"] if before else 0)
        spent = now["stage_seconds"]["execute"] - (before["stage_seconds"]["execute"] if before else 0)
        assert series.stages["execute"][place] == pytest.approx(1000 * spent / steps, abs=1e-6)
        seconds = now["seconds"] - (before["seconds"] if before else 0)
        assert sum(column[place] or 0 for column in series.stages.values()) >= 1000 * seconds / steps - 1e-6
        hot = now["tables"]["lookups_hot"][1] - (before["tables"]["lookups_hot"][1] if before else 0)
        lookups = now["tables"]["lookups"][1] - (before["tables"]["lookups"][1] if before else 0)
        assert series.tables[place][1] == hot / lookups
    assert all(name.endswith(")") for name in series.background)


def long_run(run: Path, reports: int, spike_at: int) -> None:
    """Make the metrics of a run long: the last report again and again, a step later, with a loss of its own."""
    last = [each for each in lines_of(run / "metrics.jsonl") if each["event"] == "snapshot"][-1]
    made: list[Mapping[str, Any]] = []
    for n in range(1, reports + 1):
        totals = {**last["totals"], "steps": n, "samples_seen": 8 * n, "samples_trained": 8 * n, "loss_sum": 4.0 * n}
        loss = 7.5 if n == spike_at else 0.5
        made.append({**last, "step": n, "steps_total": reports, "seconds": n / 10, "loss": loss, "totals": totals})
    write_lines(run / "metrics.jsonl", made)


def test_a_long_run_is_thinned_to_exact_means_and_hides_no_spike(run: Path) -> None:
    long_run(run, reports=5000, spike_at=3333)
    read = read_run(run)
    series = series_of(read)
    assert record.MOST_POINTS <= len(series.steps) <= 2 * record.MOST_POINTS
    assert (series.steps[-1], read.reports) == (5000, 5000)
    assert series.steps == sorted(set(series.steps))
    assert series.loss == pytest.approx([0.5] * len(series.loss))
    spans = [span for span in series.loss_span if span]
    assert max(high for _, high in spans) == 7.5
    assert sum(high == 7.5 for _, high in spans) == 1
    out = write_report(run)
    assert f"5,000 reports as {len(series.steps)} points" in Page(out).text
    assert out.stat().st_size < 1 << 20


def test_steps_that_a_resumed_run_repeats_count_once(run: Path) -> None:
    snapshots = [each for each in lines_of(run / "metrics.jsonl") if each["event"] == "snapshot"]
    first, again = snapshots[:7], []  # stopped after step 28, resumed from step 20
    for now in snapshots[5:]:
        totals = {key: value - snapshots[4]["totals"][key] for key, value in now["totals"].items()}
        again.append({**now, "seconds": now["seconds"] - snapshots[4]["seconds"], "totals": totals})
    write_lines(run / "metrics.jsonl", [*first, *again])
    add_event(run, step=20, kind="started", text="20 steps to go")
    read = read_run(run)
    series = series_of(read)
    assert [stretch.began_at_step for stretch in read.stretches] == [0, 20]
    assert series.steps == [each["step"] for each in snapshots]
    assert series.samples == [each["totals"]["samples_seen"] for each in snapshots]
    assert series.starts == {0, 5}
    assert series.loss == pytest.approx([each["loss"] for each in snapshots], rel=1e-6)


@pytest.mark.parametrize(
    "spoil", ["torn", "no metrics", "no summary", "no run.json", "half a run.json", "not JSON", "not ours", "wrong"]
)
def test_an_incomplete_run_directory_is_enough_for_a_report(run: Path, spoil: str) -> None:
    metrics = run / "metrics.jsonl"
    if spoil == "torn":
        metrics.write_bytes(metrics.read_bytes()[:-200])
    elif spoil == "no metrics":
        metrics.unlink()
        (run / "events.jsonl").unlink()
        (run / "summary.json").unlink()
    elif spoil == "no summary":
        (run / "summary.json").unlink()
    elif spoil == "not ours":
        report = {"event": "snapshot", "step": 1, "seconds": 1.0, "loss": 0.5, "totals": {}}
        metrics.write_text(json.dumps(report) + "\n" + json.dumps({"event": "evaluation", "step": None}) + "\n")
        write_lines(run / "events.jsonl", [{"step": "1", "kind": [], "text": None}])
    elif spoil == "wrong":
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps({**summary, "steps": "many", "row_updates": None, "disk": [1]}))
    elif spoil == "not JSON":
        metrics.write_text("[1, 2]\n\nnothing\n" + metrics.read_text())
    else:
        (run / "run.json").write_text((run / "run.json").read_text()[:300])
        if spoil == "no run.json":
            (run / "run.json").unlink()
    text = Page(write_report(run)).text
    told = {
        "torn": "cannot be read and is left out",
        "no metrics": "no figures yet",
        "no summary": "finished",
        "no run.json": "run.json is missing",
        "half a run.json": "run.json cannot be read",
        "not JSON": "metrics.jsonl: 2 lines cannot be read and are left out: 1, 3",
        "wrong": "summary.json has a value that is left out: steps: Input should be a valid integer, got 'many'",
        "not ours": "metrics.jsonl: 2 lines cannot be read and are left out: 1, 2",
    }
    assert told[spoil] in text


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["started"], "killed"),
        (["started", "failed"], "failed"),
        (["started", "stopping", "finished"], "stopped early"),
        (["started", "stopping", "finished", "started", "finished"], "finished"),
        (["started", "finished", "started"], "killed"),
    ],
)
def test_the_state_of_a_run_follows_from_its_journal(run: Path, kinds: list[str], expected: str) -> None:
    write_lines(run / "events.jsonl", [{"step": 1, "kind": kind, "text": kind} for kind in kinds])
    assert phase(read_run(run))[1] == expected


# When it is written --------------------------------------------------------------------------------------------------


def begin(out: Path, *settings: str, write: Callable[[Path], object] = write_report) -> TrainingRun:
    return TrainingRun(load_config("tiny", {}, ["run.steps=6", *settings]), out, write_report=write)


def test_a_run_does_not_fail_when_its_report_cannot_be_written(tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise ValueError("no such luck\nindeed")

    training = begin(tmp_path / "run", write=fail)
    for _ in training.events():
        pass
    assert training.finish()["steps"] == 6
    last = lines_of(tmp_path / "run" / "events.jsonl")[-1]
    assert (last["kind"], last["text"]) == ("warning", "no report could be made (ValueError: no such luck)")


@pytest.mark.parametrize("affordable", [True, False])
def test_after_a_signal_only_short_runs_get_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affordable: bool
) -> None:
    if not affordable:
        monkeypatch.setattr(run_log, "HURRIED_REPORT_BYTES", 10)
    training = begin(tmp_path / "run", "run.steps=500", "knobs.report_every=1")
    for _ in training.events():
        training.runtime.hurry()
    assert training.finish()["eval"] is None
    report = tmp_path / "run" / "report.html"
    assert report.exists() == affordable
    if affordable:
        assert "stopped early" in Page(report).text


def test_a_run_that_fails_leaves_a_report(tmp_path: Path) -> None:
    training = begin(
        tmp_path / "run", "optimizer.dense='SGD'", "optimizer.dense_lr=1e30", "run.steps=60", "knobs.report_every=2"
    )
    with pytest.raises(Exception, match="loss must stay finite"):
        for _ in training.events():
            pass
    text = Page(tmp_path / "run" / "report.html").text
    assert "failed" in text
    assert "the loss must stay finite" in text


def test_the_command_rewrites_a_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    other = tmp_path / "other.html"
    assert main(["report", str(run), "--out", str(other)]) == 0
    assert other.read_text() == (run / "report.html").read_text()
    assert main(["report", str(tmp_path)]) == 2
    assert "RUN must be a run directory" in capsys.readouterr().err
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_report(run, tmp_path / "none" / "report.html")
    assert not list(tmp_path.glob("**/*.part"))
