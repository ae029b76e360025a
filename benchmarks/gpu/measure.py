"""Contestants take turns in one process until the time is up; medians over turns, ratios of turns of the same round.

Interleaving makes them see the same machine. A turn begins and ends settled: the device has done everything, cold rows are
home. What a contestant read ahead before its turn is read ahead for the next one after it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.common.contestants import Contestant, Where
from benchmarks.common.results import explain
from benchmarks.common.statistics import quartiles
from benchmarks.gpu.apart import Apart, NotReady
from benchmarks.gpu.limit import OutOfTime, limited
from benchmarks.gpu.plan import OPTIONAL

ROUNDS = 7
SET_UP_RATIO = 0.6
"""Of a cell's time: contestants that are not set up by then are left out, so that the others get their turns."""

WARM_RATIO, MOST_WARM_RATIO = 0.35, 0.6
"""Of the time left after the set-up, planned and at most: hot rows have to be found before the clock runs."""

SLOW_RATIO = 2.0
"""A contestant may take so many times its share, or half of what is left; then it is left out."""


@dataclass
class Turn:
    steps: int
    seconds: float
    gained: dict[str, float]
    used_bytes: int

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps


@dataclass
class Entry:
    """A contestant, its turns, and why it went out."""

    contestant: Contestant
    turns: list[Turn] = field(default_factory=list)
    warm_seconds_per_step: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    """As they were after its last turn."""
    error: str = ""
    too_slow: str = ""
    """What it was too slow for: no failure. Turns that it took before count."""


