"""The dashboard as a browser shows it: signed in to, fast, from this host alone, live, back after a lost sidecar."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest

from adaptive_rec.live.sign_in_code import new_code

from .conftest import Served, wait_for
from .page import requested, screen, text

pytestmark = pytest.mark.alone

SCREENS = ("now", "tables", "knobs", "events", "checkpoints", "runs")


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


@pytest.mark.slow
def test_signing_out_ends_the_session_of_this_browser(signed_in: Any, training: Served) -> None:
    screen(signed_in, "knobs")
    button = wait_for(lambda: signed_in.find_element("css selector", "#sign-out:not([hidden])"), "the button")
    assert button.accessible_name == "Sign out"
    button.click()
    wait_for(lambda: "access token" in text(signed_in, "body"), "the sign-in page")
    assert signed_in.current_url == training.url + "/"
    left = {cookie["name"] for cookie in signed_in.get_cookies()}  # runs at other ports keep their sessions
    assert f"adaptive_rec_{urlsplit(training.url).port}" not in left
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
