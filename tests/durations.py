"""Seconds of each test: recorded by every run of `make test`, shown by `make test-durations`, held to a budget by `make check`.

A test's processor seconds are those of all threads of its process and of the processes below it, living ones included, such as a
browser or a run that several tests watch. They hardly depend on what else the machine does; seconds on the clock do. The first
test of a module also has the fixtures of the module. Fixtures of the session have lines of their own. Left out are the start of
the process that forks commands (``tests.forked``) and the compiling of kernels, which the first run in a clone has.
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
from numba.core import event

from tests import forked

BUDGET_SECONDS = 5.0
"""Most processor seconds that the tests of one file may take in `make test`, on two cores."""


SESSION = "(session)"
"""Stands for the file, in the table, of fixtures of the session."""


def spent() -> tuple[float, float]:
    """Return processor seconds so far, of this process and of all below it (living ones on Linux only), and wall seconds."""
    times, tick = os.times(), os.sysconf("SC_CLK_TCK")
    total = times.user + times.system + times.children_user + times.children_system
    waiting, server = _children(os.getpid()), forked.server_process()
    while waiting:
        process = waiting.pop()
        with suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[13 if process == server else 11 : 15]) / tick
            waiting += _children(process)
    return total, time.monotonic()


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    return found


class Compiling(event.Listener):
    """Processor seconds for which Numba compiles in this process. One thread compiles at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._began = 0.0

    def on_start(self, event: event.Event) -> None:
        if not self._depth:
            self._began = time.thread_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += time.thread_time() - self._began


class Durations:
    """A plugin of pytest that writes a table of the tests' seconds, their counts by outcome, and the skips by reason."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._compiling = Compiling()
        event.register("numba:compile", self._compiling)
        self._began = self._spent()
        self._tests: dict[str, dict[str, Any]] = {}
        self._counts: Counter[str] = Counter(passed=0, failed=0, skipped=0)
        self._skipped: Counter[str] = Counter()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._began = self._spent()
        yield
        slow = any(item.get_closest_marker(mark) for mark in ("slow", "long"))
        self._note(item.nodeid, self._began, slow)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        before = self._spent()
        yield
        if fixturedef.scope == "session":
            taken = self._note(f"{SESSION}::{fixturedef.argname}", before, slow=False)
            self._began = self._began[0] + taken[0], self._began[1] + taken[1]  # not of the test that came first

    def _spent(self) -> tuple[float, float]:
        processor, wall = spent()
        return processor - self._compiling.seconds, wall

    def _note(self, test: str, before: tuple[float, float], slow: bool) -> tuple[float, float]:
        """Note a line of the table, and return its seconds. Those of a process that nobody waited for are lost when it ends."""
        processor, wall = (max(now - then, 0.0) for now, then in zip(self._spent(), before, strict=True))
        self._tests[test] = {"processor": round(processor, 3), "wall": round(wall, 3), "slow": slow}
        return processor, wall

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
    print(
        f"\n{len(tests)} tests of {len(by_file(tests))} files: {total:.0f} processor seconds, without importing and collecting"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
