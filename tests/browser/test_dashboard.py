"""The dashboard as a browser shows it: fast, from this host alone, live, steering, back after a lost sidecar, safe."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest

from adaptive_rec.live.sign_in_code import new_code

from .conftest import START_SECONDS, TRAIN, Served, serving, wait_for

pytestmark = pytest.mark.alone

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
SCREENS = ("now", "tables", "knobs", "events", "checkpoints", "runs")


def text(browser: Any, selector: str) -> str:
    """The text of the first such element, "" where there is none yet."""
    script = "return document.querySelector(arguments[0])?.textContent ?? ''"
    return str(browser.execute_script(script, selector))


def screen(browser: Any, name: str) -> None:
    browser.execute_script("location.hash = arguments[0]", name)


def requested(browser: Any) -> list[str]:
    """Addresses asked for since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]


@pytest.fixture
def signed_in(browser: Any, training: Served) -> Any:
    browser.get("about:blank")
    browser.get(training.dashboard_url)
    wait_for(lambda: "live" in text(browser, "#connection"), "the live stream")
    return browser


def test_signing_in_swaps_the_code_for_a_cookie_no_script_can_read(browser: Any, training: Served) -> None:
    browser.get(training.url)
    browser.delete_all_cookies()
    browser.get(training.url + "/#now")
    assert "access token" in text(browser, "body")
    browser.get("about:blank")
    browser.get(training.dashboard_url)
    wait_for(lambda: text(browser, "#step").startswith("step "), "the dashboard")
    assert training.token not in browser.current_url
    [cookie] = browser.get_cookies()
    assert cookie["name"] == f"adaptive_rec_{urlsplit(training.url).port}"
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert browser.execute_script("return document.cookie") == ""


@pytest.mark.slow
def test_a_link_opened_by_who_is_signed_in_widens_the_session(browser: Any, training: Served) -> None:
    """Both as a page of its own and in a tab that shows the dashboard already, where only the fragment changes."""
    for tab in ("about:blank", training.url):
        browser.get("about:blank")
        browser.get(f"{training.url}/#c={new_code(training.read_token)}")
        wait_for(lambda: "read-only" in text(browser, "#connection"), "the read-only session")
        assert browser.execute_script("return location.hash") == ""
        browser.get(tab)
        entries = browser.execute_script("return history.length")
        browser.get(training.dashboard_url)
        wait_for(lambda: text(browser, "#connection") == "live", "the session that may steer")
        assert browser.current_url == training.url + "/"
        assert browser.execute_script("return history.length") <= entries + 1
    assert "End the window" not in browser.execute_script("return document.getElementById('do-reclassify').title")


def test_signing_out_ends_the_session_of_this_browser(signed_in: Any, training: Served) -> None:
    screen(signed_in, "knobs")
    button = wait_for(lambda: signed_in.find_element("css selector", "#sign-out:not([hidden])"), "the button")
    assert button.accessible_name == "Sign out"
    button.click()
    wait_for(lambda: "access token" in text(signed_in, "body"), "the sign-in page")
    assert signed_in.current_url == training.url + "/"
    assert signed_in.get_cookies() == []
    signed_in.back()
    wait_for(lambda: "access token" in text(signed_in, "body"), "the sign-in page again")


@pytest.mark.slow
def test_first_paint_comes_within_a_second(signed_in: Any) -> None:
    script = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    times = []
    for _ in range(3):
        signed_in.refresh()
        times.append(wait_for(lambda: signed_in.execute_script(script), "the first paint"))
    assert statistics.median(times) < 1000


@pytest.mark.slow
def test_coming_back_again_and_again_takes_no_longer(signed_in: Any, training: Served) -> None:
    """A browser keeps pages that were left as they are, and six connections to a host at most: none may keep its stream."""
    for _ in range(7):
        signed_in.get("about:blank")
        began = time.monotonic()
        signed_in.get(training.url)
        wait_for(lambda: text(signed_in, "#connection") == "live", "the live stream")
        assert time.monotonic() - began < 20
    signed_in.back()
    signed_in.back()
    wait_for(lambda: text(signed_in, "#connection") == "live", "the live stream of a page that was kept")
    step = text(signed_in, "#step")
    wait_for(lambda: text(signed_in, "#step") != step, "the step to move")


