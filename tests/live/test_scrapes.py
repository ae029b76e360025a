"""A run that a scraper reads ends after the scrape that shows its end, and a run that nobody scrapes waits for nothing."""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from adaptive_rec.live.scrapes import LONGEST_HURRIED_SECONDS, LONGEST_SECONDS, Scrapes
from tests.stopwatch import Stopwatch

from .conftest import Job, wait_for

Start = Callable[..., Job]
AS_PROMETHEUS = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def scraped(clock: Clock, *gaps: float, phase: str = "training") -> Scrapes:
    scrapes = Scrapes(clock)
    scrapes.note(phase)
    for gap in gaps:
        clock.now += gap
        scrapes.note(phase)
    return scrapes


def test_who_was_never_scraped_waits_for_nothing() -> None:
    assert Scrapes().seconds_to_wait(hurried=False) == 0


def test_the_wait_is_the_time_to_the_next_scrape() -> None:
    clock = Clock()
    scrapes = scraped(clock, 15, 15, 15)
    clock.now += 5
    assert scrapes.seconds_to_wait(hurried=False) == pytest.approx(1.25 * 15 + 1 - 5)


def test_a_single_scrape_is_taken_for_the_usual_interval_of_a_minute() -> None:
    clock = Clock()
    scrapes = scraped(clock)
    clock.now += 30
    assert scrapes.seconds_to_wait(hurried=False) == pytest.approx(1.25 * 60 + 1 - 30)
    assert scrapes.seconds_to_wait(hurried=True) == LONGEST_HURRIED_SECONDS


def test_nobody_waits_longer_than_the_limit_or_for_a_scraper_that_has_gone() -> None:
    clock = Clock()
    scrapes = scraped(clock, 300, 300)
    assert scrapes.seconds_to_wait(hurried=False) == LONGEST_SECONDS
    scrapes = scraped(clock, 15, 15)
    clock.now += 100
    assert scrapes.seconds_to_wait(hurried=False) == 0


@pytest.mark.parametrize("phase", ["finished", "failed"])
def test_an_end_that_was_read_is_waited_for_no_more(phase: str) -> None:
    scrapes = scraped(Clock(), 15, phase=phase)
    assert scrapes.end_was_read
    assert scrapes.seconds_to_wait(hurried=False) == 0


def test_the_wait_ends_with_the_scrape_or_when_it_is_given_up() -> None:
    clock = Clock()  # it stands still, so that no time ends the wait
    scrapes = scraped(clock)
    threading.Timer(0.1, scrapes.note, ["finished"]).start()
    scrapes.wait_for_the_end(60, lambda: False)
    assert scrapes.end_was_read
    scrapes = scraped(clock)
    looks = iter([False, False, True])
    scrapes.wait_for_the_end(60, lambda: next(looks))
    assert (scrapes.end_was_read, list(looks)) == (False, [])


# A real run ----------------------------------------------------------------------------------------------------------


def phase_at(job: Job, headers: dict[str, str] = AS_PROMETHEUS) -> str:
    """The phase in the metrics; empty where nobody answers."""
    try:
        with job.client(token="read_token") as client:
            text = client.get("/metrics", headers=headers).text
    except httpx2.TransportError:
        return ""
    found = re.search(r'adaptive_rec_phase\{phase="(\w+)",run="run"\} 1', text)
    return found[1] if found else text


@pytest.mark.alone
def test_a_stopped_run_is_scraped_once_more(start: Start) -> None:
    job = start(first="tests.live.patient")
    assert phase_at(job) == "training"
    job.process.send_signal(signal.SIGTERM)
    wait_for((job.out / "summary.json").exists)
    wait_for(lambda: phase_at(job, {}) == "finished")
    time.sleep(1)
    assert job.process.poll() is None, "it waits for the scraper; a look by curl is none"
    with job.client() as client:
        text = client.get("/metrics").text
    assert 'adaptive_rec_checkpoint_interval_seconds{run="run"} 600.0' in text
    written = re.search(r'adaptive_rec_checkpoint_timestamp_seconds\{run="run"\} (.*)', text)
    assert written is not None
    assert abs(float(written[1]) - time.time()) < 30
    assert phase_at(job) == "finished"
    assert Stopwatch(job.process.pid).wait(job.process, 12) == 143
    assert "to the scraper of its metrics" in job.log.read_text()


@pytest.mark.alone
def test_a_second_signal_ends_the_wait(start: Start) -> None:
    job = start(first="tests.live.patient")
    assert phase_at(job) == "training"
    job.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "to the scraper of its metrics" in job.log.read_text())
    job.process.send_signal(signal.SIGTERM)
    assert Stopwatch(job.process.pid).wait(job.process, 12) == 143


@pytest.mark.slow
@pytest.mark.alone
def test_a_signal_ends_the_wait_of_a_run_that_was_stopped_by_a_client(start: Start) -> None:
    job = start(first="tests.live.patient")
    assert phase_at(job) == "training"
    with job.client() as client:
        assert client.post("/api/v1/control/stop").status_code in (200, 202)
    wait_for(lambda: "to the scraper of its metrics" in job.log.read_text())
    job.process.send_signal(signal.SIGINT)
    assert Stopwatch(job.process.pid).wait(job.process, 40) == 0
    assert not job.runtime_file.exists()


@pytest.mark.slow
@pytest.mark.alone
def test_a_second_stop_ends_the_wait(start: Start) -> None:
    job = start()
    assert phase_at(job) == "training"
    with job.client() as client:
        client.post("/api/v1/control/stop")
        wait_for(lambda: "to the scraper of its metrics" in job.log.read_text())
        client.post("/api/v1/control/stop")
    assert Stopwatch(job.process.pid).wait(job.process, 40) == 0


@pytest.mark.alone
def test_a_failed_run_is_scraped_once_more(start: Start) -> None:
    job = start()
    assert phase_at(job) == "training"
    shutil.rmtree(job.out / "checkpoints", ignore_errors=True)
    (job.out / "checkpoints").write_text("no folder: the last checkpoint cannot be written")
    with job.client() as client:
        client.post("/api/v1/control/stop")
    wait_for(lambda: "the run has failed" in job.log.read_text())
    time.sleep(1)
    assert phase_at(job) == "failed"
    assert Stopwatch(job.process.pid).wait(job.process, 15) > 0
    assert len(job.events("failed")) == 1


@pytest.mark.slow
@pytest.mark.alone
def test_a_run_resumed_meanwhile_gets_the_port(start: Start, tmp_path: Path) -> None:
    first = start("--port=0")
    port = first.about["url"].rpartition(":")[2]
    assert phase_at(first) == "training"
    first.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "to the scraper of its metrics" in first.log.read_text())
    resumed = Job(tmp_path / "0", "--resume", f"--port={port}")
    try:
        resumed.wait_until_served()
        assert resumed.about["url"] == first.about["url"]
        assert Stopwatch(first.process.pid).wait(first.process, 15) == 143
    finally:
        resumed.end()
