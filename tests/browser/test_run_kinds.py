"""Runs of other kinds in the dashboard: ended, failed, on a disk, of several ranks, with names that attack the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import START_SECONDS, TRAIN, Served, serving, wait_for
from .page import press, screen, text, tile, type_over

pytestmark = pytest.mark.alone


@pytest.mark.slow
def test_a_run_with_rows_on_a_disk_has_a_panel_for_it_and_the_row_of_a_raw_id_is_found(
    browser: Any, signed_in: Any, tmp_path: Path
) -> None:
    assert text(signed_in, ".disk-card[hidden] h2") == "Rows on the disk", "all rows of this run are in memory"
    settings = ["data.ids=raw", "knobs.admit_after=2", "run.host_memory=1MiB", "knobs.hot_budget_bytes=8KiB"]
    run = tmp_path / "run"
    with serving(run, [*TRAIN, *(f"--set={each}" for each in settings), f"--out={run}"]) as served:
        wait_for(lambda: served.get("/api/v1/status")["step"] > 20, "some steps", START_SECONDS)
        wait_for(lambda: served.get("/api/v1/stats")["disk"], "a report", START_SECONDS)
        browser.get(served.dashboard_url)
        wait_for(lambda: text(browser, ".disk-card:not([hidden]) b").endswith(" ms"), "the panel")
        figures = [each.text for each in browser.find_elements("css selector", ".disk-figures b")]
        assert all(figures)
        assert figures[-1].split(" / ")[0].endswith("iB")
        screen(browser, "tables/0")
        wait_for(lambda: browser.find_elements("css selector", ".search [aria-label='Raw id']"), "the box for raw ids")
        field = browser.find_element("css selector", ".search [aria-label='Raw id']")
        for asked, found in (("7", "Id 7Row"), ("-9223372036854775808", "Rowshared row 0: the id has none of its own")):
            type_over(field, asked)
            press(browser)
            wait_for(lambda found=found: found in text(browser, ".found"), f"the row of {asked}")
        assert "Id -9223372036854775808" in text(browser, ".found"), "no digit is lost"
        field.send_keys("x")
        press(browser)
        wait_for(lambda: "A raw id is a whole number of 64 bits." in text(browser, ".found"), "an error")


HOSTILE = "<img src=x onerror=alert(1)>"
RANK = {
    **{"work_seconds": 1.0, "wait_seconds": 1.0, "sent_bytes": {"rows": 6000}},
    **{"work_seconds_per_step": 0.04, "wait_seconds_per_step": 0.05, "hot_lookup_ratio": 0.75},
    "sent_bytes_per_sample": {"rows": 1260.2, "dense": 5.0},
}
SLOW = {"rank": 1, "text": f"rank 1 holds up the others {HOSTILE}"}
EVALUATIONS: list[dict[str, Any]] = [
    {"event": "evaluation", "step": 10**9 + at, "auc": auc, "logloss": loss, "samples": 100}
    for at, auc, loss in ((1, 0.7, 0.5), (2, 0.8, 0.46), (3, None, 0.4), (4, 0.75, 0.45))
]
EVALUATIONS[-1]["ranking"] = {
    "groups": 1200, "groups_with_positive": 800, "groups_with_both": 0,
    "metrics": {"gauc": None, "recall@20": 0.25, HOSTILE: 0.5},
}  # fmt: skip


@pytest.fixture
def hostile_run(training: Served, tmp_path: Path) -> Path:
    """A finished run whose tables and events have names that would be markup."""
    return make_hostile_run(training, tmp_path / "run")


def make_hostile_run(training: Served, run: Path) -> Path:
    run.mkdir()
    for name in ("run.json", "config.toml", "metrics.jsonl", "events.jsonl"):
        shutil.copy(training.run / name, run / name)
    about = json.loads((run / "run.json").read_text())
    about["tables"][0]["name"] = HOSTILE
    (run / "run.json").write_text(json.dumps(about))
    event = {"time": time.time(), "step": 1, "kind": "warning", "text": HOSTILE, "details": {HOSTILE: HOSTILE}}
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    return run


@pytest.fixture(scope="module")
def ended(training: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Such a run that is served, with evaluations, two ranks, and what a device took."""
    run = make_hostile_run(training, tmp_path_factory.mktemp("ended") / "run")
    with (run / "metrics.jsonl").open("r+") as metrics:
        newest = next(each for each in map(json.loads, metrics) if each["event"] == "snapshot")
        newest |= {"step": 10**9, "ranks": [RANK, {**RANK, "work_seconds_per_step": 0.08}], "straggler": SLOW}
        metrics.seek(0, os.SEEK_END)
        metrics.writelines(json.dumps(line) + "\n" for line in [newest, *EVALUATIONS])
    choice = {"time": time.time(), "step": 1, "kind": "split", "text": "run whole", "details": {"whole_seconds": 0.00125}}
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps(choice) + "\n")
    memory = {"device_staging_bytes": 34 << 20, "device_peak_bytes": 3 << 29}
    (run / "summary.json").write_text(json.dumps(memory))
    with serving(run, ["serve", str(run)]) as served:
        yield served


