"""The form of knobs in a browser: sent, refused, undone, edited while it is sent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Served, wait_for
from .page import APPLIES, screen, text, type_over

pytestmark = pytest.mark.alone


def test_a_knob_changed_in_the_form_takes_effect(signed_in: Any, training: Served) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=alpha]"), "the form")
    field = signed_in.find_element("css selector", "#knob-alpha")
    type_over(field, "7")
    apply = signed_in.find_element("css selector", ".dock .primary")
    wait_for(lambda: "above 0 to 1" in text(signed_in, "#knob-alpha-error"), "the refusal")
    type_over(field, "0.375")
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
    type_over(signed_in.find_element("css selector", "#knob-lr_factor"), "0.5")
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
    type_over(field, "0.125")
    wait_for(lambda: signed_in.execute_script(APPLIES), "the end of the change before")
    signed_in.find_element("css selector", ".dock .primary").click()
    said = wait_for(lambda: text(signed_in, "#toasts .bad"), "the bad news")
    assert "did not take effect: decay is 0.6" in said
    assert "took effect" not in text(signed_in, "[data-knob=decay] .field-state")
    assert "decay: took effect" not in text(signed_in, "#toasts")


HELD = """
  const real = window.fetch;
  window.fetch = async (url, options) => {
    const answer = await real(url, options);
    if (options?.method === "PATCH" && !url.includes("dry_run")) await new Promise((done) => { window.letGo = done; });
    return answer;
  };"""


@pytest.mark.slow
def test_what_is_edited_while_a_change_is_sent_stays(signed_in: Any, training: Served) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=hysteresis]"), "the form")
    signed_in.execute_script(HELD)
    field = signed_in.find_element("css selector", "#knob-hysteresis")
    type_over(field, "0.375")
    wait_for(lambda: signed_in.execute_script(APPLIES), "the end of the change before")
    signed_in.find_element("css selector", ".dock .primary").click()
    wait_for(lambda: signed_in.execute_script("return typeof window.letGo === 'function'"), "the answer")
    type_over(field, "0.75")
    signed_in.execute_script("window.letGo()")
    wait_for(lambda: signed_in.execute_script(APPLIES), "the end of the change")
    assert training.get("/api/v1/knobs")["knobs"]["hysteresis"]["effective"] == 0.375
    assert field.get_attribute("value") == "0.75"
    assert "hysteresis 0.375 → 0.75" in text(signed_in, ".dock")
    signed_in.find_element("css selector", ".dock button[type=button]").click()
