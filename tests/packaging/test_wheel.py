"""Wheel and sdist: their content, dependencies and size, and how fast the package is imported."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT, Built

GIVEN = ("torch", "numpy", "numba", "pyarrow", "fastapi", "uvicorn", "pydantic", "pytest")
"""Packages that users of the field have installed anyway, or whose size docs/install.md states: Numba and Arrow."""
ADDED_LIMIT_BYTES = 25e6
IMPORT_LIMIT_SECONDS = 0.1
WAIT_SECONDS = 300


def python(built: Built, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the wheel's package and everything installed here except this checkout."""
    places = f"{built.unpacked}:{sysconfig.get_path('purelib')}"  # without site, .pth files lead nowhere
    return subprocess.run(
        [sys.executable, "-S", *words],
        cwd=cwd,
        env={"PYTHONPATH": places, "PATH": "", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def requirements(found: Distribution, extra: str = "") -> list[Requirement]:
    """The requirements of a distribution, including those of an extra."""
    all_of_them = [Requirement(text) for text in found.requires or []]
    return [each for each in all_of_them if each.marker is None or each.marker.evaluate({"extra": extra})]


def needed(direct: list[Requirement]) -> set[str]:
    """The names of all distributions that these requirements install."""
    names: set[str] = set()
    waiting = [(each.name, extra) for each in direct for extra in ("", *each.extras)]
    while waiting:
        name, extra = waiting.pop()
        names.add(canonicalize_name(name))
        for each in requirements(distribution(name), extra):
            if canonicalize_name(each.name) not in names:
                waiting += [(each.name, one) for one in ("", *each.extras)]
    return names


def size_bytes(name: str) -> int:
    """The size of a distribution on the disk, compiled modules included."""
    places = (Path(str(file.locate())) for file in distribution(name).files or [])
    return sum(place.stat().st_size for place in places if place.is_file())


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """Policies, service and presets lie next to the package in the repository and are linked into it."""
    package = built.sources / "adaptive_rec"
    folders = [package, *(link for link in package.iterdir() if link.is_symlink())]
    found = {path: path.relative_to(package) for folder in folders for path in folder.rglob("*") if path.is_file()}
    wanted = {Path("adaptive_rec", inner): path for path, inner in found.items() if "__pycache__" not in path.parts}
    held = {path.relative_to(built.unpacked): path for path in built.unpacked.rglob("*") if path.is_file()}
    packed = {inner: path for inner, path in held.items() if not inner.parts[0].endswith(".dist-info")}
    assert packed.keys() == wanted.keys()
    assert {"policies", "recipes", "service", "configs"} <= {inner.parts[1] for inner in packed}
    assert [inner for inner, path in packed.items() if path.read_bytes() != wanted[inner].read_bytes()] == []
    assert Path("adaptive_rec/py.typed") in packed
    with zipfile.ZipFile(built.wheel) as archive:  # a link would be packed as the name of its target
        assert [each.filename for each in archive.infolist() if (each.external_attr >> 28) == 0o12] == []


@pytest.mark.slow
def test_the_sdist_has_no_links_and_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    assert [each.name for each in members if each.islnk() or each.issym()] == []
    top = {each.name.split("/")[1] for each in members if "/" in each.name}
    assert {"adaptive_rec", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "constraints.txt"} <= top
    assert not top & {"tests", "benchmarks", "studies", "policies", "recipes"}


@pytest.mark.slow
def test_extras_are_what_the_documents_say(built: Built) -> None:
    [info] = built.unpacked.glob("*.dist-info")
    found = Distribution.at(info)
    assert set(found.metadata.get_all("Provides-Extra") or []) == {"data", "torchrec", "track", "docs", "dev"}
    names = {extra: {each.name for each in requirements(found, extra)} for extra in ("", "data", "track", "torchrec")}
    assert names["data"] == names[""]
    assert names["track"] - names[""] == {"tensorboard"}
    assert names["torchrec"] - names[""] == {"torchrec", "fbgemm-gpu"}
    given = (info / "entry_points.txt").read_text()
    assert "adaptive-rec = adaptive_rec.cli:main" in given


def test_the_project_says_what_its_wheel_says() -> None:
    """Without building one: extras, the command, and folders that lie beside the package and are linked into it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {"data", "torchrec", "track", "docs", "dev"}
    assert [{Requirement(text).name for text in extras[name]} for name in ("data", "track", "torchrec")] == [
        set(), {"tensorboard"}, {"torchrec", "fbgemm-gpu", "torch"}
    ]  # fmt: skip
    bounds = {each.name: each.specifier for each in map(Requirement, extras["torchrec"])}
    together = {"torchrec": "1.8.0", "fbgemm-gpu": "1.8.0", "torch": "2.13.0"}  # FBGEMM's table of releases
    assert all(version in bounds[name] for name, version in together.items())
    newer = {"torchrec": "1.9.0", "fbgemm-gpu": "1.9.0", "torch": "2.14.0"}
    assert not any(version in bounds[name] for name, version in newer.items())
    assert project["scripts"] == {"adaptive-rec": "adaptive_rec.cli:main"}
    package = ROOT / "adaptive_rec"
    assert {"policies", "recipes", "service", "configs"} <= {link.name for link in package.iterdir() if link.is_symlink()}
    assert all(link.exists() for link in package.iterdir())
    assert (package / "py.typed").is_file()


def test_constraints_have_the_version_of_everything_that_tests_run_with() -> None:
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = [
        *project["dependencies"],
        *(each for extra in ("data", "dev", "docs", "track") for each in project["optional-dependencies"][extra]),
    ]
    unpinned = [text for text in tested if Requirement(text).name not in {*pinned, "adaptive-rec"}]
    assert unpinned == []


@pytest.mark.slow
def test_the_packages_added_to_the_users_own_are_small(built: Built) -> None:
    [info] = built.unpacked.glob("*.dist-info")
    added = needed(requirements(Distribution.at(info))) - needed([Requirement(name) for name in GIVEN])
    assert {"rich", "tomli-w", "safetensors"} <= added
    own = sum(path.stat().st_size for path in built.unpacked.rglob("*") if path.is_file())
    sizes = {name: size_bytes(name) for name in added}
    assert own > 1e6
    assert all(size > 1000 for size in sizes.values())
    assert own + sum(sizes.values()) < ADDED_LIMIT_BYTES, sizes


@pytest.mark.slow
def test_the_command_line_runs_from_the_wheel(built: Built, tmp_path: Path) -> None:
    shown = python(built, "-c", "import adaptive_rec; print(adaptive_rec.__file__)", cwd=tmp_path)
    assert shown.stdout.strip() == str(built.unpacked / "adaptive_rec" / "__init__.py"), shown.stderr
    assert "examples" in python(built, "-m", "adaptive_rec", "train", "--help", cwd=tmp_path).stdout
    printed = python(built, "-m", "adaptive_rec", "train", "tiny", "--policy=hotline", "--print-config", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert tomllib.loads(printed.stdout)["run"]["steps"] == 60
    version = python(built, "-m", "adaptive_rec", "--version", cwd=tmp_path).stdout
    assert re.search(r"\d+\.\d+\.\d+", version)


@pytest.mark.slow
def test_the_wheel_alone_does_what_a_user_does_first(built: Built, tmp_path: Path) -> None:
    """It is installed into a fresh environment that finds the libraries here, but not this checkout, and trains, predicts, is
    watched and wraps in a folder of its own."""
    environment, folder = tmp_path / "environment", tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=WAIT_SECONDS)
    install = ["pip", "--python", environment / "bin" / "python", "install", "--quiet", "--no-deps", "--no-index", built.wheel]
    done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True, timeout=WAIT_SECONDS)
    if "No module named pip" in done.stderr:
        pytest.skip("pip is not installed here")
    assert done.returncode == 0, done.stderr
    [site] = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files lead nowhere
    folder.mkdir()
    variables = {"PATH": "", "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # compiled kernels take a minute
    done = subprocess.run(
        [environment / "bin" / "python", ROOT / "tests" / "packaging" / "first_use.py"],
        cwd=folder,
        env={**variables, "XDG_CACHE_HOME": cache},
        capture_output=True,
        text=True,
        timeout=4 * WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["import_package", "train", "predict", "watch", "wrap"]


def test_importing_the_checkout_loads_nothing_heavy(tmp_path: Path) -> None:
    """What the slow test below times, on the sources."""
    heavy = {"torch", "numba", "numpy", "pydantic", "fastapi", "safetensors"}
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import adaptive_rec; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.slow
def test_importing_the_package_is_fast(built: Built, tmp_path: Path) -> None:
    """The import loads nothing heavy; heavy names are loaded when they are first used."""
    code = "import time; start = time.perf_counter(); import adaptive_rec; print(time.perf_counter() - start)"
    seconds = [float(python(built, "-c", code, cwd=tmp_path).stdout) for _ in range(5)]
    assert statistics.median(seconds) < IMPORT_LIMIT_SECONDS, seconds


SCRIPT = """
import adaptive_rec
from adaptive_rec.config.tree import load_config

steps: int = load_config("tiny", {}).run.steps
version: str = adaptive_rec.__version__
wrong: int = adaptive_rec.__version__
"""


@pytest.mark.slow
def test_a_users_type_checker_sees_the_types(built: Built, tmp_path: Path) -> None:
    """mypy follows an installed package only where it has py.typed."""
    pytest.importorskip("mypy", reason="mypy is not installed: pip install 'adaptive-rec[dev]'")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=WAIT_SECONDS)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "adaptive_rec").symlink_to(built.unpacked / "adaptive_rec")
    checked = [sys.executable, "-m", "mypy", "--python-executable", environment / "bin" / "python", "--no-incremental"]
    done = subprocess.run([*checked, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_SECONDS)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert errors[0].startswith('script.py:7: error: Incompatible types in assignment (expression has type "str"')
