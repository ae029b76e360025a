"""Runs the tests in parts side by side, each a process of pytest with files of its own: ``python -m tests.parts``.

`make test` and `make check` call it. A file is collected by one part (two, if it has tests marked alone): rewriting all takes
a minute of a processor, which every worker of a shared queue would spend. Parts are forked from one process that has the
libraries loaded, as are the commands that tests start (``tests.forked``). Tests of processes that talk to each other in real
time (marker alone) are in parts of their own, one after the other; they wait more than they compute, so the other parts run
beside them at a lower priority.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import forked
from tests.finished_runs import COMMON_FOLDER

TESTS = Path(__file__).parent
RESULTS = TESTS.parent / "studies" / "tests"
"""Folder of what the parts print and of the seconds of each test; git ignores it."""

ALONE = (("service",), ("cli", "live", "modules", "browser"))
"""Folders with tests marked alone, by part; the browser's come last, because the run that they show continues until the end."""

LOWER = 4
"""Niceness of the parts that are not alone. At 19 they would stand still on a busy machine."""


@dataclass
class Part:
    """One process of pytest: its name, the tests it runs and what became of them."""

    name: str
    files: list[str]
    marks: str = ""
    process: subprocess.Popen[bytes] | forked.Forked | None = None
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The module that is run, with its arguments. What libraries print stays in the part's output, so that a part that a
        library aborts leaves the reason; pytest would take it along."""
        return ["-m", self.marks, f"--durations-table={self.table}", "--capture=sys", *self.files]

    @property
    def printed(self) -> Path:
        return RESULTS / f"{self.name}.log"

    @property
    def table(self) -> Path:
        return RESULTS / f"{self.name}.json"

    def start(self, server: forked.Server, options: list[str]) -> None:
        self.table.unlink(missing_ok=True)
        words = ["0" if "alone" in self.name else str(LOWER), *self.words, *options]
        with self.printed.open("wb") as output:
            self.process = server.start(words, output.fileno(), dict(os.environ), main="tests.forked:run_tests")

    def end(self) -> None:
        """End the process and its group, by SIGKILL where it does not end soon."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process is None or self.process.poll() is not None:
                return
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)

    def read(self) -> None:
        if self.table.exists():
            self.found = json.loads(self.table.read_text())


class Types(Part):
    """Mypy, beside the tests."""

    def start(self, server: forked.Server, options: list[str]) -> None:
        with self.printed.open("wb") as output:
            command = ["nice", f"-n{LOWER}", sys.executable, "-m", "mypy"]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def read(self) -> None:
        found = 0 if self.process is not None and self.process.returncode == 0 else 1
        self.found = {"counts": {"failed": found}}


def files_of(rooms: list[str]) -> list[Path]:
    """Return the test files of some folders, or all."""
    found = sorted(TESTS.rglob("test_*.py"))
    return [path for path in found if not rooms or path.relative_to(TESTS).parts[0].removesuffix(".py") in rooms]


def seconds_before() -> dict[str, float]:
    """Return the processor seconds of each file in the last run, where there was one."""
    seconds: Counter[str] = Counter()
    for table in RESULTS.glob("*.json"):
        for test, took in json.loads(table.read_text()).get("tests", {}).items():
            if not took["slow"]:
                seconds[test.partition("::")[0]] += took["processor"]
    return seconds


