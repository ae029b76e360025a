"""A run that trains until a signal comes, and writes down when each step ended. It imports only what other checkouts have too."""

from __future__ import annotations

import argparse
import signal
import time
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
    training = TrainingRun(load_config(arguments.preset, {}, [*endless, *arguments.set]), arguments.out)
    runtime = training.runtime
    ended_at = np.lib.format.open_memmap(arguments.out / "ended_at.npy", "w+", np.float64, (MOST_STEPS,))
    pulse = runtime.publisher.pulse

    def note() -> None:
        ended_at[runtime.step_number] = time.perf_counter()
        pulse()

    runtime.publisher.pulse = note  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: runtime.state.stop())
    if arguments.serve:
        with Sidecar(ServeOptions(port=0), training.out, training.runtime, print):
            for _ in training.events():
                pass
    else:
        for _ in training.events():
            pass


if __name__ == "__main__":
    line = argparse.ArgumentParser()
    line.add_argument("--out", type=Path, required=True)
    line.add_argument("--serve", action="store_true")
    line.add_argument("--preset", required=True)
    line.add_argument("--set", action="append", default=[])
    train(line.parse_args())
