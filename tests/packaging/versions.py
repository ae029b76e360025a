"""The wheel beside each Python and torch that it allows, and beside the oldest of every dependency: ``make check-matrix``.

Each cell is an environment made by uv, in which `first_use.py` and some quick tests run. Results are kept in
``studies/matrix/results.jsonl``: what ran there, of this version of the package, is not run again. An environment, and
the torch that was downloaded for it, is removed after its cell, so that 10 GB of disk suffice.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_rec.system.version import TESTED_PYTHON, TESTED_TORCH, __version__
from tests.packaging.conftest import ROOT, build_both

FOLDER = ROOT / "studies" / "matrix"
RESULTS = FOLDER / "results.jsonl"
QUICK_TESTS = ("tests/test_batch.py", "tests/modules/test_parity.py")
TOOLS = ("pytest>=8", "pytest-timeout>=2.3")
LIMIT_SECONDS = 1800
DIRECT = ("numpy", "numba", "pyarrow", "pydantic", "fastapi", "uvicorn", "safetensors", "rich", "jinja2", "packaging")
"""Dependencies whose versions a result names."""


@dataclass(frozen=True)
class Combination:
    python: str
    torch: str
    oldest: bool = False
    """Whether every dependency is the oldest that pyproject.toml allows, torch too; else the newest."""

    @property
    def name(self) -> str:
        return f"Python {self.python}, torch {self.torch}" + (", oldest of all" if self.oldest else "")


def combinations() -> list[Combination]:
    """Return all cells: those of the newest torch and of the oldest of all first, then each other torch under one Python after
    another, so that a few cells say most."""
    pythons = [f"3.{minor}" for minor in range(TESTED_PYTHON[0][1], TESTED_PYTHON[1][1] + 1)]
    torches = [f"2.{minor}" for minor in range(TESTED_TORCH[1][1], TESTED_TORCH[0][1] - 1, -1)]
    newest = [Combination(python, torches[0]) for python in pythons]
    oldest = [Combination(python, torches[-1], True) for python in pythons]
    turns = range(len(pythons))
    others = [Combination(pythons[(place + turn) % len(pythons)], each) for turn in turns for place, each in enumerate(torches)]
    return list(dict.fromkeys([*newest, *oldest, *others]))


def read_results() -> dict[Combination, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    every = [json.loads(line) for line in lines]
    return {Combination(*each["cell"]): each for each in every if each["version"] == __version__ and each["outcome"] == "ran"}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "ADAPTIVE_REC"))}
    return {"UV_CACHE_DIR": str(FOLDER / "uv"), **kept, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}


def call(words: list[object], cwd: Path, log: Path, **variables: str) -> bool:
    """Run a program, its output appended to a log; return whether it ended with 0."""
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, words))}\n")
        file.flush()
        try:
            program, where = list(map(str, words)), {**environment(), **variables}
            done = subprocess.run(program, cwd=cwd, env=where, stdout=file, stderr=file, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            file.write(f"stopped after {LIMIT_SECONDS} s\n")
            return False
    return done.returncode == 0


def reason(log: Path) -> str:
    """Return the line of a log that says what failed."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"error|because|failed|no interpreter", line, re.IGNORECASE)]
    return (told or lines)[-1][:200]


def run_combination(cell: Combination, uv: str, wheel: Path, tests: Path) -> dict[str, Any]:
    """Make the environment of a cell, run all in it and remove it; return its result."""
    place, log = FOLDER / "environment", FOLDER / f"{cell.name.replace(' ', '-').replace(',', '')}.log"
    log.unlink(missing_ok=True)
    python, start = place / "bin" / "python", time.monotonic()
    install = [uv, "pip", "install", "--python", python, "--only-binary", ":all:"]
    wanted: list[object] = [f"adaptive-rec @ {wheel.as_uri()}", f"torch=={cell.torch}.*"]
    if cell.oldest:  # what a wheel requires counts as indirect, and would be the newest
        wanted = ["--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml"]
    result: dict[str, Any] = {
        "cell": [cell.python, cell.torch, cell.oldest], "version": __version__, "date": time.strftime("%Y-%m-%d")
    }  # fmt: skip
    shutil.rmtree(place, ignore_errors=True)
    steps = [uv, "venv", "--python", cell.python, place], [*install, *wanted, *TOOLS], [*install, "--no-deps", wheel]
    if not all(call(step, FOLDER, log) for step in steps):
        return {**result, "outcome": "not installed", "reason": reason(log)}
    listed = subprocess.run(
        [uv, "pip", "list", "--python", python, "--format", "json"], env=environment(), capture_output=True, text=True, check=True
    )
    found = {each["name"]: each["version"] for each in json.loads(listed.stdout)}
    result |= {"torch": found["torch"], "versions": {name: found[name] for name in DIRECT}}
    result["install_seconds"] = round(time.monotonic() - start)
    empty, caches = FOLDER / "empty", {"XDG_CACHE_HOME": str(FOLDER / "cache" / cell.python)}
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    variables = {**caches, "HOME": str(empty), "XDG_RUNTIME_DIR": str(empty)}
    quick = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long", *QUICK_TESTS]
    first = [python, ROOT / "tests" / "packaging" / "first_use.py"]
    ran = call(first, empty, log, **variables) and call(quick, tests, log, **variables)
    result |= {"outcome": "ran"} if ran else {"outcome": "failed", "reason": reason(log)}
    result["run_seconds"] = round(time.monotonic() - start) - result["install_seconds"]
    shutil.rmtree(place)
    call([uv, "cache", "clean", "torch"], FOLDER, log)
    return result


def table(results: dict[Combination, dict[str, Any]]) -> str:
    """Return what docs/install.md shows: a row for each Python, a column for each torch, and a line for each that did not run."""
    cells = combinations()
    torches = sorted({cell.torch for cell in cells}, key=lambda each: int(each.partition(".")[2]))
    lines = [
        f"| Python | {' | '.join(f'torch {each}' for each in torches)} | oldest of every dependency |",
        "|---" * (len(torches) + 2) + "|",
    ]
    for python in dict.fromkeys(cell.python for cell in cells):
        row = [Combination(python, each) for each in torches] + [Combination(python, torches[0], True)]
        lines.append(f"| {python} | {' | '.join(_shown(results.get(cell)) for cell in row)} |")
    faults = [f"- {cell.name}: {each['outcome']}: {each['reason']}" for cell, each in results.items() if "reason" in each]
    return "\n".join([*lines, *([""] if faults else []), *faults])


def _shown(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run"
    return result["torch"] if result["outcome"] == "ran" else result["outcome"]


def main() -> int:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        print("uv is not installed: pip install uv", file=sys.stderr)
        return 2
    sources, tests = FOLDER / "sources", FOLDER / "checkout"
    for folder in (sources, tests):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    wheel = build_both(sources).wheel
    for name in ("tests", "examples"):  # a copy that has no package beside them
        shutil.copytree(ROOT / name, tests / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tests)
    results = read_results()
    for cell in combinations():
        if cell in results:
            continue
        results[cell] = run_combination(cell, uv, wheel, tests)
        with RESULTS.open("a") as file:
            file.write(json.dumps(results[cell]) + "\n")
        print(f"{cell.name}: {results[cell]['outcome']} {results[cell].get('reason', '')}", flush=True)
    print(table(results))
    return int(any(each["outcome"] == "failed" for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
