"""The wall clock jumps by twenty years, twice a second, in a run and its sidecar: only what people read as a date shows it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from adaptive_rec.live.runtime_file import RuntimeFile
from adaptive_rec.live.sign_in_code import new_code

from .conftest import Job, wait_for

pytestmark = pytest.mark.alone

JUMP_SECONDS = 3.15e8
WATCHED_SECONDS = 3.0


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["forked", "fresh"])
def job(request: pytest.FixtureRequest, start: Callable[..., Job], tmp_path: Path) -> Job:
    """A forked run has a clock that jumps from its second import on, a fresh one from its start; both sidecars are fresh."""
    shutil.copy(Path(__file__).with_name("jumping.py"), tmp_path / "sitecustomize.py")
    place = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    words = ("--set=checkpoint.every_seconds=1", "--set=knobs.report_every=20")
    return start(*words, environment=place, first="tests.live.jumping_and_paced", fresh=request.param)


def test_a_run_goes_on_as_if_the_wall_clock_stood_still(job: Job) -> None:
    with job.client() as client:
        wait_for(lambda: client.get("/api/v1/status").json()["checkpoint"] is not None)
        wait_for(lambda: client.get("/api/v1/status").json()["steps_per_second"] is not None)
        began, saved = time.monotonic(), len(job.events("checkpoint"))
        while time.monotonic() - began < WATCHED_SECONDS:
            assert client.get("/livez").status_code == 200
            status = client.get("/api/v1/status").json()
            assert 0 <= status["last_step_age_seconds"] < 300
            assert 0 < status["steps_per_second"] < 1e5
            assert 0 <= status["eta_seconds"] < 1e7
            text = client.get("/metrics").text
            for name in ("last_step", "checkpoint"):
                at = float(re.findall(rf"^adaptive_rec_{name}_timestamp_seconds\S* (\S+)$", text, flags=re.M)[0])
                assert abs(abs(at - time.time()) - JUMP_SECONDS) < 60
            code = new_code(job.about["control_token"])
            assert client.post("/api/v1/session", headers={"Authorization": f"Code {code}"}).status_code == 204
            time.sleep(0.1)
        wait_for(lambda: len(job.events("checkpoint")) > saved + 1)
        count = len(job.events("checkpoint")) - saved
        assert count <= time.monotonic() - began + 1, "once a second, or less often on a busy machine"
        assert job.sidecar() is not None
        assert client.post("/api/v1/control/stop").status_code in (200, 202)
    assert job.process.wait(300) == 0
    assert RuntimeFile(**job.about).age_seconds < 300
    assert job.events("sidecar") == [], "no sidecar was given up"
    lines = [job.events(kind) for kind in ("started", "saving", "checkpoint", "reclassified", "stopping", "finished")]
    events = sorted((event for kind in lines for event in kind), key=lambda event: event["step"])
    assert any(one["time"] > other["time"] for one, other in pairwise(events)), "the clock did jump"
    assert events[-1]["seconds"] - events[0]["seconds"] < 300
    for kind in lines:
        assert all(one["seconds"] <= other["seconds"] for one, other in pairwise(kind))
