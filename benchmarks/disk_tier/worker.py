"""The process of a contestant: it reads a command a line and answers each with a line of JSON.

python -m benchmarks.disk_tier.worker SETUP
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any

from benchmarks.common.shapes import SHAPES, open_shape
from benchmarks.disk_tier.contestants import Contestant, build, configured
from benchmarks.disk_tier.plan import Setup


def turn(contestant: Contestant, steps: int) -> dict[str, Any]:
    """Train some steps. Returns the seconds of one, by the clock and of the processors, and what the counters gained in each."""
    gc.collect()
    before, worked, began = contestant.counters(), time.process_time(), time.perf_counter()
    contestant.drive(steps)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    now = contestant.counters()
    gained = {name: (value - before.get(name, 0)) / steps for name, value in now.items()}
    return {"seconds": seconds / steps, "processor_seconds": worked / steps, "gained": gained}


def answer(contestant: Contestant, command: str) -> Any:
    what, *words = command.split()
    if what == "turn":
        return turn(contestant, int(words[0]))
    if what == "facts":
        return contestant.facts()
    return contestant.settle()


def main() -> None:
    setup = Setup.read(sys.argv[1])
    config = configured(setup)
    contestant = build(setup, open_shape(SHAPES[setup.shape], config), config)
    print(json.dumps("ready"), flush=True)
    for command in sys.stdin:
        print(json.dumps(answer(contestant, command)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # what is in memory is not needed any more


if __name__ == "__main__":
    main()
