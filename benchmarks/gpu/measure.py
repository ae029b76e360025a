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
    makers: dict[str, Callable[[], Contestant] | Apart],
    where: Where,
    deadline: float,
    note: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Set all contestants up, warm them, let them take turns until the deadline (of `time.perf_counter`).

    Those in processes of their own set themselves up meanwhile. Nothing goes on after the deadline, a rehearsal excepted.
    `save` is given what is known before the first and after each turn, for the case that there is no end.
    """
    entries: dict[str, Entry] = {}
    failed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    began, rounds = time.perf_counter(), 0
    set_up_at = began
    last = float("inf") if where.rehearsal else deadline
    until = last if where.rehearsal else began + SET_UP_RATIO * (deadline - began)

    def result() -> dict[str, Any]:
        errors = {**failed, **{name: entry.error for name, entry in entries.items() if entry.error}}
        optional = {name: error for name, error in errors.items() if name.partition("+")[0] in OPTIONAL}
        slow = {name: entry.too_slow for name, entry in entries.items() if entry.too_slow and not entry.turns}
        return {
            **summarize(entries, rounds),
            "failed": {name: error for name, error in errors.items() if name not in optional},
            "left_out": left_out | slow | optional,
            "seconds_to_set_up": set_up_at - began,
            "seconds_for_turns": deadline - set_up_at,
        }

    for name, make in sorted(makers.items(), key=lambda item: isinstance(item[1], Apart)):
        try:
            entries[name] = Entry(set_up(make, until))
            note(f"{name}: set up after {time.perf_counter() - began:.1f} s")
        except (OutOfTime, NotReady):
            left_out[name] = "was not set up in time"
            note(f"{name}: {left_out[name]}")
        except Exception as error:
            failed[name] = explain(error)
            note(f"{name}: cannot be set up: {failed[name].splitlines()[0]}")
    for name, make in makers.items():
        if isinstance(make, Apart) and name not in entries:
            make.close()
    entries = {name: entries[name] for name in makers if name in entries}
    set_up_at = time.perf_counter()
    gc.collect()
    save(result())
    warm(entries, deadline, last, note)
    save(result())
    while rounds < ROUNDS and time_for_another(entries, rounds, deadline):
        seconds = (deadline - time.perf_counter()) / (ROUNDS - rounds)
        take_round(entries, where, rounds, seconds, last, note, lambda: save(result()))
        rounds += 1
    found = result()
    close(entries, last, note)
    return found


def close(entries: dict[str, Entry], last: float, note: Callable[[str], None]) -> None:
    """End rivals' processes, and our own runs as far as there is time for it: this process ends soon."""
    for entry in entries.values():
        if isinstance(entry.contestant, Apart):
            entry.contestant.kill()
    for entry in entries.values():
        try:
            with limited(float("inf") if isinstance(entry.contestant, Apart) else last):
                entry.contestant.close()
        except OutOfTime:
            continue
        except Exception as error:
            note(f"{entry.contestant.name}: cannot be closed: {explain(error).splitlines()[0]}")


def set_up(make: Callable[[], Contestant] | Apart, until: float) -> Contestant:
    if isinstance(make, Apart):
        make.wait(until)
        return make
    with limited(until):
        return make()


def alive(entries: dict[str, Entry]) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if not entry.error and not entry.too_slow}


def went_out(entry: Entry, why: str, note: Callable[[str], None]) -> None:
    """It takes no more turns, and its process, where it has one, no more of the machine."""
    entry.too_slow = why
    note(f"{entry.contestant.name}: {why}")
    if isinstance(entry.contestant, Apart):
        entry.contestant.kill()


def limit_of(share: float, last: float) -> float:
    """Until when a contestant may go on whose share of the time is this, so that something is left for the others."""
    now = time.perf_counter()
    return min(last, now + max(SLOW_RATIO * share, 0.5 * (last - now)))


def warm(entries: dict[str, Entry], deadline: float, last: float, note: Callable[[str], None]) -> None:
    """Compile, record, find hot rows. Each gets the same time, and at least one window where there is time for it."""
    left = deadline - time.perf_counter()
    share = WARM_RATIO * left / max(1, len(entries))
    if last < float("inf"):
        last = min(last, time.perf_counter() + MOST_WARM_RATIO * left)
    for entry in alive(entries).values():
        try:
            with limited(limit_of(share, last)):
                warm_one(entry, share)
        except OutOfTime:
            went_out(entry, "was not warm in time", note)
        except Exception as error:
            entry.error = explain(error)
            note(f"{entry.contestant.name}: went out: {entry.error.splitlines()[0]}")


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


def time_for_another(entries: dict[str, Entry], rounds: int, deadline: float) -> bool:
    running = alive(entries)
    if not running:
        return False
    last = sum(entry.turns[-1].seconds for entry in running.values() if entry.turns)
    return rounds < 1 or time.perf_counter() + 1.15 * last < deadline


def take_round(
    entries: dict[str, Entry],
    where: Where,
    number: int,
    seconds: float,
    last: float,
    note: Callable[[str], None],
    save: Callable[[], None],
) -> None:
    """One turn each, in this order and the other way round by turns. A turn that the cell's end cuts short does not count."""
    running = list(alive(entries).values())
    share = seconds / max(1, len(running))
    for entry in running if number % 2 == 0 else reversed(running):
        try:
            with limited(limit_of(max(share, least_seconds(entry)), last)):
                entry.turns.append(take_turn(entry, where, share))
        except OutOfTime:
            went_out(entry, f"turn {number + 1} was not over in time", note)
        except Exception as error:
            entry.error = explain(error)
            note(f"{entry.contestant.name}: went out: {entry.error.splitlines()[0]}")
        save()


def least_seconds(entry: Entry) -> float:
    """What a turn will take, however short its share of the time."""
    return entry.turns[-1].seconds if entry.turns else 3 * entry.warm_seconds_per_step


def take_turn(entry: Entry, where: Where, seconds: float) -> Turn:
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
    return Turn(steps, elapsed, {key: after[key] - before.get(key, 0) for key in after}, used)


def turn_steps(entry: Entry, seconds: float) -> int:
    """As many steps as the turn has time for; whole windows where one or more fit in nearly that time."""
    each = entry.turns[-1].seconds_per_step if entry.turns else entry.warm_seconds_per_step
    steps, window = max(2, int(seconds / max(each, 1e-6))), entry.contestant.window_steps
    return max(1, round(steps / window)) * window if steps > 0.6 * window else steps


def summarize(entries: dict[str, Entry], rounds: int) -> dict[str, Any]:
    runs = {name: summary(entry) for name, entry in entries.items() if entry.turns}
    return {"rounds": rounds, "runs": runs, "ratios": ratios(entries)}


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
