"""Reports and profiles as a browser shows them from a disk: drawn without a request, and readable by all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.run.training_run import TrainingRun
from tests.browser.conftest import wait_for

pytestmark = pytest.mark.alone

HOSTILE = "<img src=x onerror=alert(1)>"
WIDE, NARROW = (1280, 900), (390, 800)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_report(tmp_path_factory.mktemp("pages") / "run")


def written_report(run: Path) -> Path:
    """The report of a short run with a hostile table name."""
    training = TrainingRun(load_config("tiny", {}, ["knobs.report_every=4", "eval.every_steps=20"]), run)
    for _ in training.events():
        pass
    training.finish()
    about = json.loads((run / "run.json").read_text())
    about["tables"][0]["name"] = HOSTILE
    (run / "run.json").write_text(json.dumps(about))
    assert main(["report", str(run)]) == 0
    return run / "report.html"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pages") / "profile"
    assert main(["profile", "synthetic", "tiny", "--samples", "3000", "--out", str(out)]) == 0
    return out / "profile.html"


def opened(browser: Any, page: Path, size: tuple[int, int] = WIDE, draws: bool = True) -> list[str]:
    """Open a page from the disk, and wait for its plots, which are drawn after the page is laid out; return the addresses asked
    for meanwhile."""
    browser.get("about:blank")
    for kind in ("performance", "browser"):
        browser.get_log(kind)
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    if draws:
        wait_for(lambda: browser.execute_script("return !document.querySelector('.plot:not(:has(canvas))')"), "the plots")
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]


def shown(browser: Any, page: Path) -> None:
    """Have a page in the browser; it stays where the test before left it."""
    if browser.current_url != page.as_uri():
        opened(browser, page)


@pytest.fixture(params=["report", "profile"])
def page(request: pytest.FixtureRequest) -> Path:
    path = request.getfixturevalue(request.param)
    assert isinstance(path, Path)
    return path


mostly_of_reports = pytest.mark.parametrize("page", ["report", pytest.param("profile", marks=pytest.mark.slow)], indirect=True)
"""Both pages have one template, so that of a profile is left to `make check`."""


DRAWN = """
return [...document.querySelectorAll('.plot')].map((plot) => {
  const canvas = plot.querySelector('canvas');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set();
  for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3]) colors.add(pixels.slice(at, at + 4).join());
  return [plot.closest('figure').id, canvas.getBoundingClientRect().width / plot.clientWidth, colors.size];
});
"""


def test_a_page_draws_every_plot_and_asks_for_nothing_and_complains_of_nothing(browser: Any, page: Path) -> None:
    assert opened(browser, page) == [page.as_uri()]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.images.length") == 0
    drawn = browser.execute_script(DRAWN)
    assert len(drawn) >= 3
    assert [figure for figure, width, colors in drawn if width != 1 or colors < 3] == []


@mostly_of_reports
def test_axe_finds_nothing(browser: Any, page: Path) -> None:
    axe = Path(pytest.importorskip("axe_core_python", reason="axe-core-python is not installed").__file__).parent
    shown(browser, page)
    browser.execute_script(next(axe.rglob("axe.min.js")).read_text())
    script = """
    const done = arguments[0];
    axe.run().then(({ violations }) => done(violations.map((v) => [v.id, v.nodes.map((n) => n.html)])));
    """
    assert browser.execute_async_script(script) == []


@mostly_of_reports
def test_without_a_script_the_figures_are_in_tables(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, page, draws=False)
        charts = browser.find_elements("css selector", "figure.chart:has(.plot)")
        tables = [chart.find_elements("css selector", "details td") for chart in charts]
        heights = [chart.find_element("css selector", ".plot").size["height"] for chart in charts]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(charts) >= 3
    assert all(tables)
    assert max(heights) < 60, "no empty boxes"


def test_no_profile_is_wider_than_a_phone(browser: Any, profile: Path) -> None:
    opened(browser, profile, NARROW)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= NARROW[0]


@mostly_of_reports
def test_both_schemes_have_text_that_can_be_read(browser: Any, page: Path) -> None:
    shown(browser, page)
    shades = {}
    for scheme in ("light", "dark"):
        chosen = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", chosen)
        script = (
            "return ['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name].match(/\\d+/g)[0])"
        )
        text, ground = map(int, browser.execute_script(script))
        assert abs(text - ground) > 150
        shades[scheme] = ground
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert shades["dark"] < 60 < 200 < shades["light"]


def test_a_hostile_name_is_text(browser: Any, report: Path) -> None:
    shown(browser, report)
    assert HOSTILE in browser.execute_script("return document.querySelector('#tables').textContent")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