def test_markup_in_names_is_shown_as_text(browser: Any, ended: Served) -> None:
    errors = pytest.importorskip("selenium.common.exceptions")
    browser.get("about:blank")
    browser.get(ended.dashboard_url)
    wait_for(lambda: "history" in text(browser, "#connection"), "the run's history")
    screen(browser, "tables")
    wait_for(lambda: HOSTILE in text(browser, "#screen-tables tbody"), "the table's name")
    screen(browser, "tables/0")
    wait_for(lambda: text(browser, "#table-title") == HOSTILE, "the table's rows")
    screen(browser, "events")
    warning = "ol.events li:has(.kind[data-kind=warning]) dl"
    wait_for(lambda: text(browser, warning).count(HOSTILE) == 2, "the event")
    assert browser.execute_script("return document.querySelectorAll('img:not(.mark)').length") == 0
    with pytest.raises(errors.NoAlertPresentException):
        browser.switch_to.alert.dismiss()


def test_metrics_that_rank_have_a_panel_and_a_chart_each(browser: Any, ended: Served) -> None:
    browser.get("about:blank")
    browser.get(ended.dashboard_url)
    wait_for(lambda: "0.2500" in text(browser, ".ranking-card:not([hidden])"), "the panel")
    shown = text(browser, ".ranking-card")
    assert "1,200 groups, 800 with a positive, 0 with both classes" in shown
    labels = [each.text for each in browser.find_elements("css selector", ".ranking-figures .label")]
    assert labels == ["gauc", "recall@20", HOSTILE]
    titles = "return [...document.querySelectorAll('.chart h2')].map((title) => title.textContent)"
    wait_for(lambda: any(each.startswith("recall@20") for each in browser.execute_script(titles)), "the chart")
    found = [each for each in browser.execute_script(titles) if "mean over groups" in each]
    assert [each.split(" of evaluations")[0] for each in found] == ["gauc", "recall@20", HOSTILE]


