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
from benchmarks.common.explain import explain
from benchmarks.common.statistics import quartiles
from benchmarks.gpu.plan import OPTIONAL

ROUNDS = 7
SET_UP_RATIO = 0.6
"""Of a cell's time: contestants that are not set up by then are left out, so that the others get their turns."""

WARM_RATIO = 0.35
"""Of the time left after the set-up: hot rows have to be found before the clock runs."""


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


def compare(
    makers: dict[str, Callable[[], Contestant]],
    where: Where,
    deadline: float,
    note: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Set all contestants up, warm them, let them take turns until the deadline (of `time.perf_counter`).

    `save` is given what is known after each turn, for the case that there is no end.
    """
    entries: dict[str, Entry] = {}
    failed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    began = time.perf_counter()
    for name, make in makers.items():
        if entries and not where.rehearsal and time.perf_counter() - began > SET_UP_RATIO * (deadline - began):
            left_out[name] = "no time was left to set it up"
            note(f"{name}: {left_out[name]}")
            continue
        try:
            entries[name] = Entry(make())
        except Exception as error:
            failed[name] = explain(error)
            note(f"{name}: cannot be set up: {failed[name].splitlines()[0]}")
    set_up_until = time.perf_counter()
    gc.collect()
    warm(entries, deadline)
    rounds = 0

    def result() -> dict[str, Any]:
        errors = {**failed, **{name: entry.error for name, entry in entries.items() if entry.error}}
        optional = {name: error for name, error in errors.items() if name.partition("+")[0] in OPTIONAL}
        return {
            **summarize(entries, rounds),
            "failed": {name: error for name, error in errors.items() if name not in optional},
            "left_out": left_out | optional,
            "seconds_to_set_up": set_up_until - began,
            "seconds_for_turns": deadline - set_up_until,
        }

    while rounds < ROUNDS and time_for_another(entries, rounds, deadline):
        seconds = (deadline - time.perf_counter()) / (ROUNDS - rounds)
        take_round(entries, where, rounds, seconds, note, lambda: save(result()))
        rounds += 1
    for entry in entries.values():
        try:
            entry.contestant.close()
        except Exception as error:
            note(f"{entry.contestant.name}: cannot be closed: {explain(error).splitlines()[0]}")
    return result()


def alive(entries: dict[str, Entry]) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if not entry.error}


def warm(entries: dict[str, Entry], deadline: float) -> None:
    """Compile, record, find hot rows. Each gets the same time, and at least one window."""
    share = WARM_RATIO * (deadline - time.perf_counter()) / max(1, len(entries))
    for entry in alive(entries).values():
        try:
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
        except Exception as error:
            entry.error = explain(error)


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
    note: Callable[[str], None],
    save: Callable[[], None],
) -> None:
    """One turn each, in this order and the other way round by turns."""
    running = list(alive(entries).values())
    for entry in running if number % 2 == 0 else reversed(running):
        try:
            entry.turns.append(take_turn(entry, where, seconds / max(1, len(running))))
        except Exception as error:
            entry.error = explain(error)
            note(f"{entry.contestant.name}: went out: {entry.error.splitlines()[0]}")
        save()


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


# Growth --------------------------------------------------------------------------------------------------------------


def memory_growth(contestant: Contestant, where: Where, deadline: float) -> dict[str, Any]:
    """Train until the deadline and watch the device's memory. Growth is what the last third needs above the middle one.

    The first third is left out: buffers grow with the largest batch seen and graphs are recorded at first use.
    """
    began = time.perf_counter()
    samples: list[dict[str, float]] = []
    while time.perf_counter() < deadline or len(samples) < 6:
        contestant.drive(1)
        samples.append(
            {
                "seconds": time.perf_counter() - began,
                "steps": contestant.steps,
                "tensor_bytes": where.memory_bytes(),
                "used_bytes": where.used_bytes(),
                "host_bytes": resident_bytes(),
            }
        )
    return {"samples": thin(samples, 400), "seconds": samples[-1]["seconds"], **growth(samples)}


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    third = len(samples) // 3
    found = {}
    for key in ("tensor_bytes", "used_bytes", "host_bytes"):
        middle = max(sample[key] for sample in samples[third : 2 * third])
        found[f"grown_{key}"] = max(sample[key] for sample in samples[2 * third :]) - middle
    return found


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def thin(values: list[Any], most: int) -> list[Any]:
    return values[:: max(1, len(values) // most)]
