"""Seconds of each test: recorded by every run of `make test`, shown by `make test-durations`, held to a budget by `make check`.

A test's processor seconds are those of all threads of its process, of processes that it waited for, and of commands that
``tests.forked`` ran for it. They hardly depend on what else the machine does; seconds on the clock do. The first test of a module
also has the fixtures of the module, and the first of a part the compiling of kernels that no cache has. What processes take that
outlive a test, such as a browser, is added to the file in a line of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import forked

BUDGET_SECONDS = 5.0
"""Most processor seconds that the tests of one file may take in `make test`, on two cores."""


def spent() -> tuple[float, float]:
    """Return processor and wall seconds so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + forked.spent(), time.monotonic()


def spent_with_living() -> float:
    """Return the processor seconds so far of this process and of all below it, living ones too (Linux only)."""
    times, tick = os.times(), os.sysconf("SC_CLK_TCK")
    total = times.user + times.system + times.children_user + times.children_system
    waiting = _children(os.getpid())
    while waiting:
        process = waiting.pop()
        with suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / tick
            waiting += _children(process)
    return total


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    return found


class Durations:
    """A plugin of pytest that writes a table of the tests' seconds, their counts by outcome, and the skips by reason."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._began = spent()
        self._file_began = spent_with_living()
        self._of_file = 0.0
        self._tests: dict[str, dict[str, Any]] = {}
        self._counts: Counter[str] = Counter(passed=0, failed=0, skipped=0)
        self._skipped: Counter[str] = Counter()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._began = spent()
        yield
        processor, wall = spent()
        slow = any(item.get_closest_marker(mark) for mark in ("slow", "long"))
        self._note(item.nodeid, processor - self._began[0], wall - self._began[1], slow)
        self._of_file += processor - self._began[0]
        if nextitem is None or nextitem.path != item.path:
            before, self._file_began = self._file_began, spent_with_living()
            rest = max(self._file_began - before - self._of_file, -self._of_file)
            self._note(f"{item.nodeid.partition('::')[0]}::(processes that outlive a test)", rest, 0.0, slow)
            self._of_file = 0.0

    def _note(self, test: str, processor: float, wall: float, slow: bool) -> None:
        self._tests[test] = {"processor": round(processor, 3), "wall": round(wall, 3), "slow": slow}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._counts["skipped"] += 1
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skipped[reason.removeprefix("Skipped: ")] += 1
        elif report.failed or report.when == "call":
            self._counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._counts["failed"] += 1
        elif report.skipped:
            self._counts["skipped"] += 1
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skipped[f"{reason.removeprefix('Skipped: ')} (all tests of {report.nodeid})"] += 1

    def pytest_sessionfinish(self) -> None:
        self._table.parent.mkdir(parents=True, exist_ok=True)
        found = {"counts": self._counts, "skipped": self._skipped, "tests": self._tests}
        self._table.write_text(json.dumps(found, indent=0))


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the seconds of each test in the last run of `make test`."""
    tests: dict[str, dict[str, Any]] = {}
    for table in sorted(folder.glob("test-*.json")):
        tests |= json.loads(table.read_text())["tests"]
    return tests


def by_file(tests: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float, int]]:
    """Return processor seconds, wall seconds and the number of tests of each file, the heaviest first."""
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for test, took in tests.items():
        line = files[test.partition("::")[0]]
        line[0] += took["processor"]
        line[1] += took["wall"]
        line[2] += 1
    return {name: (line[0], line[1], int(line[2])) for name, line in sorted(files.items(), key=lambda one: -one[1][0])}


def main() -> int:
    from tests.parts import RESULTS

    tests = recorded(RESULTS)
    if not tests:
        print(f"no seconds are recorded in {RESULTS}: run make test first")
        return 1
    print("processor s   wall s   tests  file")
    for name, (processor, wall, number) in list(by_file(tests).items())[:20]:
        print(f"{processor:11.2f} {wall:8.2f} {number:7}  {name}")
    print("\nprocessor s   wall s  test")
    for name, took in sorted(tests.items(), key=lambda one: -one[1]["processor"])[:20]:
        print(f"{took['processor']:11.2f} {took['wall']:8.2f}  {name}")
    total = sum(took["processor"] for took in tests.values())
    print(f"\n{len(tests)} tests of {len(by_file(tests))} files: {total:.0f} processor seconds, without importing and collecting")
    return 0


if __name__ == "__main__":
    sys.exit(main())
