"""A run whose steps come slowly: `Job` imports this in its process, so that no time is spent on steps nobody looks at."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

from adaptive_rec.runtime.steps import TrainingSteps

gc.freeze()  # what the process was forked with, which its end would look through for a second
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS_OF_TESTS", "0.02"))

make = TrainingSteps.make


def paced(steps: TrainingSteps, *arguments: Any) -> None:
    time.sleep(PAUSE_SECONDS)
    make(steps, *arguments)


TrainingSteps.make = paced  # type: ignore[method-assign]
