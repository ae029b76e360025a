"""Stage times: sums over all threads, told apart by whose work it was."""

from __future__ import annotations

import threading
import time

import pytest

from adaptive_rec.live.recorder import Recorder
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.saved import Saved


def on_threads(count: int, work: object) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_each_stage_has_the_time_of_all_threads() -> None:
    times = StageTimes()

    def work() -> None:
        for _ in range(3):
            with times("load"):
                time.sleep(0.005)

    work()
    on_threads(4, work)
    seconds = times.seconds
    assert list(seconds) == ["load", "load (ahead)"]
    assert seconds["load"] >= 0.015
    assert seconds["load (ahead)"] >= 4 * 0.015


def test_a_thread_that_gives_way_counts_the_processors_time() -> None:
    times = StageTimes()

    def work() -> None:
        with times.in_background("observe"):
            time.sleep(0.2)

    on_threads(1, work)
    assert list(times.seconds) == ["observe (beside)"]
    assert 0 < times.seconds["observe (beside)"] < 0.1


def test_a_stage_that_fails_is_timed_too() -> None:
    times = StageTimes()
    with pytest.raises(ValueError, match="no"), times("plan"):
        raise ValueError("no")
    assert times.seconds["plan"] > 0


def test_waiting_counts_from_the_start_on_and_not_while_the_clock_is_stopped() -> None:
    waited = 5.0
    recorder = Recorder(lambda: waited)
    waited = 6.0
    recorder.start({})
    waited = 8.0
    with recorder.paused():
        waited = 80.0
        with recorder.paused():
            waited = 90.0
        assert recorder.waited_seconds == 2.0
    waited = 91.0
    assert recorder.waited_seconds == 3.0


def test_processor_time_is_kept_over_a_resume_and_not_while_the_clock_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr("adaptive_rec.live.recorder.time.process_time", lambda: now[0])
    recorder = Recorder()
    recorder.start({})
    now[0] = 7.0
    with recorder.paused():
        now[0] = 50.0
    resumed = Recorder()
    resumed.set_state(Saved(recorder.state(), "recorder"))
    resumed.start({})
    now[0] = 51.0
    assert recorder.time.processor_seconds == 3.0
    assert resumed.time.processor_seconds == 2.0 + 1.0
    old = {key: value for key, value in recorder.state().items() if key != "processor_seconds"}
    resumed.set_state(Saved(old, "recorder"))  # of a version that kept none