def test_every_request_goes_to_the_sidecar(signed_in: Any, training: Served) -> None:
    requested(signed_in)
    signed_in.refresh()
    for name in SCREENS:
        screen(signed_in, name)
        wait_for(lambda shown=name: text(signed_in, f"#screen-{shown} .card"), f"the screen {name}")
    screen(signed_in, "tables/0")
    wait_for(lambda: text(signed_in, "#table-dialog tbody"), "the rows of a table")
    addresses = requested(signed_in)
    assert len(addresses) > len(SCREENS)
    assert [address for address in addresses if not address.startswith(training.url + "/")] == []


def test_figures_move_by_themselves(signed_in: Any) -> None:
    screen(signed_in, "now")
    for selector in ("#step", "#tile-rate b", "#tile-loss b"):
        before = wait_for(lambda each=selector: text(signed_in, each).strip("–"), f"a figure in {selector}")
        wait_for(lambda each=selector, old=before: text(signed_in, each) not in (old, "–", ""), f"{selector} to move")


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
            field.clear()
            field.send_keys(asked)
            press(browser)
            wait_for(lambda found=found: found in text(browser, ".found"), f"the row of {asked}")
        assert "Id -9223372036854775808" in text(browser, ".found"), "no digit is lost"
        field.send_keys("x")
        press(browser)
        wait_for(lambda: "A raw id is a whole number of 64 bits." in text(browser, ".found"), "an error")


def test_a_knob_changed_in_the_form_takes_effect(signed_in: Any, training: Served) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=alpha]"), "the form")
    field = signed_in.find_element("css selector", "#knob-alpha")
    field.clear()
    field.send_keys("7")
    apply = signed_in.find_element("css selector", ".dock .primary")
    wait_for(lambda: "above 0 to 1" in text(signed_in, "#knob-alpha-error"), "the refusal")
    field.clear()
    field.send_keys("0.375")
    apply.click()
    state = "[data-knob=alpha] .field-state"
    said = wait_for(lambda: re.search(r"took effect at step ([\d,]+)", text(signed_in, state)), "the step")
    knobs = training.get("/api/v1/knobs")
    assert knobs["knobs"]["alpha"]["effective"] == knobs["knobs"]["alpha"]["desired"] == 0.375
    assert knobs["effective_since_step"] == int(said[1].replace(",", ""))
    screen(signed_in, "now")
    wait_for(lambda: "→ 0.375" in text(signed_in, ".changes"), "the change among the charts")


def test_a_change_is_given_a_reason_and_undone_beside_its_event(signed_in: Any, training: Served) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=lr_factor]"), "the form")
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    signed_in.find_element("css selector", "#knob-lr_factor").send_keys(keys.CONTROL, "a", keys.NULL, "0.5")
    signed_in.find_element("css selector", ".dock .why").send_keys("loss <b>spikes</b>")
    signed_in.find_element("css selector", ".dock .primary").click()
    wait_for(lambda: training.get("/api/v1/knobs")["knobs"]["lr_factor"]["effective"] == 0.5, "the change")
    screen(signed_in, "events")
    newest = "ol.events li:has(.kind[data-kind=knobs])"
    wait_for(lambda: "lr_factor 1 → 0.5: loss <b>spikes</b>" in text(signed_in, newest), "the event and its reason")
    wait_for(lambda: signed_in.find_element("css selector", f"{newest} .undo").is_displayed(), "the button")
    signed_in.find_element("css selector", f"{newest} .undo").click()
    wait_for(lambda: training.get("/api/v1/knobs")["knobs"]["lr_factor"]["effective"] == 1, "the undo")
    wait_for(lambda: "lr_factor 0.5 → 1: undoes event" in text(signed_in, newest), "the event of the undo")
    shown = "return [...document.querySelectorAll('.undo')].some((e) => !e.hidden && e.ariaLabel.includes('lr_factor'))"
    wait_for(lambda: not signed_in.execute_script(shown), "the button to go")


FOCUSED = "const e = document.activeElement; return e === document.body ? 'nothing' : e.id || e.className || e.tagName"


def focused(browser: Any) -> str:
    """What the keyboard acts on, after the browser has taken the focus from what is hidden or disabled."""
    drawn = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))"
    browser.execute_async_script(drawn)
    return str(browser.execute_script(FOCUSED))


