"""Plain twin of the kernel in `clicks.py`: from the first click on, nothing carried over, lists and dictionaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class WalkedClick:
    """What is known before a click; names as in the kernel."""

    articles: list[int]
    recent: list[int]
    ages_ms: list[int]
    pause_ms: int
    clicks: int
    previous: int


def walk_clicks(
    clicks: list[tuple[int, int, int, int]], horizon_ms: int, random: list[list[float]]
) -> list[WalkedClick]:
    """Walk through clicks (time in ms, article, user, session), with a line of numbers in [0, 1) for each."""
    active: list[int] = []
    old = 0
    answer = []
    for c, (now, article, user, session) in enumerate(clicks):
        while old < c and clicks[old][0] < now - horizon_ms:
            gone = clicks[old][1]
            old += 1
            if all(other[1] != gone for other in clicks[old:c]):
                active[active.index(gone)] = active[-1]
                active.pop()
        others = [other for other in active if other != article]
        drawn = [others[int(number * len(others))] if others else -1 for number in random[c]]
        shown = [article, *drawn] if article in active else [-1] * (1 + len(drawn))
        past = clicks[:c]
        answer.append(
            WalkedClick(
                articles=shown,
                recent=[sum(other[1] == one for other in clicks[old:c]) for one in shown],
                ages_ms=[now - next((time for time, other, *_ in past if other == one), now) for one in shown],
                pause_ms=_since([time for time, _, other, _ in past if other == user], now),
                clicks=sum(other == session for *_, other in past),
                previous=next((one for _, one, _, other in reversed(past) if other == session), -1),
            )
        )
        if article not in active:
            active.append(article)
    return answer


def _since(times: list[int], now: int) -> Any:
    return now - times[-1] if times else -1
