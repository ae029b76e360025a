"""A soak: random clients, knob changes and sidecar kills for a long time, and nothing grows.

Time is cut into rounds. In each, clients do as dice have it; then all go away, knobs are put back, and once the run has gone on
for a little, trainer and sidecar are looked at: at rest they have to hold what they held at rest before.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import httpx2
import pytest

from adaptive_rec.run import journal

from .churn import MOST_OPEN, Churn
from .conftest import AT_FULL_SPEED, Job, children, wait_for
from .flatness import COUNTS, MEMORY, MIB, Reading, flat, judge, least, read

SETTINGS = [
    "--policy=adaptive", "--steps=1000000000", "--set=data.synthetic.samples=200000", "--set=data.epochs=1000000",
    "--set=run.batch_size=256", "--set=data.table_rows=[20000, 400, 9]", "--set=knobs.reclassify_every=100",
    "--set=knobs.report_every=50", "--set=checkpoint.every_seconds=5",
]  # fmt: skip
CALM = (0.4, 0.75)
"""The part of the time in which no sidecar is killed, so that one grows old."""
REST_STEPS, SETTLE_SECONDS, LOOKS = 150, 5.0, 5
MOST_MORE_FDS = {"trainer": 16, "sidecar": 2 * MOST_OPEN + 16}
MOST_MORE_THREADS = 16
"""At any moment, above what is there at rest."""
SIDECAR_THREADS = 2
"""One serves; another one, which then stays, is made when a placement is first asked for while it is being written."""
FEWEST_READINGS = 9
FAULTS = (500, 501, 502, 504, 507)
"""What no client may be answered. 503 is: too many streams, or a sidecar that has only begun."""


@dataclass
class Life:
    """What a process held: at rest, and at any time."""

    pid: int
    rest: list[Reading] = field(default_factory=list)
    all: list[Reading] = field(default_factory=list)


class Soak:
    def __init__(self, job: Job, seconds: float, round_seconds: float, seed: int, say: Callable[[str], None]) -> None:
        self.job, self.seconds, self.round_seconds, self.say = job, seconds, round_seconds, say
        wait_for(lambda: self._step() > REST_STEPS, 120)  # kernels are compiled
        self.churn = Churn(job, seed)
        self.trainer = Life(job.process.pid)
        self.sidecars: list[Life] = []
        self.began = time.monotonic()
        self.told = (0.0, 0)
        """When the table's last line was printed, and at which step."""

    def run(self) -> None:
        self._come_to_rest()
        while (now := self._now()) < self.seconds:
            self._round(kill=not CALM[0] <= now / self.seconds <= CALM[1])
            self._come_to_rest()

    def _now(self) -> float:
        return time.monotonic() - self.began

    def _step(self) -> int:
        with self.job.client(unix=True) as client:
            return int(client.get("/api/v1/status").json()["step"])

    def _round(self, kill: bool) -> None:
        dice, end, sample_at = self.churn.dice, self._now() + self.round_seconds, self._now()
        number = max(dice.randint(0, 2), len(self.sidecars) == 1) if kill else 0
        kills = sorted(end - dice.random() * self.round_seconds for _ in range(number))
        while (now := self._now()) < end:
            assert self.job.process.poll() is None, self.job.log.read_text()
            if kills and now >= kills[0]:
                kills.pop(0)
                self.churn.kill_sidecar()
            if now >= sample_at:
                sample_at += 1
                self._look()
            self.churn.act()
            time.sleep(min(1.0, dice.expovariate(12)))

    def _come_to_rest(self) -> None:
        self.churn.go_away()
        wait_for(self._is_put_back, 60)
        step = self._step()
        wait_for(lambda: self._step() >= step + REST_STEPS, 60)
        self._wait_for_closed_connections()
        self._look_at_rest()
        if not self.told[1] or self._now() - self.told[0] >= 60:
            self._tell()

    def _is_put_back(self) -> bool:
        with suppress(httpx2.TransportError, OSError):
            if self.job.answers() and self.churn.put_back():
                self.churn.read_everything()  # so each has made what it makes when it is first asked
                return True
        return False

    def _wait_for_closed_connections(self) -> None:
        """The sidecar may need a moment to see that they are; fds that never close are found in the readings."""
        if self.sidecars:
            usual = self.sidecars[0].rest[0].fds
            with suppress(AssertionError, OSError):
                wait_for(lambda: len(os.listdir(f"/proc/{self.job.sidecar()}/fd")) <= usual, SETTLE_SECONDS)

    def _look(self) -> None:
        """Read what both processes hold, but for a sidecar that is no more or not there yet."""
        with suppress(OSError, LookupError):
            sidecar = self.job.sidecar()
            if sidecar is not None and sidecar not in [life.pid for life in self.sidecars]:
                self.sidecars.append(Life(sidecar))
            for life in [self.trainer, *self.sidecars[-1:]]:
                life.all.append(read(life.pid, self._now()))

    def _look_at_rest(self) -> None:
        """Several times: a checkpoint may be under way."""
        for _ in range(LOOKS):
            self._look()
            time.sleep(0.15)
        sidecar = self.sidecars[-1]
        self.trainer.rest.append(least(self.trainer.all[-LOOKS:]))
        reading = least(sidecar.all[-LOOKS:])
        sidecar.rest.append(replace(reading, threads=max(reading.threads, SIDECAR_THREADS)))

    # What comes of it ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        now, step = self._now(), self._step()
        rate = (step - self.told[1]) / (now - self.told[0]) if self.told[1] else 0.0
        sidecar = self.sidecars[-1]
        age = f"{len(self.sidecars):3}, {now - sidecar.all[0].seconds:4.0f} s old,"
        self.say(f"{now:6.0f} s {rate:5.0f} steps/s  trainer {self.trainer.rest[-1]}  sidecar {age} {sidecar.rest[-1]}")
        self.told = (now, step)

    def judgement(self, memory: bool) -> Iterator[tuple[bool, str]]:
        """Each thing judged: whether it is as it should be, and what it is."""
        names = (*MEMORY, *COUNTS) if memory else COUNTS
        judged = {"trainer": (self.trainer.rest, names)}
        lives = [life for life in self.sidecars if life.rest]
        judged["sidecars, all"] = ([reading for life in lives for reading in life.rest], COUNTS)
        if memory:
            judged["sidecars, one after the other"] = ([life.rest[0] for life in lives], names)
        for number, life in enumerate(self.sidecars, start=1):
            if len(life.rest) >= FEWEST_READINGS:
                age = life.rest[-1].seconds - life.rest[0].seconds
                judged[f"sidecar {number} over {age:.0f} s"] = (life.rest, names)
        for what, (readings, of) in judged.items():
            for trend in judge(readings, of):
                yield trend.flat, f"{what}: {trend}"
        for what, all_lives in (("trainer", [self.trainer]), ("sidecar", lives)):
            for name, more in (("fds", MOST_MORE_FDS[what]), ("threads", MOST_MORE_THREADS)):
                bound = getattr(all_lives[0].rest[0], name) + more
                most = max(getattr(reading, name) for life in all_lives for reading in life.all)
                yield most <= bound, f"{what}: at most {most} {name} at any moment, of {bound}"


