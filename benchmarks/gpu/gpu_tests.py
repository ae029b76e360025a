"""The tests that need a device, run as a cell: every one's outcome is written down as it ends.

As a plugin of pytest (`-p benchmarks.gpu.gpu_tests`) this file writes a line of JSON for each test to the file that
ADAPTIVE_REC_TEST_LOG names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.command import ROOT
from benchmarks.common.contestants import Where

LOG = "ADAPTIVE_REC_TEST_LOG"
FILES = (
    "tests/kernels/test_cuda.py", "tests/kernels/test_cuda_copies.py", "tests/kernels/test_batch_lists.py",
    "tests/embedding/staged", "tests/dense/test_dense.py",
    "tests/parity/test_parity.py", "tests/parity/test_classify_on_device.py", "tests/parity/test_rows16.py",
    "tests/parity/test_sequences.py", "tests/gpu", "tests/embedding/test_store.py", "tests/policies/test_contract.py",
    "tests/tracking/test_delta.py", "tests/runtime/test_loop.py", "tests/runtime/test_control.py",
    "tests/runtime/test_device_ranks.py",
)  # fmt: skip
"""All files with tests marked `gpu`: collecting the others would take longer than these run."""
MAY_SKIP = {
    "tests/gpu/test_steady_state.py": "the profiler may not be permitted to see the device",
    "tests/runtime/test_device_ranks.py": "wants several devices",
}
"""A skipped test elsewhere is a failure: it looks tested and is not."""
REHEARSED = (
    "tests/parity/test_parity.py::test_plain_steps_on_a_device_equal_those_on_the_cpu[sgd-late]",
    "tests/kernels/test_cuda.py",
    "tests/gpu",
)
"""Where there is no device: one run on the sample that was brought along, the kernels in Triton's interpreter, and that
tests that need one say so."""
REHEARSED_NAMES = "sgd-late or (interpreted and movement) or steady_state"
FREE_CORES = 2
"""The other cores get a process each, all of which share the device."""
MOST_WORKERS = 14


def run_tests(where: Where, deadline: float, note: Callable[[str], None]) -> dict[str, Any]:
    """All tests until the deadline, of `time.perf_counter`; `passed` where all of them ended and nothing failed."""
    began = time.perf_counter()
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"gpu-tests-{os.getpid()}.jsonl"
    log.unlink(missing_ok=True)
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)) - FREE_CORES)
    chosen = ["-k", REHEARSED_NAMES, *REHEARSED] if where.rehearsal else ["-m", "gpu and not slow", *FILES]
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.gpu.gpu_tests", "-p", "no:cacheprovider", "--tb=short", "-rN",
        *(["-n", str(workers), "--dist", "worksteal"] if workers > 1 and not where.rehearsal else []), *chosen,
    ]  # fmt: skip
    environment = {**os.environ, LOG: str(log), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)  # set for a rehearsal's other cells; tests choose themselves
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=None if where.rehearsal else max(1.0, deadline - time.perf_counter()))
        ended = True
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its workers too, which may wait for the device
        output, ended = child.communicate()[0], False
    found = outcomes(log, rehearsal=bool(where.rehearsal)) | {"ended": ended, "seconds": time.perf_counter() - began}
    log.unlink(missing_ok=True)
    unexpected = ended and child.returncode not in (0, 1)
    found["passed"] = ended and not unexpected and not found["failed"] and found["tests"] > 0
    if not found["passed"]:
        found["output"] = output[-8000:]
    cut = "" if ended else ", cut short"
    note(f"{found['tests']} tests, {len(found['failed'])} failed, {len(found['skipped'])} skipped{cut}")
    for name, why in list(found["failed"].items())[:10]:
        note(f"FAILED: {name}: {why.strip().splitlines()[-1] if why.strip() else ''}")
    return found


def outcomes(log: Path, rehearsal: bool = False) -> dict[str, Any]:
    """What a log says. A skip counts as a failure where a file may not skip; in a rehearsal only the lack of a device is one."""
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    slowest: list[tuple[float, str]] = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        found = json.loads(line)
        name = found["test"]
        slowest.append((found["seconds"], name))
        if found["outcome"] == "failed":
            failed[name] = found["why"]
        elif found["outcome"] == "skipped":
            skipped[name] = found["why"]
            excused = "CUDA" in found["why"] if rehearsal else name.split("::")[0] in MAY_SKIP
            if not excused:
                failed[name] = f"skipped: {found['why']}"
    slowest.sort(reverse=True)
    return {"tests": len(slowest), "failed": failed, "skipped": skipped, "slowest": slowest[:10]}


def pytest_runtest_setup(item: Any) -> None:
    """After a fault of the device nothing works in a process any more: it ends, and xdist starts another for what is to come."""
    torch = sys.modules.get("torch")
    if torch is None or not os.environ.get("PYTEST_XDIST_WORKER") or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"{item.nodeid} was not run: the device had a fault before: {error}", file=sys.stderr, flush=True)
        os._exit(3)


def pytest_runtest_logreport(report: Any) -> None:
    """Called by pytest for each phase of each test; xdist's workers leave it to the process that started them."""
    if os.environ.get("PYTEST_XDIST_WORKER") or not os.environ.get(LOG):
        return
    if report.when == "call" or report.outcome != "passed":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration, "why": why[-3000:]}
        with open(os.environ[LOG], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