ODD = {"a\u202eb": r"a\u202eb", "half\udcff": r"half\udcff", "  ": r"\x20\x20", "\x1b[2J\U000e0041": r"\x1b[2J\U000e0041"}
"""Names that cannot be seen as they are, and what is shown in their place."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_what_cannot_be_seen_is_written_out(browser: Any, hostile_run: Path, name: str) -> None:
    about = json.loads((hostile_run / "run.json").read_text())
    about["tables"][0]["name"] = name
    (hostile_run / "run.json").write_text(json.dumps(about))
    hostile_run = hostile_run.rename(hostile_run.with_name(name))
    event = {"time": time.time(), "step": 1, "kind": "warning", "text": f"about {name}", "details": {"it": name}}
    with (hostile_run / "events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    with serving(hostile_run, ["serve", str(hostile_run)]) as served:
        browser.get(served.dashboard_url)
        wait_for(lambda: "history" in text(browser, "#connection"), "the run's history")
        screen(browser, "tables/0")
        wait_for(lambda: text(browser, "#table-title") == ODD[name], "the table's rows")
        names = "return [...document.querySelectorAll('#screen-tables tbody a')].map((link) => link.textContent)"
        assert ODD[name] in browser.execute_script(names)
        screen(browser, "events")
        if name.strip() and "\udcff" not in name:  # a line with half a surrogate pair is left out of the events
            wait_for(lambda: f"about {ODD[name]}" in text(browser, "#screen-events"), "the event")
        assert text(browser, "#run-name") == ODD[name]


def said_of(kind: str, found: dict[str, Any]) -> tuple[str, ...]:
    return f"{kind} AUC", f"{found['auc']:.4f}", f"logloss {found['logloss']:.4f} at\xa0step\xa0{found['step']:,}"


def test_an_ended_run_shows_its_final_and_its_best_evaluation(browser: Any, ended: Served) -> None:
    browser.get("about:blank")
    browser.get(ended.dashboard_url)
    wait_for(lambda: tile(browser, "auc") == said_of("Final", EVALUATIONS[3]), "the final evaluation")
    wait_for(lambda: tile(browser, "best") == said_of("Best", EVALUATIONS[1]), "the best evaluation")


@pytest.mark.slow
def test_a_run_that_failed_says_why(browser: Any, hostile_run: Path) -> None:
    event = {"time": time.time(), "step": 1, "kind": "failed", "text": f"ValueError: {HOSTILE}", "details": {}}
    with (hostile_run / "events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    with serving(hostile_run, ["serve", str(hostile_run)]) as served:
        browser.get(served.dashboard_url)
        wait_for(lambda: text(browser, "#phase") == "failed", "the phase")
        assert text(browser, "#failure") == f"The run failed: ValueError: {HOSTILE}"


@pytest.mark.slow
def test_a_run_that_lingers_shows_its_final_and_its_best_evaluation(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "tiny", "--steps=60", "--set=eval.every_steps=20", "--linger", f"--out={run}"]
    with serving(run, words) as served:
        browser.get(served.dashboard_url)
        wait_for(lambda: text(browser, "#phase") == "finished", "the end")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        made = [line for line in lines if line["event"] == "evaluation"]
        assert [each["step"] for each in made] == [20, 40, 60]
        wait_for(lambda: tile(browser, "auc") == said_of("Final", made[-1]), "the final evaluation")
        assert tile(browser, "best") == said_of("Best", max(made, key=lambda each: float(each["auc"])))
        assert tile(browser, "moved") == ()
        buttons = "return [...document.querySelectorAll('.action:not([hidden])')].map((button) => button.textContent)"
        assert browser.execute_script(buttons) == ["Stop"], "what else there was to steer is over"


@pytest.mark.slow
def test_ranks_are_shown_where_there_are_several(signed_in: Any, ended: Served) -> None:
    assert signed_in.execute_script("return document.querySelector('.rank-card').hidden")
    signed_in.get(ended.dashboard_url)
    wait_for(lambda: text(signed_in, ".straggler") == SLOW["text"], "the straggler's name")
    lines = "[...document.querySelectorAll('.rank-card tr')]"
    cells = "(line) => [...line.children].map((cell) => cell.textContent)"
    assert signed_in.execute_script(f"return {lines}.map({cells})") == [
        ["Rank", "Own work", "Waiting", "", "Hot lookups", "Sent", "rows", "dense"],
        ["rank 0", "40.0 ms", "50.0 ms", "", "75.0%", "1.24 KiB", "1,260", "5"],
        ["rank 1", "80.0 ms", "50.0 ms", "", "75.0%", "1.24 KiB", "1,260", "5"],
    ]
    assert text(signed_in, ".rank-card .slow th") == "rank 1"


@pytest.mark.slow
def test_what_a_device_took_and_how_batches_ran_is_shown(browser: Any, ended: Served) -> None:
    browser.get("about:blank")
    browser.get(ended.dashboard_url)
    wait_for(lambda: "history" in text(browser, "#connection"), "the run's history")
    screen(browser, "tables")
    said = wait_for(lambda: re.search("Staging memory(.*?)Hot rows", text(browser, "#screen-tables .summary")), "memory")
    assert said[1] == "34.0 MiBwhole process at its peak: 1.50 GiB"
    screen(browser, "events")
    choice = "ol.events li:has(.kind[data-kind=split]) dl"
    wait_for(lambda: "0.00125" in text(browser, choice), "the times of the choice")
    assert "whole or split" in text(browser, "#screen-events .filters [data-kind=split]")