def soak(job: Job, seconds: float, round_seconds: float, memory: bool, say: Callable[[str], None]) -> None:
    seed = int(os.environ.get("ADAPTIVE_REC_SOAK_SEED", random.randrange(1 << 30)))
    say(f"\nseed of the soak: {seed} (ADAPTIVE_REC_SOAK_SEED={seed} throws the same dice)")
    soak = Soak(job, seconds, round_seconds, seed, say)
    soak.run()
    say("answers: " + ", ".join(f"{what} {count}" for what, count in sorted(soak.churn.answers.items())))
    verdicts = list(soak.judgement(memory))
    say("\n".join(f"{'ok ' if well else 'NOT'} {text}" for well, text in verdicts))
    assert len(children(job.process.pid)) == 1, "the sidecar, and no dead one"
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(300) == 143, job.log.read_text()
    verify = [sys.executable, "-m", "adaptive_rec", "checkpoint", "verify", str(job.out)]
    verified = subprocess.run(verify, capture_output=True, text=True, timeout=600, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    done = [command for step in journal.commands(job.out).values() for command in step]
    assert {"change_knobs", "reclassify"} <= {command.verb for command in done} or seconds < 60
    assert [what for what in soak.churn.answers if what.endswith(tuple(map(str, FAULTS)))] == []
    assert not job.events("failed")
    assert [text for well, text in verdicts if not well] == []


@pytest.mark.slow
def test_nothing_is_left_open_after_a_short_soak(start: Callable[..., Job]) -> None:
    soak(start(*SETTINGS, first=AT_FULL_SPEED), 20, 2, memory=False, say=print)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_memory_files_and_threads_stay_flat_in_a_long_soak(
    start: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """`ADAPTIVE_REC_SOAK_SECONDS` of it, half an hour if not told."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    seconds = float(os.environ.get("ADAPTIVE_REC_SOAK_SECONDS", "1800"))
    soak(start(*SETTINGS, first=AT_FULL_SPEED), seconds, 15, memory=True, say=say)


# The judgement -------------------------------------------------------------------------------------------------------


def series(
    minutes: float = 30, every: float = 18, seed: int = 0, busy_ratio: float = 0.2, **growth_a_minute: float
) -> list[Reading]:
    """Readings with noise: one now and then falls into a checkpoint, memory wobbles by a few MiB."""
    dice, found = random.Random(seed), []
    for number in range(int(minutes * 60 / every)):
        seconds = number * every
        busy = dice.random() < busy_ratio
        reading = Reading(seconds, 640 * MIB, 390 * MIB, 10 + 3 * busy, 6 + busy)
        wobble = int(dice.gauss(0, 3 * MIB)) + 40 * MIB * (dice.random() < 0.05)
        reading = replace(reading, rss=reading.rss + wobble, anonymous=reading.anonymous + wobble)
        grown = {name: getattr(reading, name) + int(rate * seconds / 60) for name, rate in growth_a_minute.items()}
        found.append(replace(reading, **grown))
    return found


SEEDS = range(20)


@pytest.mark.slow
def test_noise_is_flat() -> None:
    wrong = [seed for seed in SEEDS if not flat(series(seed=seed))]
    wrong_soon = [seed for seed in SEEDS if not flat(series(minutes=3, seed=seed, busy_ratio=0))]
    assert (wrong, wrong_soon) == ([], []), "seeds of noise that is taken for a leak"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "a_minute"), [("fds", 1), ("threads", 0.2), ("rss", MIB), ("anonymous", MIB), ("fds", 0.1)]
)
def test_a_leak_is_found(name: str, a_minute: float) -> None:
    wrong = {seed: [trend.name for trend in judge(series(seed=seed, **{name: a_minute})) if not trend.flat] for seed in SEEDS}
    assert wrong == dict.fromkeys(SEEDS, [name]), "what is taken for a leak, by seed"


@pytest.mark.slow
def test_growth_that_ends_while_it_warms_up_is_flat() -> None:
    grown = [
        replace(
            reading,
            rss=reading.rss + int(min(reading.seconds, 500) / 500 * 100 * MIB),
            threads=6 + (reading.seconds > 200),
        )
        for reading in series()
    ]
    assert flat(grown)


@pytest.mark.slow
def test_one_that_shrinks_is_flat() -> None:
    assert flat(series(rss=-2 * MIB, anonymous=-2 * MIB))
