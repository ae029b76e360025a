"""The runs of a comparison, each a process of its own: `train` as a user would start it, without a dashboard.

A run counts when its process ended well and its outcome was written down; any other is made again from its beginning, as the
clock of a run that was cut in two would say little.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from adaptive_rec.config.tree import ENVIRONMENT_PREFIX
from adaptive_rec.errors import UsageError
from adaptive_rec.live.sidecar import own_modules_only
from adaptive_rec.live.telemetry import COMPILING, to_json
from adaptive_rec.offline.compare.plan import Turn
from adaptive_rec.offline.report.page import write_page

OUTCOME = "outcome.json"
LOG = "log.txt"
LOCK = ".lock"
LAST_LINES = 8
"""Of a failed run's log, for the results."""
TAIL_BYTES = 1 << 16
POLL_SECONDS = 1.0
"""Between two looks at a run. Rare, as whoever looks takes time from the run."""


@dataclass(frozen=True)
class ProcessEnd:
    """How the process of a run ended."""

    exit_code: int
    conditions: str
    """Digest of what it was made under."""
    code: str
    """Digest of the sources."""
    started: float
    """Seconds since the epoch."""
    process_seconds: float
    """From start to end: loading of libraries, tables, training, evaluations, checkpoint."""
    last_lines: tuple[str, ...] = ()
    compiled: bool = False
    """Whether kernels were compiled meanwhile, which the clock of the run holds."""

    @property
    def why(self) -> str:
        """What became of a run that failed, in one line."""
        if self.exit_code < 0:
            name = signal.Signals(-self.exit_code).name
            memory = ", maybe by the system for want of memory" if name == "SIGKILL" else ""
            return f"killed by {name}{memory}"
        error = next((line for line in reversed(self.last_lines) if "rror" in line), "")
        return f"exit code {self.exit_code}" + (f": {error.strip()}" if error else "")


@dataclass(frozen=True)
class RunProgress:
    """Where a run is."""

    step: int
    steps: int
    seconds: float
    samples_per_second: float


@contextmanager
def alone_in(out: Path) -> Iterator[IO[bytes]]:
    """Hold a comparison's directory. A run that outlives a killed comparison holds it too, as it has the file open."""
    with open(out / LOCK, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            rule = f"--out {out} must be one that no comparison works in"
            raise UsageError(f"{rule}, another one does, or a run that outlived one that was killed") from None
        yield lock


def finished(run: Path, conditions: str) -> ProcessEnd | None:
    """How a run ended that need not be made again."""
    outcome = read_outcome(run)
    if outcome is None or outcome.exit_code or outcome.conditions != conditions:
        return None
    return outcome if (run / "summary.json").is_file() else None


def read_outcome(run: Path) -> ProcessEnd | None:
    try:
        values = json.loads((run / OUTCOME).read_text(encoding="utf-8"))
        return ProcessEnd(**{**values, "last_lines": tuple(values["last_lines"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def make_run(
    turn: Turn, run: Path, settings: Path, marks: Mapping[str, str], lock: IO[bytes], watch: Callable[[RunProgress | None], None],
    keep_checkpoints: bool,
) -> ProcessEnd:  # fmt: skip
    """Train in a process of its own and write its outcome down. `marks`: the digests of conditions and code."""
    log = run.with_name(f"{run.name}.{LOG}")
    if run.exists():
        shutil.rmtree(run)
    outcome = _train(turn, run, settings, log, marks, lock, watch)
    if outcome.compiled and outcome.exit_code == 0:  # now the kernels are there
        shutil.rmtree(run)
        outcome = _train(turn, run, settings, log, marks, lock, watch)
    if not keep_checkpoints:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    run.mkdir(exist_ok=True)
    log.replace(run / LOG)
    write_page(to_json(asdict(outcome), indent=1) + "\n", run / OUTCOME)
    return outcome


def _train(
    turn: Turn, run: Path, settings: Path, log: Path, marks: Mapping[str, str], lock: IO[bytes],
    watch: Callable[[RunProgress | None], None],
) -> ProcessEnd:  # fmt: skip
    words = ["train", str(settings), f"--policy={turn.policy}", f"--seed={turn.seed}", f"--out={run}", "--no-serve"]
    started, clock = time.time(), time.monotonic()
    with open(log, "wb") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "adaptive_rec", *words],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the comparison, which ends the run at once
            pass_fds=(lock.fileno(),),
        )
    try:
        while True:
            try:
                code = child.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                watch(progress(run / "metrics.jsonl"))
    except BaseException:
        child.kill()
        child.wait()
        raise
    seconds = time.monotonic() - clock
    text = log.read_text(encoding="utf-8", errors="replace")
    last = tuple(text.splitlines()[-LAST_LINES:]) if code else ()
    return ProcessEnd(code, marks["conditions"], marks["code"], started, seconds, last, COMPILING in text)


def _environment() -> dict[str, str]:
    """Without settings: those are all in the file."""
    kept = own_modules_only().items()
    return {name: value for name, value in kept if not (name.startswith(ENVIRONMENT_PREFIX) and "__" in name)}


def progress(metrics: Path) -> RunProgress | None:
    """The newest report of a run, as far as it has made one."""
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
