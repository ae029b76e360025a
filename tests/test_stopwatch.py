"""The clock for upper bounds in tests: it leaves out waiting for a processor, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stopwatch import Stopwatch

SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count how long a thread waits")
def test_it_stands_still_while_another_process_has_the_processor() -> None:
    processors = os.sched_getaffinity(0)
    one = min(processors)
    with subprocess.Popen([sys.executable, "-c", SPIN, str(one)], stdout=subprocess.PIPE) as spinner:
        try:
            assert spinner.stdout is not None
            spinner.stdout.readline()
            os.sched_setaffinity(0, {one})
            watch, began, worked = Stopwatch(), time.monotonic(), time.thread_time()
            while time.thread_time() - worked < 0.1:
                pass
            seconds, passed = watch.seconds, time.monotonic() - began
        finally:
            os.sched_setaffinity(0, processors)
            spinner.kill()
    assert 0.05 < seconds < passed - 0.02


def test_it_counts_sleep_and_waits_for_a_process() -> None:
    watch = Stopwatch()
    time.sleep(0.05)
    assert watch.seconds > 0.04
    with subprocess.Popen(["sleep", "0.1"]) as sleeper:
        assert Stopwatch(sleeper.pid).wait(sleeper) == 0
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        with pytest.raises(subprocess.TimeoutExpired):
            Stopwatch(sleeper.pid).wait(sleeper, 0.1)
        sleeper.kill()
