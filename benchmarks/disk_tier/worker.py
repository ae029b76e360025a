"""The process of a contestant: it reads a command a line and answers each with a line of JSON.

python -P benchmarks/disk_tier/worker.py SETUP

What it imports may be of another checkout, so it may use only what both have.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.records import MicroBatch
from benchmarks.common.shapes import SHAPES, open_shape
from benchmarks.disk_tier.contestants import Contestant, build, configured
from benchmarks.disk_tier.plan import Setup

WHOLE_STEPS = 20
"""So many of the steps of a warm-up train the dense part too."""


@contextmanager
def dense_part_left_out() -> Iterator[None]:
    """Make no forward and backward pass in the body, which is most of a step: all gradients are 0. Rows find their places by
    lookups, and are read and written all the same."""

    def run(self: DensePart, micro: MicroBatch) -> None:
        self.losses_S = torch.zeros(len(micro.scale_S))
        self._step_losses.append(self.losses_S)
        self._gradients.append([torch.zeros_like(part) for part in micro.pooled])

    before = DensePart.run, DensePart.update_parameters
    DensePart.run, DensePart.update_parameters = run, lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        DensePart.run, DensePart.update_parameters = before  # type: ignore[method-assign]


def warm(contestant: Contestant, steps: int) -> None:
    """Make first steps, most of them without the dense part."""
    if steps > WHOLE_STEPS:
        with dense_part_left_out():
            contestant.drive(steps - WHOLE_STEPS)
    contestant.drive(min(steps, WHOLE_STEPS))


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
    if what == "warm":
        return warm(contestant, int(words[0]))
    if what == "facts":
        return contestant.facts()
    return contestant.settle()


def main() -> None:
    values = json.loads(sys.argv[1])
    setup = Setup(**{**values, "settings": tuple(values["settings"])})
    config = configured(setup)
    contestant = build(setup, open_shape(SHAPES[setup.shape], config), config)
    print(json.dumps("ready"), flush=True)
    for command in sys.stdin:
        print(json.dumps(answer(contestant, command)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # what is in memory is not needed any more


if __name__ == "__main__":
    main()
