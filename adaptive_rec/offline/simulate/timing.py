"""How long calls take where nobody else is at work."""

from __future__ import annotations

import time
from collections.abc import Callable


def quickest(call: Callable[[int], object], times: int) -> float:
    """The least of so many calls in seconds, after one that is not timed (it compiles what is to be compiled).

    What else runs on the machine only ever adds to a call, so the least is the nearest to what it costs.
    """
    call(0)
    return min(once(lambda: call(n)) for n in range(times))  # noqa: B023 - called at once


def once(call: Callable[[], object]) -> float:
    """One call in seconds."""
    started = Clock.now()
    call()
    return Clock.now() - started


class Clock:
    """The clock that measures. A benchmark that is alone on no core may count the processor's time instead."""

    now: Callable[[], float] = staticmethod(time.perf_counter)
