"""What tests do on a page of the dashboard: read, type, press."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import wait_for


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


def type_over(field: Any, words: str) -> None:
    """Replace what is in a field as a person does: `clear` of the driver is no input, so that an update may come in between."""
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    field.send_keys(keys.CONTROL, "a", keys.NULL, words)


APPLIES = "return document.querySelector('.dock .primary').textContent === 'Apply'"
"""Whether the form sends what is edited: not while it still loads what the change before has made of the knobs."""

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


def tile(browser: Any, name: str) -> tuple[str, ...]:
    """Label, value and small print of a tile that is shown."""
    script = "return [...document.querySelectorAll(`#tile-${arguments[0]}:not([hidden]) > *`)].map((e) => e.textContent)"
    return tuple(browser.execute_script(script, name))
