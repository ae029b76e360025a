"""The site of docs/ with two versions, as a browser shows it from a disk: search, the switch of versions, ten pages for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.system.version import __version__

from .conftest import wait_for
from .page import focus, press, requested, text
from .test_pages import opened

ROOT = Path(__file__).parents[2]
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
NEWEST = __version__.rpartition(".")[0]
WIDE, NARROW = (1280, 900), (400, 800)
PAGES = (
    "index", "install", "faq", "tuning", "migrate", "limits", "benchmarks", "tutorial/01-embeddings", "howto/own-model",
    "reference/python",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make site` makes of this checkout, first as version 0.1 and then as it is; in a repository of its own."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (pip install 'adaptive-rec[docs]')")
    if shutil.which("mike", path=TOOLS) is None:
        pytest.skip("mike is not installed (pip install 'adaptive-rec[docs]')")
    folder = tmp_path_factory.mktemp("site") / "checkout"
    copy_checkout(folder)
    version = folder / "adaptive_rec" / "system" / "version.py"
    now = version.read_text()
    version.write_text(now.replace(f'"{__version__}"', '"0.1.9"'))
    make_site(folder)
    version.write_text(now)
    make_site(folder)
    return folder / "site"


def copy_checkout(folder: Path) -> None:
    """Copy what git tracks, as it is now, and commit it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout: mike keeps the pages of versions in a branch")
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(ROOT / name):
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message=tests"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def make_site(folder: Path) -> None:
    """Run `make site` with the Python of these tests in place of an environment that make would build."""
    who = {"GIT_COMMITTER_NAME": "tests", "GIT_COMMITTER_EMAIL": "tests@localhost"}
    words = ["make", "--old-file=.venv/installed-dev", "site", f"BIN={Path(sys.executable).parent}"]
    made = subprocess.run(words, cwd=folder, env={**os.environ, **who, "PATH": TOOLS}, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def loaded(browser: Any, page: Path, size: tuple[int, int] = WIDE) -> list[str]:
    """Open a page, and wait until the theme has added its buttons to it; return the addresses asked for."""
    asked = opened(browser, page, size)
    buttons = "return document.querySelectorAll('pre > code').length === document.querySelectorAll('.md-code__nav').length"
    wait_for(lambda: browser.execute_script(buttons), "the buttons of blocks", 60)
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")
    return asked


def test_the_first_page_leads_to_the_newest_version_which_asks_for_nothing_beyond_the_disk(browser: Any, site: Path) -> None:
    asked = opened(browser, site / "index.html")
    wait_for(lambda: text(browser, "h1"), "the page", 60)
    wait_for(lambda: browser.current_url == (site / NEWEST / "index.html").as_uri(), "the newest version", 60)
    asked += requested(browser)
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    assert browser.get_log("browser") == []


def test_a_search_finds_pages_and_a_result_leads_to_its_page(browser: Any, site: Path) -> None:
    loaded(browser, site / NEWEST / "tutorial" / "index.html")
    browser.execute_script("document.querySelector('[for=__search]').click()")
    focus(browser, ".md-search__input")
    browser.switch_to.active_element.send_keys("hysteresis")
    results = "return [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    found = wait_for(lambda: browser.execute_script(results), "results", 60)
    assert len(found) > 1
    press(browser, "ARROW_DOWN")
    press(browser)
    wait_for(lambda: browser.current_url.split("?")[0] == found[0].split("?")[0], "the page of the result", 60)
    assert "hysteresis" in text(browser, "article").lower()


def test_the_switch_leads_to_another_version_and_names_the_one_that_is_read(browser: Any, site: Path) -> None:
    loaded(browser, site / NEWEST / "howto" / "disk.html")
    assert chosen(browser) == [__version__, "0.1.9"]
    focus(browser, ".version-switch")
    press(browser, "ARROW_DOWN")
    wait_for(lambda: browser.current_url == (site / "0.1" / "index.html").as_uri(), "the other version", 60)
    assert chosen(browser) == ["0.1.9", __version__]


def chosen(browser: Any) -> list[str]:
    """The versions of the switch, that which is shown first."""
    wait_for(lambda: text(browser, ".version-switch"), "the switch", 60)
    script = "return [...document.querySelectorAll('.version-switch option')].map((option) => [!option.selected, option.text])"
    return [name for _, name in sorted(browser.execute_script(script))]


FLAWS = """
const [rules, done] = arguments, width = document.documentElement.clientWidth, levels = [];
for (const heading of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) levels.push(Number(heading.tagName[1]));
const skipped = levels.filter((level, at) => level > (levels[at - 1] ?? 0) + 1);
axe.run(rules ? { runOnly: rules } : {}).then(({ violations }) => done([
  ...violations.map((found) => [found.id, found.nodes.map((node) => node.html)]),
  ...(document.documentElement.scrollWidth > width ? [['wider than the window', document.documentElement.scrollWidth]] : []),
  ...(skipped.length ? [['headings', skipped]] : []),
]));
"""


DARK = """
const still = document.createElement('style');
still.textContent = '* { transition: none !important }';
document.head.append(still);
document.body.dataset.mdColorScheme = 'slate';
"""
"""The colours of the dark scheme, at once: axe would find those half-way."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_by_all_at_both_widths(browser: Any, site: Path, name: str) -> None:
    axe = Path(pytest.importorskip("axe_core_python", reason="axe-core-python is not installed").__file__).parent
    for size in (WIDE, NARROW):
        loaded(browser, site / NEWEST / f"{name}.html", size)
        browser.execute_script(next(axe.rglob("axe.min.js")).read_text())
        assert browser.execute_async_script(FLAWS, None) == [], size
    browser.execute_script(DARK)
    assert browser.execute_async_script(FLAWS, ["color-contrast"]) == [], "dark"
