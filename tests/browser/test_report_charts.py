"""The charts of a report as a browser shows them from a disk: where they stand, and how they answer the pointer and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_pages import NARROW, WIDE, opened, written_report

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_report(tmp_path_factory.mktemp("charts") / "run")


def test_charts_stand_apart_and_so_do_their_legends(browser: Any, report: Path) -> None:
    script = """
    const style = (of, name) => getComputedStyle(document.querySelector(of))[name];
    const tracks = style('.charts', 'gridTemplateColumns').split(' ').length;
    return [tracks, style('.charts', 'rowGap'), style('.legends', 'columnGap'), style('.legend', 'columnGap')];
    """
    for size, columns in ((WIDE, 2), (NARROW, 1)):
        opened(browser, report, size)
        assert browser.execute_script(script) == [columns, "16px", "16px", "6px"], columns
    assert browser.execute_script("return document.documentElement.scrollWidth") <= NARROW[0]


def test_all_plots_show_the_values_under_the_pointer(browser: Any, report: Path) -> None:
    opened(browser, report)
    script = """
    const over = document.querySelector('#loss .u-over');
    const box = over.getBoundingClientRect();
    const at = { clientX: box.left + 0.3 * box.width, clientY: box.top + 20, movementX: 1, bubbles: true };
    if (arguments[0]) over.dispatchEvent(new MouseEvent(arguments[0], at));
    const shown = () => ['#loss', '#speed', '#auc'].map((name) => [document.querySelector(name + ' .at').textContent,
      document.querySelector(name + ' .legend b').textContent]);
    return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(shown()))));
    """
    before = browser.execute_script(script, "")
    loss, speed, auc = browser.execute_script(script, "mousemove")
    assert loss[0] == speed[0]
    assert loss[0].startswith("step ")
    assert auc == before[2]
    assert loss[1] != before[0][1]
    assert browser.execute_script(script, "mouseleave") == before


def test_arrow_keys_move_from_point_to_point(browser: Any, report: Path) -> None:
    opened(browser, report)
    script = """
    document.querySelector('#loss .plot').dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0] }));
    const shown = () => ['#loss', '#speed'].map((name) => document.querySelector(name + ' .at').textContent);
    return new Promise((done) => requestAnimationFrame(() => done(shown())));
    """
    last = browser.execute_script(script, "ArrowLeft")
    assert last[0] == last[1] != ""
    assert browser.execute_script(script, "ArrowRight") == last
    assert browser.execute_script(script, "ArrowLeft")[0] != last[0]
    assert browser.execute_script(script, "Escape") == ["", ""]
