"""The API against its own description: requests made up from it, right and wrong ones, and every answer checked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import CONTROL, Sidecar

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
RULES = Path(__file__).parent / "schemathesis.toml"
READS, WRITES = "100/s", "45/s"
"""Under what the sidecar takes. What it refuses as too much would count as an error. Reads come with some wrong methods."""

QUICK_EXAMPLES, LONG_EXAMPLES = 12, 200
EVERYTHING = (f"--rate-limit={WRITES}",)
WITHOUT_KNOBS = ("--exclude-operation-id=change_knobs", f"--rate-limit={READS}")
ONLY_KNOBS = ("--include-operation-id=change_knobs", "--header=If-Match: *", f"--rate-limit={WRITES}")
"""An If-Match made up by chance never fits: nothing would ever be changed."""


def make_up_requests(sidecar: Sidecar, folder: Path, examples: int, *options: str) -> dict[str, Any]:
    """Run schemathesis with every check; its report. `examples` is the most made up by chance for each operation."""
    wait_until_ready(sidecar)
    folder.mkdir()
    command = [
        str(SCHEMATHESIS),
        f"--config-file={RULES}",
        "run",
        f"http://127.0.0.1:{sidecar.port}/api/v1/openapi.json",
        f"--header=Authorization: Bearer {CONTROL}",
        "--checks=all",
        "--exclude-path=/api/v1/stream",  # goes on for ever
        f"--max-examples={examples}",
        "--request-timeout=30",  # a busy machine lets the sidecar wait
        "--no-color",
        "--report=json",
        f"--report-json-path={folder / 'report.json'}",
        *options,
    ]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, tail(done.stdout)
    assert sidecar.end() == "", "the sidecar has nothing to say of what clients send"
    assert sidecar.process.returncode == 0
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    print(f"{report['test_cases']} in {report['running_time']:.0f} s, seed {report['seed']}")
    assert report["complete"]
    assert report["operations"]["tested"] == report["operations"]["selected"]
    assert not report["warnings"]["rate_limited"]
    return report


def tail(output: str) -> str:
    """The end of what was printed; bodies can be thousands of numbers long."""
    return "\n".join(line[:300] for line in output.splitlines()[-100:])


def wait_until_ready(sidecar: Sidecar) -> None:
    deadline = time.monotonic() + 20
    while sidecar.http.get("/readyz").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def accepted(report: dict[str, Any], operation: str) -> int:
    """How many requests to an operation were answered with success."""
    return sum(int(phase["accepted"]) for phase in report["valid_rates"][operation].values())


def test_what_is_described_is_what_is_answered(sidecar: Sidecar, tmp_path: Path) -> None:
    report = make_up_requests(sidecar, tmp_path / "report", QUICK_EXAMPLES, *WITHOUT_KNOBS, "--seed=1")
    assert report["operations"]["selected"] >= 17
    assert report["test_cases"]["generated"] >= 400
    assert accepted(report, "GET /api/v1/placement/{table}") >= 4


def test_knobs_change_as_described(sidecar: Sidecar, tmp_path: Path) -> None:
    before = sidecar.run.knobs
    report = make_up_requests(sidecar, tmp_path / "report", QUICK_EXAMPLES, *ONLY_KNOBS, "--seed=1")
    assert report["operations"]["selected"] == 1
    assert accepted(report, "PATCH /api/v1/knobs") >= 50
    assert sidecar.run.knobs != before, "some changes were made, not only refused"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("options", "at_least"), [(EVERYTHING, 2000), (ONLY_KNOBS, 500)], ids=["all", "knobs"])
def test_hundreds_of_requests_to_every_operation(
    sidecar: Sidecar, tmp_path: Path, options: tuple[str, ...], at_least: int
) -> None:
    """Hundreds where there is something to make up: many an operation takes nothing."""
    report = make_up_requests(sidecar, tmp_path / "report", LONG_EXAMPLES, *options)
    assert report["test_cases"]["generated"] >= at_least
