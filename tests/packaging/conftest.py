"""The wheel and the sdist, built once from a copy of the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ("adaptive_rec", "policies", "recipes", "service", "configs", "tests")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "constraints.txt")


@dataclass(frozen=True)
class Built:
    sources: Path
    """The copy of the sources that both were built from."""
    sdist: Path
    wheel: Path
    unpacked: Path
    """The content of the wheel, as in ``site-packages``."""


def build(kind: str, sources: Path, out: Path) -> Path:
    """Build a wheel or sdist with setuptools, as an installer does; return its path."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=sources, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def build_both(folder: Path) -> Built:
    """Build the sdist of the sources, and the wheel of that sdist, as ``python -m build`` does."""
    copy = folder / "copy"
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    sdist = build("sdist", copy, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    wheel = build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return Built(copy, sdist, wheel, folder / "site-packages")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_both(tmp_path_factory.mktemp("built"))
