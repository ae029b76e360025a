"""A run that trains until a signal comes, and writes down when each step ended. It imports only what other checkouts have too."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

MOST_STEPS = 1 << 20


def train(arguments: argparse.Namespace) -> None:
    """Train until a signal comes, and write down when each step ended."""
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.live.listen import ServeOptions
    from adaptive_rec.live.sidecar import Sidecar
    from adaptive_rec.run.training_run import TrainingRun

    endless = ["run.steps=0", "data.synthetic.samples=1000000000", "data.source=synthetic", "checkpoint.every_seconds=0"]
    training = TrainingRun(load_config(arguments.preset, {}, [*endless, *arguments.set]), Path(arguments.out))
    runtime = training.runtime
    ended_at = np.lib.format.open_memmap(training.out / "ended_at.npy", "w+", np.float64, (MOST_STEPS,))
    pulse = runtime.publisher.pulse

    def note() -> None:
        ended_at[runtime.step_number] = time.perf_counter()
        pulse()

    runtime.publisher.pulse = note  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: runtime.state.stop())
    serving = Sidecar(ServeOptions(port=0), training.out, training.runtime, print) if arguments.serve else nullcontext()
    with serving:
        for _ in training.events():
            pass


if __name__ == "__main__":
    train(argparse.Namespace(**json.loads(sys.argv[1])))