def focus(browser: Any, selector: str) -> None:
    """Give the keyboard to an element, once it can take it: buttons are disabled until the first figures are there."""
    script = "const e = document.querySelector(arguments[0]); e.focus(); return document.activeElement === e"
    wait_for(lambda: browser.execute_script(script, selector), f"{selector} to take the focus")


def press(browser: Any, key: str = "ENTER") -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    browser.switch_to.active_element.send_keys(getattr(keys, key))


def test_the_keyboard_stays_where_it_was_after_pause_and_resume(signed_in: Any, training: Served) -> None:
    for before, after, phase in (("do-pause", "do-resume", "paused"), ("do-resume", "do-pause", "training")):
        focus(signed_in, f"#{before}")
        press(signed_in)
        wait_for(lambda wanted=phase: text(signed_in, "#phase") == wanted, phase)
        assert focused(signed_in) == after
    focus(signed_in, "#do-checkpoint")
    press(signed_in)
    assert focused(signed_in) == "do-checkpoint"
    wait_for(lambda: "Checkpoint written" in text(signed_in, "#toasts"), "the checkpoint")
    assert focused(signed_in) == "do-checkpoint"
    focus(signed_in, "#do-stop")
    press(signed_in)
    wait_for(lambda: signed_in.execute_script("return document.getElementById('stop-dialog').open"), "the question")
    press(signed_in, "ESCAPE")
    assert focused(signed_in) == "do-stop"
    assert training.get("/api/v1/status")["phase"] == "training"


CHARTS = """return [...document.querySelectorAll('#screen-now .chart')].map((chart) => {
  const picture = chart.querySelector('[role=img]');
  return [chart.querySelector('h2').textContent, picture?.getAttribute('aria-label') ?? '',
    chart.querySelectorAll('[aria-live], [role=status], [role=alert]').length];
});"""
SAID = {
    "Rate": r"samples seen: newest [\d.,]+( [kMG])? samples/s, least .* samples/s, greatest .* samples/s",
    "Loss": r"training: newest 0\.\d+ nats, least 0\.\d+ nats, greatest 0\.\d+ nats; evaluation: ",
    "AUC": r"\. No figures yet\.$",
    "Lookups and samples": r"hot lookups: newest [\d.]+%, .*; popular samples: newest [\d.]+%, ",
    "Skipped": r"row updates: newest [\d.]+%, .*; samples: newest ",
    "Rows on the device": r"hot: newest [\d.,]+( [kMG])? rows, .*; of them stale: newest ",
    "Learning rates": r"dense part: newest [\d.e-]+, .*; rows: newest ",
    "Bytes moved": r"to device: newest [\d.]+ \w*B/s, .*; to host: newest ",
}


def test_charts_say_in_words_what_they_draw(signed_in: Any) -> None:
    """For those who cannot see them: title, steps, and the newest, least and greatest value of each series."""
    screen(signed_in, "now")
    step = re.compile(r"over steps ([\d,]+) to ([\d,]+)")
    charts = wait_for(
        lambda: (
            (found := signed_in.execute_script(CHARTS))
            and all(step.search(said) or title.startswith("AUC") for title, said, _ in found)
            and found
        ),
        "the charts",
    )
    assert len(charts) == len(SAID)
    for title, said, live in charts:
        [name] = [name for name in SAID if title.startswith(name)]
        assert said.startswith(f"Line chart of {name.lower()}{'.' if name == 'AUC' else ' over steps '}")
        assert re.search(SAID[name], said), said
        assert live == 0
    before = step.search(charts[0][1])[2]
    wait_for(lambda: step.search(signed_in.execute_script(CHARTS)[0][1])[2] != before, "the words to follow the run")


def test_the_keyboard_stays_in_the_form_of_knobs(signed_in: Any) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=hysteresis]"), "the form")
    field = signed_in.find_element("css selector", "#knob-hysteresis")
    dock = "return document.querySelector('.dock').hidden"
    for button in (".dock .primary", ".dock button[type=button]", "[data-knob=hysteresis] .icon"):
        field.clear()
        field.send_keys("0.25" if button == ".dock .primary" else "0.5")
        wait_for(lambda: signed_in.execute_script(APPLIES), "the end of the change before")
        focus(signed_in, button)
        press(signed_in)
        if "icon" not in button:
            wait_for(lambda: signed_in.execute_script(dock), "the end of the edit")
        assert focused(signed_in) == "knob-hysteresis", button
    signed_in.find_element("css selector", ".dock .primary").click()
    wait_for(lambda: signed_in.execute_script(dock), "the default")


