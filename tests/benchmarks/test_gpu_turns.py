"""How the GPU benchmarks take turns, profile and fail, with contestants made by hand."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.common import shapes
from benchmarks.common.contestants import Ours, Where
from benchmarks.common.report import failures
from benchmarks.gpu import (
    ceilings,
    cells,
    measure,
    plan,
    timeline,
)

HERE = Where(torch.device("cpu"), "cpu")


class Contestant:
    """Trains nothing, and falls after so many steps."""

    window_steps = 1

    def __init__(self, name: str, falls_after: float = float("inf")) -> None:
        self.name, self.steps, self._falls_after = name, 0, falls_after

    def drive(self, steps: int) -> int:
        self.steps += steps
        if self.steps > self._falls_after:
            raise RuntimeError(f"{self.name} fell")
        return steps

    def settle(self) -> None: ...

    def counters(self) -> dict[str, float]:
        return {"samples": 8.0 * self.steps, "wait_seconds": 0.0}

    def facts(self) -> dict[str, Any]:
        if self.steps > self._falls_after:
            raise RuntimeError("a process that has ended tells nothing")
        return {}

    close = settle


def test_a_failed_contestant_does_not_stop_others_and_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "WARM_RATIO", 0.0)
    monkeypatch.setattr(measure, "turn_steps", lambda *_: 10)
    saved: list[dict[str, Any]] = []

    def broken() -> Any:
        raise ImportError("no such library")

    makers: dict[str, Any] = {
        "hotline": lambda: Contestant("hotline"),
        "plain": lambda: Contestant("plain", falls_after=20),
        "fbgemm": broken,
    }
    found = measure.compare(makers, HERE, measure.time.perf_counter() + 60, lambda _: None, saved.append)
    assert {name: run["turns"] for name, run in found["runs"].items()} == {"hotline": measure.ROUNDS, "plain": 1}
    assert found["failed"]["plain"].startswith("RuntimeError: plain fell")
    assert set(found["left_out"]) == {"fbgemm"}
    assert [list(one["runs"]) for one in saved[:3]] == [[], [], ["hotline"]]  # set up, warm, the first turn
    on_time = Where(torch.device("cpu"))  # a rehearsal sets everything up
    late = measure.compare({**makers, "plain": makers["hotline"]}, on_time, 0.0, lambda _: None, saved.append)
    assert not late["runs"]
    assert late["left_out"]["plain"] == "was not set up in time"
    assert not late["failed"]


def test_what_was_left_out_is_no_failure() -> None:
    def wrong(**more: Any) -> list[str]:
        result = {"failed": {}, "left_out": {"fbgemm": "no such library"}}
        cell = {"cell": asdict(plan.FIRST[4]), "result": result | more.pop("result", {}), **more}
        return failures({"a": cell})

    assert wrong() == []
    assert wrong(result={"failed": {"plain": "fell"}}) == ["a: plain"]
    assert wrong(cut_short="killed") == ["a: cut short"]


def test_one_profile_that_fails_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "source_of", lambda *_: None)
    monkeypatch.setattr(cells, "about", lambda *_: {})
    monkeypatch.setattr(cells, "maker", lambda name, *_: (lambda: name, ""))
    saved: list[dict[str, Any]] = []
    context = cells.Context(HERE, 0.0, None, "", lambda _: None, saved.append)
    cell = replace(plan.TIMELINE, contestants=("a", "b", "c"))

    def work(name: str, make: Any, until: float) -> dict[str, Any]:
        if name == "b":
            raise RuntimeError("it fell")
        return {"of": make()}

    found = cells.one_by_one(cell, context, work)
    assert found["runs"] == {"a": {"of": "a"}, "c": {"of": "c"}}
    assert set(found["failed"]) == {"b"}
    assert len(saved) == 3


def test_a_profile_waits_for_two_windows_and_for_the_trial() -> None:
    class Run(Contestant):
        runtime = None
        window_steps = 10
        decided_at = 0

        @property
        def undecided(self) -> bool:
            return self.steps < self.decided_at

    for decided_at, steps in ((0, 20), (37, 37)):
        run: Any = Run("hotline")
        run.decided_at = decided_at
        timeline.warm(run, until=0.0)
        assert run.steps == steps


def test_a_run_reports_whether_it_was_split_and_may_fill_its_budget_at_once() -> None:
    settings = (
        "run.device=cpu",
        "run.threads=1",
        "knobs.policy=hotline",
        "knobs.reclassify_every=6",
        "knobs.report_every=2",
    )
    config = shapes.configure(shapes.SHAPES["tiny"], 64, settings, None)
    source = shapes.preload(shapes.open_shape(shapes.SHAPES["tiny"], config), config, 4)
    ours = Ours("hotline", config, source, HERE, 100 << 20)
    assert ours.runtime.knobs.max_moved_bytes == ours.runtime.knobs.hot_budget_bytes == 100 << 20
    assert (ours.split(), ours.undecided) == ("whole", False)
    ours.runtime.splitting.measured = True  # as on a device
    assert (ours.split(), ours.undecided) == ("not chosen yet", True)
    timeline.warm(ours, until=0.0)
    assert ours.split().startswith("chose ")
    assert ours.steps >= 96
    ours.close()


def test_copies_both_ways_are_on_their_way_before_either_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    @contextmanager
    def queue(_: Any) -> Any:
        yield

    def stream(name: str) -> Any:
        return SimpleNamespace(wait_stream=lambda _: did.append(f"{name} waits"))

    monkeypatch.setattr(ceilings, "_STREAMS", [stream("up"), stream("down")])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream("compute"))
    monkeypatch.setattr(torch.cuda, "stream", queue)
    ceilings._at_once(lambda: did.append("up"), lambda: did.append("down"))
    assert did == ["up waits", "up", "down waits", "down", "compute waits", "compute waits"]
