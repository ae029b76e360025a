"""Many clients who change one knob at the same time: nobody's change is lost, and everybody sees their own."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from .conftest import Job, wait_for

pytestmark = pytest.mark.alone

KNOB = "min_probe_touches"
CLIENTS = 16


class Racer:
    """A client that adds one to a knob again and again; what it was answered, and what it wrote."""

    def __init__(self, job: Job, changes: int, go: threading.Barrier) -> None:
        self.job, self.changes, self.go = job, changes, go
        self.has_read = False
        self.written: list[int] = []
        self.answers: Counter[int] = Counter()

    def run(self) -> None:
        with self.job.client() as client:
            while len(self.written) < self.changes:
                self.add_one(client)

    def add_one(self, client: httpx2.Client) -> None:
        """Read, then write what was read and one, unless somebody else has been faster."""
        seen = self.ask(client, "GET")
        if not self.has_read:
            self.go.wait(300)  # so that all but one of the first changes are too late
            self.has_read = True
        value = seen.json()["knobs"][KNOB]["desired"]
        last = self.written[-1] if self.written else 0
        assert value >= last, f"{last} was acknowledged to this client, which then read {value}"
        answer = self.ask(client, "PATCH", json={KNOB: value + 1}, headers={"If-Match": seen.headers["etag"]})
        if answer.status_code == 412:
            assert answer.headers["etag"] != seen.headers["etag"]
            return time.sleep(random.uniform(0, 0.2))
        assert answer.status_code in (200, 202), answer.text
        assert answer.json()["changed"] == {KNOB: {"old": value, "new": value + 1}}
        assert answer.json()["desired"][KNOB] > value
        self.written.append(value + 1)

    def ask(self, client: httpx2.Client, method: str, **more: object) -> httpx2.Response:
        """The answer, after as many waits as the sidecar asks for."""
        while True:
            answer = client.request(method, "/api/v1/knobs", **more)  # type: ignore[arg-type]
            self.answers[answer.status_code] += 1
            if answer.status_code != 429:
                return answer
            time.sleep(float(answer.headers["retry-after"]))


def race(job: Job, changes: int) -> None:
    """Let the clients make so many changes each, then hold what came of it against what they were told."""
    with job.client() as client:
        first = client.get("/api/v1/knobs").json()["knobs"][KNOB]["desired"]
    before = len(job.events("knobs"))
    go = threading.Barrier(CLIENTS)
    racers = [Racer(job, changes, go) for _ in range(CLIENTS)]
    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for finished in [pool.submit(racer.run) for racer in racers]:
            finished.result()
    seconds = time.monotonic() - began

    expected = list(range(first + 1, first + CLIENTS * changes + 1))
    written = [value for racer in racers for value in racer.written]
    answers = sum((racer.answers for racer in racers), Counter())
    print(f"{len(written)} changes in {seconds:.1f} s; answers by status: {dict(answers)}")
    assert sorted(written) == expected, "each value was acknowledged to one client"
    assert answers[412] > 0, "nobody was ever too late, so this was no race"
    with job.client() as client:
        wait_for(lambda: not client.get("/api/v1/knobs").json()["pending"])
        knob = client.get("/api/v1/knobs").json()["knobs"][KNOB]
    assert (knob["desired"], knob["effective"]) == (expected[-1], expected[-1])
    wait_for(lambda: len(job.events("knobs")) - before >= len(expected))
    events = job.events("knobs")[before:]
    changed = [event["details"]["changed"] for event in events]
    assert changed == [{KNOB: {"old": value - 1, "new": value}} for value in expected]
    steps = [event["step"] for event in events]
    assert steps == sorted(steps)


def test_no_change_is_lost_in_a_race(job: Job) -> None:
    race(job, 2)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_change_is_lost_in_a_long_race(job: Job) -> None:
    race(job, 100)
