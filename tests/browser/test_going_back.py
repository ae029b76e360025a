"""A rollback from the dashboard."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptive_rec.live.sign_in_code import new_code

from .conftest import START_SECONDS, Served, wait_for
from .page import screen, text

pytestmark = pytest.mark.alone


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
