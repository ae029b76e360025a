"""A sidecar that hangs is killed and replaced, one that is slow is not, and no end of a run waits for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from adaptive_rec.live.heartbeat import (
    BEAT_SECONDS,
    HUNG_SECONDS,
    START_SECONDS,
    STOOD_STILL_SECONDS,
    Heartbeat,
    ThreadStanding,
    main_thread,
)
from tests.stopwatch import Stopwatch

from .conftest import STEP_PAUSE, Job, alive, wait_for
from .test_scrapes import Clock, phase_at

Start = Callable[..., Job]


class Watched:
    """A heartbeat of a process that stands as a test says."""

    def __init__(self) -> None:
        self.clock, self.standing, self.asked = Clock(), ThreadStanding("S", 0.0), 0
        self.heartbeat = Heartbeat(1, self.clock, lambda _: self.standing)

    def beat(self, state: str, seconds: float, worked: float = 0.0, every: float = BEAT_SECONDS) -> None:
        """Let time pass without an answer, beat by beat."""
        for _ in range(round(seconds / every)):
            self.clock.now += every
            self.standing = ThreadStanding(state, self.standing.processor_seconds + worked * every)
            self.heartbeat.beat(self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def answer(self) -> Watched:
        self.heartbeat.hear()
        return self


@pytest.mark.parametrize("state", ["S", "T", "D"])
def test_silence_is_hung_after_ten_seconds(state: str) -> None:
    watched = Watched().answer()
    watched.beat(state, HUNG_SECONDS)
    assert (watched.asked, watched.heartbeat.hung) == (1, False)
    watched.beat(state, BEAT_SECONDS)
    assert (watched.asked, watched.heartbeat.hung) == (1, True)


def test_an_answer_at_any_time_is_enough() -> None:
    watched = Watched().answer()
    for _ in range(5):
        watched.beat("T", HUNG_SECONDS - BEAT_SECONDS)
        assert watched.heartbeat.doubtful
        assert not watched.answer().heartbeat.doubtful
    assert watched.asked == 5


def test_waiting_for_a_processor_is_not_silence() -> None:
    """A low priority beside many busy processes leaves a hundredth of a core."""
    watched = Watched().answer()
    watched.beat("R", 60, worked=0.01)
    assert not watched.heartbeat.doubtful


def test_an_endless_loop_is_hung_after_ten_seconds_of_a_processor() -> None:
    watched = Watched().answer()
    watched.beat("R", 2 * HUNG_SECONDS, worked=0.5)
    assert not watched.heartbeat.hung
    watched.beat("R", 2, worked=0.5)
    assert watched.heartbeat.hung


def test_a_start_may_take_longer() -> None:
    watched = Watched()
    watched.beat("S", START_SECONDS - 1)
    assert not watched.heartbeat.hung
    watched.beat("S", 1)
    assert watched.heartbeat.hung
    assert watched.asked == 0, "the first line is the first question"


def test_a_sidecar_in_a_debugger_is_left_alone() -> None:
    watched = Watched().answer()
    watched.beat("t", 600)
    assert not watched.heartbeat.doubtful


def test_after_the_trainer_stood_still_the_time_begins_anew() -> None:
    watched = Watched().answer()
    watched.beat("T", HUNG_SECONDS)
    watched.clock.now += STOOD_STILL_SECONDS
    watched.beat("T", HUNG_SECONDS)
    assert not watched.heartbeat.hung
    watched.beat("T", BEAT_SECONDS)
    assert watched.heartbeat.hung


def test_the_standing_of_a_real_process(proc: None) -> None:
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for(lambda: main_thread(loop.pid).processor_seconds > 0.2)
        os.kill(loop.pid, signal.SIGSTOP)
        wait_for(lambda: main_thread(loop.pid).state == "T")
    finally:
        loop.kill()
        loop.wait()
    assert main_thread(loop.pid).state == "?", "there is no such process any more"


# Real runs -----------------------------------------------------------------------------------------------------------


@contextmanager
def stopped(job: Job) -> Iterator[int]:
    """The present sidecar's process id while it is stopped."""
    sidecar = job.sidecar()
    assert sidecar is not None
    os.kill(sidecar, signal.SIGSTOP)
    try:
        yield sidecar
    finally:
        with suppress(ProcessLookupError):
            os.kill(sidecar, signal.SIGCONT)


def is_back(job: Job, before: int) -> bool:
    return job.sidecar() not in (None, before) and job.answers()


def step_now(job: Job) -> int:
    with job.client() as client:
        step: int = client.get("/api/v1/status").json()["step"]
    return step


@pytest.mark.alone
def test_a_sidecar_that_hangs_is_killed_and_replaced(start: Start) -> None:
    job = start(environment={STEP_PAUSE: "0.2"})
    about, step = job.about, step_now(job)
    began = time.monotonic()
    with stopped(job) as sidecar:
        wait_for(lambda: not alive(sidecar))
        assert time.monotonic() - began > HUNG_SECONDS - 2 * BEAT_SECONDS
        wait_for(partial(is_back, job, sidecar))
    assert {name: job.about[name] for name in about} == about, "the port and the tokens are the same"
    assert step_now(job) > step, "training went on meanwhile"
    text = "the sidecar did not answer for 10 s, was killed and is started again; training continues"
    assert text in job.log.read_text()
    wait_for(lambda: job.events("sidecar"))
    assert [event["text"] for event in job.events("sidecar")] == [text]
    job.process.terminate()
    assert job.process.wait(300) == 143
    assert list((job.out / "checkpoints").glob("step-*/MANIFEST.json"))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_does_not_wait_for_a_sidecar_that_hangs(start: Start, number: int, code: int) -> None:
    """Not even where a scraper reads the run, for which it would stay 20 seconds."""
    job = start()
    assert phase_at(job) == "training"
    with stopped(job) as sidecar:
        job.process.send_signal(number)
        wait_for((job.out / "summary.json").exists)
        watch = Stopwatch(job.process.pid)
        assert watch.wait(job.process) == code
        assert watch.seconds < 9
        assert not alive(sidecar)
    assert list((job.out / "checkpoints").glob("step-*/MANIFEST.json"))
    assert "the sidecar does not answer, so the scraper cannot see" in job.log.read_text()


@pytest.mark.slow
@pytest.mark.alone
def test_a_run_that_is_done_does_not_wait_for_a_sidecar_that_hangs(start: Start) -> None:
    job = start("--steps=200")
    assert phase_at(job) == "training"
    with stopped(job) as sidecar:
        wait_for((job.out / "summary.json").exists, 60)
        watch = Stopwatch(job.process.pid)
        assert watch.wait(job.process) == 0
        assert watch.seconds < 9
        assert not alive(sidecar)


@pytest.mark.slow
@pytest.mark.alone
def test_a_pause_of_both_costs_the_sidecar_nothing(start: Start) -> None:
    """As Ctrl-Z, a debugger or a frozen container do it; the sidecar continues last."""
    job = start()
    with stopped(job) as sidecar:
        os.kill(job.process.pid, signal.SIGSTOP)
        time.sleep(HUNG_SECONDS + 2)
        os.kill(job.process.pid, signal.SIGCONT)
        time.sleep(HUNG_SECONDS / 2)
    wait_for(job.answers)
    assert job.sidecar() == sidecar
    assert not re.search("sidecar", job.log.read_text())
