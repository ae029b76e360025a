"""The runs of a comparison: each is a fork of a warm process and trains as a user would, without a dashboard.

A run counts when its process ended well and wrote its outcome. Any other run is repeated from its beginning, as the wall clock of
a run that was resumed cannot be compared.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from adaptive_rec.config.trust import ENVIRONMENT_PREFIX, TRUST
from adaptive_rec.errors import UsageError
from adaptive_rec.live.sidecar_process import own_modules_only
from adaptive_rec.live.telemetry import COMPILING, to_json
from adaptive_rec.offline.compare.plan import Turn
from adaptive_rec.offline.pages.page import write_page
from adaptive_rec.system.own_files import open_draft, open_own
from adaptive_rec.system.regular_files import read_json

POLL_SECONDS = 1.0
"""Time between two looks at a run; each look takes processor time from it."""


class WarmProcess:
    """Executes command lines of this package in forks of one process that has loaded all libraries.

    The process starts with the first command, and again where it was killed. It and its forks are one process group, so that they
    are killed together.
    """

    def __init__(self, lock: IO[bytes]) -> None:
        self._lock = lock
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(killed=kind is not None)

    def run(self, words: Sequence[str], log: Path, look: Callable[[], None]) -> int:
        """Execute one command line and return its exit code, negative for a signal. `look` is called while it is under way."""
        try:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # the process died meanwhile; its output ends, too
                print(json.dumps({"words": list(words), "log": str(log)}), file=process.stdin, flush=True)
            poll = select.poll()  # select.select takes no descriptor from 1,024 on
            poll.register(process.stdout)
            while not poll.poll(POLL_SECONDS * 1000):
                look()
            said = process.stdout.readline()
        except BaseException:
            self._end(killed=True)
            raise
        if said:
            return int(said)
        code = self._end(killed=True)  # its run, too, must not go on
        return code or 1

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adaptive_rec.cli.warm"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
                start_new_session=True,  # Ctrl-C reaches only the comparison, which then ends the run at once
                pass_fds=(self._lock.fileno(),),
            )
        return self._process

    def _end(self, killed: bool) -> int:
        """End the process, with its run where it is killed, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if killed:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            process.communicate()
        return process.wait()


def environment() -> dict[str, str]:
    """Return the environment without settings of this package, which are all in the file."""
    kept = own_modules_only().items()
    return {name: value for name, value in kept if not (name.startswith(ENVIRONMENT_PREFIX) and "__" in name)}


OUTCOME = "outcome.json"
LOG = "log.txt"
LOCK = ".lock"
LAST_LINES = 8
"""Lines of a failed run's log that the results quote."""
TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class ProcessEnd:
    """How the process of a run ended."""

    exit_code: int
    conditions: str
    """Digest of the conditions."""
    code: str
    """Digest of the sources."""
    started: float
    """Seconds since the epoch, for people."""
    process_seconds: float
    """Duration of the whole run: data files, tables, training, evaluations, checkpoint."""
    last_lines: tuple[str, ...] = ()
    clock: float | None = None
    """The start on the monotonic clock, which events have, too; None in outcomes of older versions."""
    compiled: bool = False
    """Whether kernels were compiled during the run, which lengthens its wall clock."""

    @property
    def why(self) -> str:
        """The reason of a failure, in one line."""
        if self.exit_code < 0:
            name = signal.Signals(-self.exit_code).name
            memory = ", maybe by the system for want of memory" if name == "SIGKILL" else ""
            return f"killed by {name}{memory}"
        error = next((line for line in reversed(self.last_lines) if "rror" in line), "")
        return f"exit code {self.exit_code}" + (f": {error.strip()}" if error else "")


@dataclass(frozen=True)
class RunProgress:
    """How far a run has come, by its newest report."""

    step: int
    steps: int
    seconds: float
    samples_per_second: float


@contextmanager
def alone_in(out: Path) -> Iterator[IO[bytes]]:
    """Lock a comparison's directory. A run that outlives a killed comparison keeps the lock, as it inherits the open file."""
    with open(open_own(out / LOCK, os.O_WRONLY | os.O_APPEND), "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            rule = f"--out {out} must be one that no comparison works in"
            raise UsageError(f"{rule}, another one does, or a run that outlived one that was killed") from None
        yield lock


def finished(run: Path, conditions: str) -> ProcessEnd | None:
    """Return the outcome of a run that need not be repeated."""
    outcome = read_outcome(run)
    if outcome is None or outcome.exit_code or outcome.conditions != conditions:
        return None
    return outcome if (run / "summary.json").is_file() else None


def read_outcome(run: Path) -> ProcessEnd | None:
    """Return the outcome that stands in a run's directory, None where it is missing or damaged."""
    try:
        values = read_json(run / OUTCOME)
        return ProcessEnd(**{**values, "last_lines": tuple(values["last_lines"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True)
class RunProcesses:
    """Makes the runs of a comparison, one after the other, and writes down how each ended."""

    settings: Path
    """The configuration file that all runs share."""
    warm: WarmProcess
    conditions: str
    code: str
    keep_checkpoints: bool
    watch: Callable[[RunProgress | None], None]
    """Called about once a second while a run is under way."""

    def make(self, turn: Turn, run: Path) -> ProcessEnd:
        """Train in a fork of the warm process and write its outcome to the run's directory."""
        log = run.with_name(f"{run.name}.{LOG}")
        outcome = self._train(turn, run, log)
        if outcome.compiled and outcome.exit_code == 0:  # now the compiled kernels are in the cache
            outcome = self._train(turn, run, log)
        if not self.keep_checkpoints:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        run.mkdir(exist_ok=True)
        log.replace(run / LOG)
        write_page(to_json(asdict(outcome), indent=1) + "\n", run / OUTCOME)
        return outcome

    def _train(self, turn: Turn, run: Path, log: Path) -> ProcessEnd:
        if run.exists():
            shutil.rmtree(run)
        words = [
            "train",
            str(self.settings),
            *turn.words,
            f"--out={run}",
            "--no-serve",
            *TRUST.words(),
        ]
        started, clock = time.time(), time.monotonic()
        os.close(open_draft(log))
        code = self.warm.run(words, log, lambda: self.watch(progress(run / "metrics.jsonl")))
        seconds = time.monotonic() - clock
        text = log.read_text(encoding="utf-8", errors="replace")
        last = tuple(text.splitlines()[-LAST_LINES:]) if code else ()
        return ProcessEnd(code, self.conditions, self.code, started, seconds, last, clock, COMPILING in text)


def progress(metrics: Path) -> RunProgress | None:
    """Return a run's progress by its newest report, None before the first one."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            values: dict[str, Any] = json.loads(line)
            return RunProgress(values["step"], values["steps_total"], values["seconds"], values["samples_per_second"])
        except (ValueError, KeyError, TypeError):
            continue  # half a line, or an evaluation
    return None