def test_the_keyboard_stays_in_what_comes_and_goes(signed_in: Any) -> None:
    """Messages that are dismissed, pages of rows, changes of knobs among the charts."""
    make = "import('/assets/dom.js').then(({ toast }) => { toast('one'); toast('two'); })"
    signed_in.execute_script(make)
    wait_for(lambda: "two" in text(signed_in, "#toasts"), "the messages")
    focus(signed_in, "#toasts button")
    press(signed_in)
    assert signed_in.execute_script("return document.activeElement.closest('.toast')?.textContent") == "two"
    press(signed_in)
    assert focused(signed_in) == "content"
    screen(signed_in, "tables/0")
    wait_for(lambda: text(signed_in, "#table-dialog tbody"), "the rows of a table")
    signed_in.execute_script("document.querySelector('#table-dialog [value=cold]').click()")
    more = ".drawer-body > button:not([hidden])"
    wait_for(lambda: text(signed_in, more), "more rows")
    focus(signed_in, more)
    press(signed_in)
    rows = "return document.querySelectorAll('#table-dialog tbody tr').length"
    wait_for(lambda: signed_in.execute_script(rows) > 100, "the next rows")
    assert focused(signed_in) != "nothing"


APPLIES = "return document.querySelector('.dock .primary').textContent === 'Apply'"
"""Whether the form sends what is edited: not while it still loads what the change before has made of the knobs."""

REFUSED_LATER = """
  const real = window.fetch;
  window.fetch = async (url, options) => {
    if (options?.method !== "PATCH" || url.includes("dry_run")) return real(url, options);
    const { knobs } = await (await real(url.split("?")[0])).json();
    const now = Object.fromEntries(Object.entries(knobs).map(([name, knob]) => [name, knob.effective]));
    const desired = { ...now, ...JSON.parse(options.body) };
    const answer = { dry_run: false, applied_at_step: null, changed: {}, desired, effective: now };
    return new Response(JSON.stringify(answer), { status: 202, headers: { "Content-Type": "application/json" } });
  };"""


def test_a_pending_change_that_is_refused_is_not_said_to_be_in_effect(signed_in: Any) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=decay]"), "the form")
    signed_in.execute_script(REFUSED_LATER)
    field = signed_in.find_element("css selector", "#knob-decay")
    field.clear()
    field.send_keys("0.125")
    wait_for(lambda: signed_in.execute_script(APPLIES), "the end of the change before")
    signed_in.find_element("css selector", ".dock .primary").click()
    said = wait_for(lambda: text(signed_in, "#toasts .bad"), "the bad news")
    assert "did not take effect: decay is 0.6" in said
    assert "took effect" not in text(signed_in, "[data-knob=decay] .field-state")
    assert "decay: took effect" not in text(signed_in, "#toasts")


def test_it_is_live_again_within_five_seconds_of_a_sidecar_s_restart(signed_in: Any, training: Served) -> None:
    watch = """window.states = [];
      new MutationObserver(() => window.states.push(document.getElementById('connection').dataset.state))
        .observe(document.getElementById('connection'), {attributes: true, attributeFilter: ['data-state']});"""
    signed_in.execute_script(watch)
    killed = training.sidecar()
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: training.sidecar() not in (None, killed), "another sidecar")
    wait_for(lambda: answers(training), "an answer of the new sidecar")
    restarted = time.monotonic()
    # A message that came before the kill notes "live" once more.
    states = "return window.states.some(state => state !== 'live') && window.states.at(-1) === 'live'"
    wait_for(lambda: signed_in.execute_script(states), "the live stream")
    step = text(signed_in, "#step")
    wait_for(lambda: text(signed_in, "#step") != step, "the step to move")
    assert time.monotonic() - restarted < 20


def answers(training: Served) -> bool:
    try:
        return bool(training.get("/api/v1/status"))
    except (URLError, OSError):
        return False


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


ODD = {"a\u202eb": r"a\u202eb", "half\udcff": r"half\udcff", "  ": r"\x20\x20", "\x1b[2J\U000e0041": r"\x1b[2J\U000e0041"}
"""Names that cannot be seen as they are, and what is shown in their place."""


