"""The page on exactness names tests and scripts that exist, and the list of finds is whole."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE, LIST = ROOT / "docs" / "why-exact.md", ROOT / "findings" / "README.md"


def test_each_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 15
    missing = [f"{path}::{name}" for path, name in named if f"\ndef {name}(" not in (ROOT / path).read_text()]
    assert not missing


def test_each_find_is_listed_and_says_its_guess() -> None:
    scripts = {path.stem: path.read_text() for path in LIST.parent.glob("*.sh")}
    listed = re.findall(r"^- \[([\w-]+)\]\(([\w-]+)\.sh\): .+\.$", LIST.read_text(), re.M)
    assert sorted(name for name, _ in listed) == sorted(scripts)
    assert all(name == script for name, script in listed)
    assert set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+){2,})`", PAGE.read_text())) <= set(scripts)
    for name, text in scripts.items():
        assert re.search(r"\n# Guess before the run: [^#]", text), name
        assert "What it means" in text, name
        assert "==" in re.search(r"pip\" install .*", text)[0], name