def compare(
    makers: dict[str, Callable[[], Contestant] | Apart], where: Where, deadline: float, note: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Set all contestants up, warm them, let them take turns until the deadline (of `time.perf_counter`).

    Those in processes of their own set themselves up meanwhile. Nothing goes on after the deadline, a rehearsal excepted.
    `save` is given what is known before the first and after each turn, for the case that there is no end.
    """
    comparison = Comparison(where, deadline, note, save)
    comparison.set_up(makers)
    comparison.warm()
    while comparison.rounds < ROUNDS and comparison.has_time_for_another():
        comparison.take_round()
    found = comparison.result()
    comparison.close()
    return found


class Comparison:
    """Contestants that take turns, those that went out, and the time that is left."""

    def __init__(
        self, where: Where, deadline: float, note: Callable[[str], None], save: Callable[[dict[str, Any]], None]
    ) -> None:
        self._where, self._deadline, self._note, self._save = where, deadline, note, save
        self._entries: dict[str, Entry] = {}
        self._failed: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        self.rounds = 0
        self._began = self._set_up_at = time.perf_counter()
        self._last = float("inf") if where.rehearsal else deadline

    def result(self) -> dict[str, Any]:
        entries = self._entries
        errors = {**self._failed, **{name: entry.error for name, entry in entries.items() if entry.error}}
        optional = {name: error for name, error in errors.items() if name.partition("+")[0] in OPTIONAL}
        slow = {name: entry.too_slow for name, entry in entries.items() if entry.too_slow and not entry.turns}
        return {
            "rounds": self.rounds,
            "runs": {name: summary(entry) for name, entry in entries.items() if entry.turns},
            "ratios": ratios(entries),
            "failed": {name: error for name, error in errors.items() if name not in optional},
            "left_out": self._left_out | slow | optional,
            "seconds_to_set_up": self._set_up_at - self._began,
            "seconds_for_turns": self._deadline - self._set_up_at,
        }

    def set_up(self, makers: dict[str, Callable[[], Contestant] | Apart]) -> None:
        until = self._last if self._where.rehearsal else self._began + SET_UP_RATIO * (self._deadline - self._began)
        made: dict[str, Entry] = {}
        for name, make in sorted(makers.items(), key=lambda item: isinstance(item[1], Apart)):
            try:
                made[name] = Entry(set_up(make, until))
                self._note(f"{name}: set up after {time.perf_counter() - self._began:.1f} s")
            except (OutOfTime, NotReady):
                self._left_out[name] = "was not set up in time"
                self._note(f"{name}: {self._left_out[name]}")
            except Exception as error:
                self._failed[name] = explain(error)
                self._note(f"{name}: cannot be set up: {self._failed[name].splitlines()[0]}")
        for name, make in makers.items():
            if isinstance(make, Apart) and name not in made:
                make.close()
        self._entries = {name: made[name] for name in makers if name in made}
        self._set_up_at = time.perf_counter()
        gc.collect()
        self._save(self.result())

    def close(self) -> None:
        """End rivals' processes, and our own runs as far as there is time for it: this process ends soon."""
        contestants = [entry.contestant for entry in self._entries.values()]
        rivals = [contestant for contestant in contestants if isinstance(contestant, Apart)]
        for rival in rivals:
            rival.kill()
        for contestant in contestants:
            try:
                with limited(float("inf") if contestant in rivals else self._last):
                    contestant.close()
            except OutOfTime:
                continue
            except Exception as error:
                self._note(f"{contestant.name}: cannot be closed: {explain(error).splitlines()[0]}")

    def _running(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if not entry.error and not entry.too_slow]

    def _attempt(self, entry: Entry, work: Callable[[], object], share: float, late: str, last: float) -> None:
        """Have a contestant work whose share of the time is this; it may take longer, so that something is left for the others.
        One that fails or is not done by then takes no more turns, and its process, where it has one, no more of the machine."""
        now = time.perf_counter()
        try:
            with limited(min(last, now + max(SLOW_RATIO * share, 0.5 * (last - now)))):
                work()
        except OutOfTime:
            entry.too_slow = late
            self._note(f"{entry.contestant.name}: {late}")
            if isinstance(entry.contestant, Apart):
                entry.contestant.kill()
        except Exception as error:
            entry.error = explain(error)
            self._note(f"{entry.contestant.name}: went out: {entry.error.splitlines()[0]}")

    def warm(self) -> None:
        """Compile, record, find hot rows. Each gets the same time, and at least one window where there is time for it."""
        left = self._deadline - time.perf_counter()
        share = WARM_RATIO * left / max(1, len(self._entries))
        last = self._last
        if last < float("inf"):
            last = min(last, time.perf_counter() + MOST_WARM_RATIO * left)
        for entry in self._running():
            self._attempt(entry, partial(warm_one, entry, share), share, "was not warm in time", last)
        self._save(self.result())

    def has_time_for_another(self) -> bool:
        running = self._running()
        last = sum(entry.turns[-1].seconds for entry in running if entry.turns)
        return bool(running) and (self.rounds < 1 or time.perf_counter() + 1.15 * last < self._deadline)

    def take_round(self) -> None:
        """One turn each, in this order and the other way round by turns. A turn that the cell's end cuts short does not count."""
        seconds = (self._deadline - time.perf_counter()) / (ROUNDS - self.rounds)
        running = self._running()
        share = seconds / max(1, len(running))
        late = f"turn {self.rounds + 1} was not over in time"
        for entry in running if self.rounds % 2 == 0 else reversed(running):
            turn = partial(take_turn, entry, self._where, share)
            self._attempt(entry, turn, max(share, least_seconds(entry)), late, self._last)
            self._save(self.result())
        self.rounds += 1


def set_up(make: Callable[[], Contestant] | Apart, until: float) -> Contestant:
    if isinstance(make, Apart):
        make.wait(until)
        return make
    with limited(until):
        return make()


def warm_one(entry: Entry, share: float) -> None:
    entry.contestant.drive(2)
    entry.contestant.settle()
    began, first = time.perf_counter(), entry.contestant.steps
    steps = 2
    while time.perf_counter() - began < share:
        steps = min(2 * steps, max(2, entry.contestant.window_steps))
        middle, since = entry.contestant.steps, time.perf_counter()
        entry.contestant.drive(steps)
    entry.contestant.settle()
    if entry.contestant.steps == first:
        middle, since = first, began
        entry.contestant.drive(2)
        entry.contestant.settle()
    entry.warm_seconds_per_step = (time.perf_counter() - since) / (entry.contestant.steps - middle)


def least_seconds(entry: Entry) -> float:
    """What a turn will take, however short its share of the time."""
    return entry.turns[-1].seconds if entry.turns else 3 * entry.warm_seconds_per_step


def take_turn(entry: Entry, where: Where, seconds: float) -> None:
    contestant = entry.contestant
    contestant.drive(1)  # to a report, past what lay ready
    contestant.settle()
    before, began = contestant.counters(), time.perf_counter()
    steps = contestant.drive(turn_steps(entry, seconds))
    contestant.settle()
    elapsed = time.perf_counter() - began
    after = contestant.counters()
    used = where.used_bytes()
    entry.facts = contestant.facts()
    time.sleep(min(0.2, 3 * elapsed / steps))  # its reading ahead ends before the next one's turn
    entry.turns.append(Turn(steps, elapsed, {key: after[key] - before.get(key, 0) for key in after}, used))


def turn_steps(entry: Entry, seconds: float) -> int:
    """As many steps as the turn has time for; whole windows where one or more fit in nearly that time."""
    each = entry.turns[-1].seconds_per_step if entry.turns else entry.warm_seconds_per_step
    steps, window = max(2, int(seconds / max(each, 1e-6))), entry.contestant.window_steps
    return max(1, round(steps / window)) * window if steps > 0.6 * window else steps


def summary(entry: Entry) -> dict[str, Any]:
    """Median turn, quartiles, the mean over all turns, and what a step did on the mean."""
    rates = sorted(turn.gained["samples"] / turn.seconds for turn in entry.turns)
    seconds, wall_seconds = [turn.seconds_per_step for turn in entry.turns], sum(turn.seconds for turn in entry.turns)
    steps = sum(turn.steps for turn in entry.turns)
    gained = {key: sum(turn.gained[key] for turn in entry.turns) for key in entry.turns[0].gained}
    return {
        "samples_per_second": statistics.median(rates),
        "samples_per_second_quartiles": quartiles(rates),
        "seconds_per_step": statistics.median(seconds),
        "seconds_per_step_mean": wall_seconds / steps,
        "wait_ratio": gained["wait_seconds"] / wall_seconds,
        "turns": len(entry.turns),
        "steps_of_turns": [turn.steps for turn in entry.turns],
        "window_steps": entry.contestant.window_steps,
        "used_device_bytes": [turn.used_bytes for turn in entry.turns],
        "gained": gained,
        "per_step": {key: value / steps for key, value in gained.items()},
        "facts": entry.facts,
        "error": entry.error,
    }


def ratios(entries: dict[str, Entry]) -> dict[str, dict[str, float]]:
    """Speed of each contestant over each other's: the median over rounds of the ratio within the round."""
    speeds = {
        name: [turn.gained["samples"] / turn.seconds for turn in entry.turns]
        for name, entry in entries.items()
        if entry.turns
    }
    return {
        one: {
            other: statistics.median(a / b for a, b in zip(mine, theirs, strict=False))
            for other, theirs in speeds.items()
            if other != one
        }
        for one, mine in speeds.items()
    }
