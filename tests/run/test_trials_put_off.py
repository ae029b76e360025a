"""A replay of a run under `adaptive` puts trials off where the run did for want of memory, whatever memory the replay has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.paired_trial import PairedTrial
from tests.checkpoint.test_resume_run import assert_same_end
from tests.runtime.test_skipping_guard import ALWAYS, SETTINGS

STEPS = ["run.steps=60", "checkpoint.every_steps=10", "checkpoint.keep=9"]


def trained(out: Path, lost_at: int = 0, resume: bool = False, replay: Path | None = None) -> None:
    kept = str((replay or out) / "config.toml") if resume or replay else None
    config = load_config(kept, {}, [] if kept else [*SETTINGS, ALWAYS, *STEPS])
    run = TrainingRun(config, out, resume=resume, replay=None if resume else replay)
    for _ in run.events():
        if lost_at and run.runtime.step_number >= lost_at:
            return
    run.finish()


def of_guard(run: Path) -> list[tuple[int, str]]:
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [(each["step"], each["text"]) for each in found if each["kind"] == "guard"]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes that are free, as hot rows on a CPU find them, and how many of the next questions they hold for."""
    free = {"bytes": 1 << 40, "times": 0}

    def free_bytes(self: Any) -> int:
        free["times"] -= 1
        return free["bytes"] if free["times"] >= 0 else 1 << 40

    monkeypatch.setattr(HotRows, "free_bytes", free_bytes)
    return free


def test_a_trial_that_memory_put_off_is_put_off_in_the_replay_and_its_resume(tmp_path: Path, memory: dict[str, int]) -> None:
    memory.update(bytes=1000, times=1)
    trained(tmp_path / "run")
    [(step, text), *others] = of_guard(tmp_path / "run")
    assert "memory for a trial must be" in text
    assert others, "there are trials later"
    memory.update(bytes=1 << 40, times=0)
    trained(tmp_path / "replayed", replay=tmp_path / "run")
    assert_same_end(tmp_path / "run", tmp_path / "replayed")
    assert of_guard(tmp_path / "replayed") == of_guard(tmp_path / "run")
    trained(tmp_path / "lost", lost_at=15, replay=tmp_path / "run")
    assert step < 15
    trained(tmp_path / "lost", resume=True)
    assert_same_end(tmp_path / "run", tmp_path / "lost")
    plain = tmp_path / "plain"
    trained(plain)
    assert of_guard(plain) != of_guard(tmp_path / "run"), "otherwise the test shows nothing"


def test_a_trial_that_memory_ended_ends_in_the_replay(
    tmp_path: Path, memory: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = PairedTrial.train

    def short(self: PairedTrial, step: int, *args: Any) -> None:
        if step == self.began + 4 and self.began < 20:
            raise MemoryError
        train(self, step, *args)

    with monkeypatch.context() as patched:
        patched.setattr(PairedTrial, "train", short)
        trained(tmp_path / "run")
    [(_, text), *_] = of_guard(tmp_path / "run")
    assert "memory is short" in text
    trained(tmp_path / "replayed", replay=tmp_path / "run")
    assert_same_end(tmp_path / "run", tmp_path / "replayed")
    assert of_guard(tmp_path / "replayed") == of_guard(tmp_path / "run")


def test_a_replay_without_the_memory_for_a_trial_ends_by_name(tmp_path: Path, memory: dict[str, int]) -> None:
    trained(tmp_path / "run")
    memory.update(bytes=1000, times=9)
    with pytest.raises(MemoryPlanError, match=r"memory for a trial must be .* bytes, got 1,000; the replayed run had this trial"):
        trained(tmp_path / "replayed", replay=tmp_path / "run")