def shared_out(files: list[Path], parts: int, known: dict[str, float]) -> list[list[str]]:
    """Give each part files of about the same seconds, the longest first; a file not known counts as one of two seconds."""
    names = [str(path.relative_to(TESTS.parent)) for path in files]
    names.sort(key=lambda one: known.get(one, 2.0), reverse=True)
    taken: list[list[str]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for one in names:
        least = loads.index(min(loads))
        taken[least].append(one)
        loads[least] += known.get(one, 2.0)
    return [sorted(one) for one in taken]


def planned(rooms: list[str], marks: str, slow: str, known: dict[str, float]) -> list[Part]:
    """Return the parts that are run: one more than there are cores, as a part waits now and then, and those of tests marked
    alone."""
    files = files_of(rooms)
    cores = len(os.sched_getaffinity(0))
    parts = [
        Part(f"{marks}-{number + 1}", names, f"not alone and {slow}")
        for number, names in enumerate(shared_out(files, min(4, cores) + 1, known))
    ]
    for number, folders in enumerate(ALONE):
        own = [str(p.relative_to(TESTS.parent)) for folder in folders for p in files if p.parent.name == folder]
        parts.append(Part(f"{marks}-alone-{number + 1}", own, f"alone and {slow}"))
    return [part for part in parts if part.files]


def train_shared_runs(server: forked.Server) -> None:
    """Train them before the parts begin, which would compile the same kernels side by side."""
    environment = {**os.environ, "XDG_STATE_HOME": str(Path(os.environ[COMMON_FOLDER]) / "state")}
    with (RESULTS / "shared-runs.log").open("wb") as output:
        server.start([], output.fileno(), environment, main="tests.finished_runs:main").wait()


def wait_for(parts: list[Part], seconds: float = 30.0) -> None:
    """Wait until all have ended; say now and then what runs, and print what a part printed when it ends."""
    began, told, running = time.monotonic(), time.monotonic(), list(parts)
    while running:
        time.sleep(0.2)
        for part in [part for part in running if part.process is not None and part.process.poll() is not None]:
            running.remove(part)
            part.read()
            print(f"\n--- {part.name}, after {time.monotonic() - began:.0f} s ---", flush=True)
            sys.stdout.write(part.printed.read_text(errors="replace"))
            sys.stdout.flush()
        if time.monotonic() - told > seconds:
            told = time.monotonic()
            print(f"{told - began:.0f} s: running {', '.join(part.name for part in running)}", flush=True)


def closing(parts: list[Part], left_out: list[str]) -> int:
    """Print skips by reason, the processor seconds and the counts of all parts; return the exit code."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    broken = []
    for part in parts:
        own = part.found.get("counts", {})
        counts.update(own)
        reasons.update(part.found.get("skipped", {}))
        code = None if part.process is None else part.process.returncode
        if code not in (0, 1, 5) or not own or (code == 1 and not own["failed"]):
            broken.append(part.name)
            counts["failed"] += not own.get("failed")
    print("\nSkipped, by reason:")
    for reason, number in reasons.most_common():
        print(f"{number:6} {reason}")
    times = os.times()
    print(f"Processor seconds: {times.children_user + times.children_system:.0f}. Heaviest files: make test-durations.")
    if left_out:
        print(f"ROOMS left out the tests of: {', '.join(left_out)}")
    for one in broken:
        print(f"{one} ended before its tests were over, or with an error of its own: see {RESULTS / one}.log")
    if not counts["passed"] + counts["failed"] + counts["skipped"]:
        print("no test was selected")
        counts["failed"] = 1
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests in parts side by side.")
    parser.add_argument("--rooms", default="", help="folders of tests to run, by comma; all others are left out")
    parser.add_argument("--slow", action="store_true", help="run the tests marked slow instead of those that are not")
    parser.add_argument("options", nargs="*", help="more options for pytest, after --")
    told = parser.parse_args()
    rooms = [room for room in told.rooms.replace(",", " ").split() if room]
    there = sorted({path.relative_to(TESTS).parts[0].removesuffix(".py") for path in files_of([])})
    if unknown := [room for room in rooms if room not in there]:
        parser.error(f"ROOMS must name folders of tests ({', '.join(there)}), got {', '.join(unknown)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    marks, slow = ("check", "slow and not long") if told.slow else ("test", "not slow and not long")
    known = seconds_before()
    if not rooms:
        for old in RESULTS.glob(f"{marks}-*"):
            old.unlink()
    types, parts = [] if told.slow else [Types("types", [])], planned(rooms, marks, slow, known)
    for number in (signal.SIGTERM, signal.SIGHUP):  # all parts end with this process
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    shared = tempfile.TemporaryDirectory()
    os.environ[COMMON_FOLDER] = shared.name
    server = forked.Server()
    try:
        for part in types:
            part.start(server, [])
        if not rooms:
            train_shared_runs(server)
        for part in parts:
            part.start(server, told.options)
        wait_for([*types, *parts])
    finally:
        for part in (*types, *parts):
            part.end()
        server.end()
        shared.cleanup()
    return closing([*types, *parts], sorted(set(there) - set(rooms)) if rooms else [])


if __name__ == "__main__":
    sys.exit(main())
