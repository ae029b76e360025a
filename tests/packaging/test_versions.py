"""Versions of Python, torch and the dependencies: what pyproject.toml allows is what was run, and a user is told of others."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from adaptive_rec.system.version import TESTED_PYTHON, TESTED_TORCH, __version__, warning_beyond
from tests.packaging import versions
from tests.packaging.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_project_allows_what_was_run_and_nothing_else() -> None:
    (_, first), (_, last) = TESTED_PYTHON
    assert PROJECT["requires-python"] == f">=3.{first},<3.{last + 1}"
    (_, first), (_, last) = TESTED_TORCH
    [torch] = [each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "torch"]
    assert torch.specifier == SpecifierSet(f">=2.{first},<2.{last + 1}")
    assert last - first >= 3, "the newest four versions of torch are supported"


@pytest.mark.parametrize(
    ("python", "torch", "told"),
    [
        ((3, 11), "2.11.0", ""),
        ((3, 13), "2.15.0+cu130", ""),
        ((3, 12), None, ""),
        ((3, 12), "of my own", ""),
        ((3, 14), "2.13.0", "Python should be 3.11 to 3.13, with which adaptive-rec {} was tested, got 3.14"),
        ((3, 12), "2.16.0a0+git12", "torch should be 2.11 to 2.15, with which adaptive-rec {} was tested, got 2.16.0a0+git12"),
        ((3, 12), "2.9.1", "torch should be 2.11 to 2.15, with which adaptive-rec {} was tested, got 2.9.1"),
    ],
)
def test_other_versions_are_named(python: tuple[int, int], torch: str | None, told: str) -> None:
    expected = f"{told.format(__version__)}; install one of these" if told else ""
    assert warning_beyond(python, torch) == expected


FIRST_USE = """
import sys, types, warnings
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.__version__ = "2.99.0"
import adaptive_rec
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    adaptive_rec.AdaptiveRecError, adaptive_rec.ConfigError
print(*(f"{each.category.__name__} {each.filename}: {each.message}" for each in caught), sep="\\n")
"""


def test_the_first_use_warns_once() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    [line] = done.stdout.splitlines()
    assert line.startswith("RuntimeWarning <string>: torch should be 2.11 to 2.15"), done.stderr


def test_a_command_warns_by_the_files_of_torch(tmp_path: Path) -> None:
    """Torch is not loaded for it. Of several processes one warns."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.99.0'\n")
    code = "from adaptive_rec.system.version import warning_here; print(warning_here())"
    for rank, told in (("0", "torch should be 2.11 to 2.15"), ("1", "")):
        variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "", "RANK": rank}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith(told or "\n"), done.stdout + done.stderr


def test_the_page_of_the_installation_has_what_was_run() -> None:
    """Each torch under each Python, and the oldest of all."""
    page = (ROOT / "docs" / "install.md").read_text()
    assert versions.table({}).splitlines()[0] in page
    rows = [re.findall(r"\| ([^|]+) (?=\|)", line) for line in page.splitlines() if re.match(r"\| 3\.\d+ \|", line)]
    (_, first), (_, last) = TESTED_PYTHON
    assert [row[0] for row in rows] == [f"3.{minor}" for minor in range(first, last + 1)]
    assert [cell for row in rows for cell in row[1:] if not re.fullmatch(r"2\.\d+\.\d+", cell)] == []
    assert len({cell for row in rows for cell in row[1:]}) == TESTED_TORCH[1][1] - TESTED_TORCH[0][1] + 1


def test_results_make_a_table() -> None:
    ran = {"outcome": "ran", "torch": "2.15.0"}
    lacking = {"outcome": "not installed", "reason": "no such Python"}
    cells = {versions.Combination("3.11", "2.15"): ran, versions.Combination("3.13", "2.11", True): lacking}
    shown = versions.table(cells).splitlines()
    assert shown[2] == "| 3.11 | not run | not run | not run | not run | 2.15.0 | not run |"
    assert shown[4].endswith("| not installed |")
    assert len(versions.combinations()) == 18
    assert shown[-1] == "- Python 3.13, torch 2.11, oldest of all: not installed: no such Python"


def test_the_release_has_one_number_and_one_date() -> None:
    changelog, citation = (ROOT / "CHANGELOG.md").read_text(), (ROOT / "CITATION.cff").read_text()
    number, date = re.search(r"^## (\S+) \((\S+)\)$", changelog, re.MULTILINE).groups()
    assert f"\nversion: {number}\ndate-released: {date}\n" in citation
    assert __version__ == number, "CHANGELOG.md begins with the release that the package is of"


def test_what_is_deprecated_is_listed_with_its_end() -> None:
    """Two minor versions after it was; then it goes."""
    page = (ROOT / "docs" / "versions.md").read_text()
    rows = re.findall(r"^\| (.+?) \| .+? \| (0\.\d+) \| (0\.\d+) \|$", page, re.MULTILINE)
    assert {name for name, _, _ in rows} == {"`adaptive_rec.data.logs`", "extra `adaptive-rec[data]`"}
    for name, since, end in rows:
        assert int(end[2:]) == int(since[2:]) + 2, name
        assert tuple(map(int, __version__.split(".")[:2])) < (0, int(end[2:])), f"{name} has come to its end"