@pytest.mark.parametrize(
    "name", [next(iter(ODD)), *(pytest.param(name, marks=pytest.mark.slow) for name in list(ODD)[1:])], ids=ascii
)
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


def tile(browser: Any, name: str) -> tuple[str, ...]:
    """Label, value and small print of a tile that is shown."""
    script = "return [...document.querySelectorAll(`#tile-${arguments[0]}:not([hidden]) > *`)].map((e) => e.textContent)"
    return tuple(browser.execute_script(script, name))


def said_of(kind: str, found: dict[str, Any]) -> tuple[str, ...]:
    return f"{kind} AUC", f"{found['auc']:.4f}", f"logloss {found['logloss']:.4f} at\xa0step\xa0{found['step']:,}"


def test_an_ended_run_shows_its_final_and_its_best_evaluation(browser: Any, ended: Served) -> None:
    browser.get("about:blank")
    browser.get(ended.dashboard_url)
    wait_for(lambda: tile(browser, "auc") == said_of("Final", EVALUATIONS[3]), "the final evaluation")
    wait_for(lambda: tile(browser, "best") == said_of("Best", EVALUATIONS[1]), "the best evaluation")


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
        wait_for(lambda: text(browser, "#phase") == "finished", "the end", 60)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        made = [line for line in lines if line["event"] == "evaluation"]
        assert [each["step"] for each in made] == [20, 40, 60]
        wait_for(lambda: tile(browser, "auc") == said_of("Final", made[-1]), "the final evaluation")
        assert tile(browser, "best") == said_of("Best", max(made, key=lambda each: float(each["auc"])))
        assert tile(browser, "moved") == ()
        buttons = "return [...document.querySelectorAll('.action:not([hidden])')].map((button) => button.textContent)"
        assert browser.execute_script(buttons) == ["Stop"], "what else there was to steer is over"


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


def test_a_run_goes_back_to_a_checkpoint_of_the_list(signed_in: Any, training: Served) -> None:
    def listed() -> list[str]:
        return [each["name"] for each in training.get("/api/v1/checkpoints")["checkpoints"]]

    def buttons() -> list[Any]:
        return list(signed_in.find_elements("css selector", ".back"))

    screen(signed_in, "checkpoints")
    signed_in.execute_script("document.getElementById('toasts').replaceChildren()")
    for _ in range(2):
        before = listed()
        ready = "#do-checkpoint[aria-disabled='false']:not(:disabled)"
        wait_for(lambda: signed_in.find_elements("css selector", ready), "the button")[0].click()  # noqa: B023
        wait_for(lambda: listed()[:1] != before[:1], "a checkpoint", START_SECONDS)  # noqa: B023
    newest, target = listed()[:2]
    wait_for(lambda: len(buttons()) > 1 and newest in text(signed_in, "#screen-checkpoints"), "both in the list")
    signed_in.find_element("css selector", f"[data-checkpoint='{target}']").click()
    assert f"step {int(target[5:].partition('.')[0]):,}?" in text(signed_in, "#rollback-title")
    assert "The checkpoint written since is removed." in text(signed_in, "dialog.rollback p")
    signed_in.find_element("css selector", "dialog.rollback .why").send_keys("a spike")
    signed_in.find_element("css selector", "dialog.rollback .danger").click()
    back = wait_for(lambda: training.get("/api/v1/events?kind=rolled_back")["events"], "the rollback", START_SECONDS)[-1]
    assert back["details"]["checkpoint"] == target
    assert back["details"]["removed"] == [newest]
    assert "a spike" in json.dumps(back)
    wait_for(lambda: newest not in text(signed_in, "#screen-checkpoints .grid"), "the removed one to leave the list")
    wait_for(lambda: "ent back" in text(signed_in, "#toasts"), "what happened")
    wait_for(lambda: all(each.get_attribute("aria-disabled") == "false" for each in buttons()), "the buttons again")


def test_who_may_only_read_cannot_go_back(browser: Any, training: Served) -> None:
    browser.get("about:blank")
    browser.get(f"{training.url}/#c={new_code(training.read_token)}")
    wait_for(lambda: "read-only" in text(browser, "#connection"), "the read-only session")
    screen(browser, "checkpoints")
    seen = "return [...document.querySelectorAll('.back')].map((button) => button.disabled)"
    assert all(wait_for(lambda: browser.execute_script(seen), "the list"))
