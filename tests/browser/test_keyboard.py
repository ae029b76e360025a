"""The keyboard stays where it was, on every screen."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Served, wait_for
from .page import APPLIES, focus, focused, press, screen, text, type_over

pytestmark = pytest.mark.alone


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


def test_the_keyboard_stays_in_the_form_of_knobs(signed_in: Any) -> None:
    screen(signed_in, "knobs")
    wait_for(lambda: text(signed_in, "[data-knob=hysteresis]"), "the form")
    field = signed_in.find_element("css selector", "#knob-hysteresis")
    dock = "return document.querySelector('.dock').hidden"
    for button in (".dock .primary", ".dock button[type=button]", "[data-knob=hysteresis] .icon"):
        type_over(field, "0.25" if button == ".dock .primary" else "0.5")
        wait_for(lambda: signed_in.execute_script(APPLIES), "the end of the change before")
        focus(signed_in, button)
        press(signed_in)
        if "icon" not in button:
            wait_for(lambda: signed_in.execute_script(dock), "the end of the edit")
        assert focused(signed_in) == "knob-hysteresis", button
    signed_in.find_element("css selector", ".dock .primary").click()
    wait_for(lambda: signed_in.execute_script(dock), "the default")


@pytest.mark.slow
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
