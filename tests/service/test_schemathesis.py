"""The API against its own description: requests made up from it, right and wrong ones, and every answer checked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation

from adaptive_rec.service.app import create_app
from adaptive_rec.service.security import RequestLimits, Security

from .conftest import CONTROL, READ, Sidecar

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
    deadline = time.monotonic() + 300
    while sidecar.http.get("/readyz").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def accepted(report: dict[str, Any], operation: str) -> int:
    """How many requests to an operation were answered with success."""
    return sum(int(phase["accepted"]) for phase in report["valid_rates"][operation].values())


TOKEN = {"Authorization": f"Bearer {CONTROL}"}
FEW_EXAMPLES = 3
RATES = [f"{kind}_{what}" for kind in ("reads", "writes", "failures") for what in ("per_second", "burst")]


def answered(operation: Any, headers: dict[str, str], examples: int, mode: GenerationMode) -> list[int]:
    """The status of each answer to requests that were made up, right ones or wrong ones; every answer is checked.

    `headers` replace those made up where these are not what is wrong.
    """
    statuses: list[int] = []

    @seed(1)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        own = {} if case.meta and case.meta.is_negative_at(ParameterLocation.HEADER) else headers
        answer = case.call(base_url="http://testserver", headers=TOKEN | own)
        statuses.append(answer.status_code)
        case.validate_response(answer)

    ask()
    return statuses


def test_what_is_described_is_what_is_answered(view: Any, run: Any) -> None:
    """Of the application itself, without a server: its own checks repeat requests from `testserver` with other tokens."""
    many = RequestLimits(**dict.fromkeys(RATES, 1e6))  # type: ignore[arg-type]
    app = create_app(view, Security(CONTROL, READ, "127.0.0.1", 80, ("127.0.0.1", "testserver"), many))
    schema = schemathesis.openapi.from_dict(app.openapi(), config=SchemathesisConfig.from_path(str(RULES)))
    schema.app = app
    before, statuses = run.knobs, Counter[tuple[str, int]]()
    operations = [each.ok() for each in schema.exclude(path="/api/v1/stream").get_all_operations()]
    assert len(operations) == 30
    for operation in operations:
        knobs = operation.label == "PATCH /api/v1/knobs"
        own = {"If-Match": "*"} if knobs else {}
        takes_something = [*operation.iter_parameters(), *operation.body]
        examples = 10 * FEW_EXAMPLES if knobs else FEW_EXAMPLES if takes_something else 1
        for mode in [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if takes_something else [])]:
            statuses.update((operation.label, status) for status in answered(operation, own, examples, mode))
    assert statuses["GET /api/v1/placement/{table}", 200] >= 1
    assert statuses["PATCH /api/v1/knobs", 200] >= 3
    assert run.knobs != before, "some changes were made, not only refused"
    assert sum(statuses.values()) >= 100


@pytest.mark.slow
def test_what_is_described_is_what_is_answered_over_http(sidecar: Sidecar, tmp_path: Path) -> None:
    report = make_up_requests(sidecar, tmp_path / "report", QUICK_EXAMPLES, *WITHOUT_KNOBS, "--seed=1")
    assert report["operations"]["selected"] >= 17
    assert report["test_cases"]["generated"] >= 400
    assert accepted(report, "GET /api/v1/placement/{table}") >= 4


@pytest.mark.slow
def test_knobs_change_as_described_over_http(sidecar: Sidecar, tmp_path: Path) -> None:
    before = sidecar.run.knobs
    report = make_up_requests(sidecar, tmp_path / "report", QUICK_EXAMPLES, *ONLY_KNOBS, "--seed=1")
    assert report["operations"]["selected"] == 1
    assert accepted(report, "PATCH /api/v1/knobs") >= 50
    assert sidecar.run.knobs != before, "some changes were made, not only refused"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("options", "at_least"), [(EVERYTHING, 2000), (ONLY_KNOBS, 500)], ids=["all", "knobs"])
def test_hundreds_of_requests_to_every_operation(
    sidecar: Sidecar, tmp_path: Path, options: tuple[str, ...], at_least: int
) -> None:
    """Hundreds where there is something to make up: many an operation takes nothing."""
    report = make_up_requests(sidecar, tmp_path / "report", LONG_EXAMPLES, *options)
    assert report["test_cases"]["generated"] >= at_least
