"""What the page shows at a glance: the best evaluation, losses that part, why a change waits, details, and why a row is hot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main

from .conftest import TRAIN, Served, serving, wait_for

pytestmark = pytest.mark.alone

WORDS = [*TRAIN, "--policy=slipstream", "--set=eval.every_steps=50", "--set=eval.max_samples=500"]


def text(browser: Any, css: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css))


@pytest.fixture(scope="module")
def run(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run without end that evaluates, signed in to."""
    out = tmp_path_factory.mktemp("glance") / "run"
    with serving(out, [*WORDS, f"--out={out}"]) as served:
        wait_for(lambda: served.get("/api/v1/status")["best_evaluation"], "an evaluation")
        browser.get(served.dashboard_url)
        wait_for(lambda: text(browser, "#phase") not in ("", "…"), "the page")
        yield served


def show(browser: Any, served: Served, name: str) -> None:
    browser.execute_script("location.hash = arguments[0]", name)


def test_learning_rates_and_the_best_evaluation_are_shown(browser: Any, run: Served) -> None:
    show(browser, run, "now")
    wait_for(lambda: "dense part 0.01" in text(browser, ".charts").replace("\n", " "), "the learning rates")
    wait_for(lambda: re.search(r"at step [\d,]+", text(browser, "#tile-auc")), "an evaluation")

    def best_is_shown() -> bool:
        now = run.get("/api/v1/status")
        best, newest = now["best_evaluation"], now["evaluation"]
        return best["step"] == newest["step"] or f"best {best['auc']:.4f}" in text(browser, "#tile-auc")

    wait_for(best_is_shown, "the best evaluation")
    assert run.get("/api/v1/stats")["dense_lr"] == 0.01
    assert not browser.find_element("css selector", ".parted").is_displayed()


@pytest.mark.slow
def test_details_have_configuration_log_and_what_the_trainer_uses(browser: Any, run: Served) -> None:
    (run.run / "log.txt").write_text("first line\n<b>second</b> \u202e line\n")
    show(browser, run, "details")
    wait_for(lambda: re.search(r"Processor\n[\d.]+ of \d+", text(browser, ".use-figures")), "the processor")
    assert "MiB of" in text(browser, ".use-figures")
    log = "[aria-label='Log of the run']"
    wait_for(lambda: text(browser, log) == "first line\n<b>second</b> \\u202e line", "the log")
    with (run.run / "log.txt").open("a") as file:
        file.write("third line\n")
    wait_for(lambda: text(browser, log).endswith("third line"), "the new line")
    wait_for(lambda: "run.batch_size" in text(browser, ".config"), "the configuration")
    browser.find_element("css selector", "#screen-details [type=search]").send_keys("eval every_steps")
    rows = "return [...document.querySelectorAll('.config tbody tr')].map((row) => [row.innerText, row.className])"
    wait_for(lambda: len(browser.execute_script(rows)) in (1, 2), "the keys found")
    found = {words.split()[0]: name for words, name in browser.execute_script(rows)}
    assert found["eval.every_steps"] == "changed"


@pytest.mark.slow
def test_a_row_says_why_it_is_hot(browser: Any, run: Served) -> None:
    hot = wait_for(lambda: run.get("/api/v1/placement/0?class=hot&sort=estimate&limit=1")["rows"], "a hot row")[0]
    show(browser, run, "tables/0")
    wait_for(lambda: text(browser, "#table-dialog .rows tbody"), "the rows")
    browser.find_element("css selector", "#table-dialog .search input").send_keys(str(hot["id"]))
    browser.find_element("css selector", "#table-dialog .search button").click()
    wait_for(
        lambda: re.search(r"(hot|stale): .*its estimate of [\d.,]+ lookups? ranks", text(browser, ".found-row")),
        "the reason",
    )
    browser.execute_script("document.querySelector('#table-dialog').close()")


WAITS = """
  const real = window.fetch;
  window.fetch = async (url, options) => {
    const answer = await real(url, options);
    if (!url.endsWith("/knobs") || options?.method !== "GET") return answer;
    const shown = await answer.json();
    shown.knobs.alpha.desired = 0.5;
    const reason = "the run has been evaluating for 12 s; changes take effect at the next step boundary";
    Object.assign(shown, { pending: true, reason });
    const headers = { "Content-Type": "application/json", ETag: answer.headers.get("ETag") };
    return new Response(JSON.stringify(shown), { status: 200, headers });
  };"""


@pytest.mark.slow
def test_a_pending_knob_says_why_it_waits(browser: Any, run: Served) -> None:
    # Before any script of the page: it may read the knobs while it still loads.
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WAITS})
    browser.get(run.url)
    show(browser, run, "knobs")
    words = "pending, as the run has been evaluating for 12 s; changes take effect at the next step boundary"
    wait_for(lambda: words in text(browser, "[data-knob=alpha] .field-state"), "the reason")
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.mark.slow
def test_an_ended_run_shows_its_rows_and_that_losses_parted(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "tiny", "--steps=40", "--no-serve", f"--out={out}"]
    assert main(words) == 0
    details = {"step": 40, "logloss": 0.6, "least_step": 10, "least_logloss": 0.1, "least_training_loss": 0.4,
               "training_loss": 0.3, "worse": 5}  # fmt: skip
    event = {"time": 1.0, "step": 40, "kind": "overfit", "text": "parted", "details": details}
    with (out / "events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    with serving(out, ["serve", str(out)]) as served:
        browser.get(served.dashboard_url)
        said = "rose from 0.1000 at step 10 to 0.6000 at step 40, while training loss fell from 0.4000 to 0.3000"
        wait_for(lambda: said in text(browser, ".parted"), "the mark")
        show(browser, served, "tables/0")
        wait_for(lambda: "as of checkpoint step-000000040" in text(browser, "#table-dialog"), "the checkpoint")
        wait_for(lambda: text(browser, "#table-dialog .rows tbody").count("\n") > 3, "the rows")
