"""A loop that is resumed in a fresh model equals an uninterrupted one, bit by bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from adaptive_rec.errors import AdaptiveRecError

from .cases import few_or_many_steps
from .training import CASES, RULES, Case, Loop, assert_moved, data

STEPS, BREAK = 44, 23


def only(case: str, first: int, last: int) -> Case:
    """Some of a case's batches."""
    whole = CASES[case]
    return Case(whole.make, lambda steps: list(whole.batches(last))[first:last], whole.loss, whole.lookups)


def states(loop: Loop) -> dict[str, Any]:
    return {
        "model": loop.model.state_dict(), "dense": loop.dense.state_dict(), "sparse": loop.sparse.state_dict(),
        "schedulers": [one.state_dict() for one in loop.schedulers], "runtime": loop.runtime.state_dict(),
    }  # fmt: skip


def restore(loop: Loop, saved: dict[str, Any]) -> None:
    loop.model.load_state_dict(saved["model"])
    loop.dense.load_state_dict(saved["dense"])
    loop.sparse.load_state_dict(saved["sparse"])
    for scheduler, state in zip(loop.schedulers, saved["schedulers"], strict=True):
        scheduler.load_state_dict(state)
    loop.runtime.load_state_dict(saved["runtime"])


def through_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@few_or_many_steps(
    20,
    STEPS,
    how=[
        *(("dlrm", rule, "hotline") for rule in RULES),
        ("two_tower", "sparse_adam", "hotline"),
        ("deepfm", "adagrad", "hybrid"),
        ("dlrm", "adagrad", "slipstream"),
    ],
    prefetch=[True, False],
)
def test_a_fresh_model_resumes_exactly(how: tuple[str, str, str], prefetch: bool, steps: int) -> None:
    """Under slipstream too, which skips updates: what was seen of rows' movement is part of the state."""
    (case, rule, policy), stop = how, BREAK * steps // STEPS
    options = {"policy": policy, "reclassify_every": 4}
    if policy == "slipstream":
        options |= {"target_skip_ratio": 0.8, "min_touch_ratio": 0.0, "probe_ratio": 0.5}
    common: dict[str, Any] = {"rule": rule, "options": options, "prefetch": prefetch, "scheduled": True}
    unbroken = Loop(only(case, 0, steps), **common)
    expected = unbroken.run(steps)
    first = Loop(only(case, 0, stop), **common)
    losses = first.run(stop).losses
    saved = through_file(states(first))
    torch.manual_seed(99)
    second = Loop(only(case, stop, steps), **common)
    with torch.no_grad():
        for weight in second.model.parameters():
            weight.fill_(7.0)
    restore(second, saved)
    assert second.runtime.step_number == stop
    assert second.runtime.stats().hot_rows == first.runtime.stats().hot_rows
    losses += second.run(steps).losses
    assert losses == expected.losses
    theirs, ours = unbroken.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("hot_rows", "steps", "device_bytes"):
        assert getattr(second.runtime.stats(), name) == getattr(unbroken.runtime.stats(), name), name
    if policy != "hybrid":
        assert_moved(unbroken.runtime)


def test_a_state_in_memory_is_not_touched_by_further_steps() -> None:
    loop = Loop(only("dlrm", 0, 20), "adagrad", {})
    loop.run(20)
    kept = loop.model.emb_l[0].state_dict(), loop.runtime.state_dict()
    saved = through_file(states(loop))
    expected = loop.run(20).losses
    assert torch.equal(kept[0]["weight"], saved["model"]["emb_l.0.weight"])
    saved["runtime"] = kept[1]
    fresh = Loop(only("dlrm", 0, 20), "adagrad", {})
    restore(fresh, saved)
    assert fresh.run(20).losses == expected


def test_a_state_can_be_loaded_again_into_the_same_model() -> None:
    """Hot rows of later are no longer hot, and what is loaded is what is read."""
    loop = Loop(only("dlrm", 0, 20), "adagrad", {})
    loop.run(20)
    saved = through_file(states(loop))
    expected = loop.run(20).losses
    restore(loop, saved)
    assert loop.run(20).losses == expected


@pytest.mark.parametrize("wrong", ["other rule", "other tables", "nothing"])
def test_a_state_of_something_else_is_refused(wrong: str) -> None:
    saved = Loop(only("dlrm", 0, 5), "adagrad", {})
    saved.run(5)
    state = {} if wrong == "nothing" else saved.runtime.state_dict()
    other = Loop(
        only("two_tower" if wrong == "other tables" else "dlrm", 0, 5),
        "sgd" if wrong == "other rule" else "adagrad",
        {},
    )
    before = other.model.state_dict()
    with pytest.raises(AdaptiveRecError):
        other.runtime.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in other.model.state_dict().items())
    other.run(5)


def test_without_the_runtime_s_state_rows_are_kept_and_optimizer_state_starts_fresh() -> None:
    loop = Loop(only("dlrm", 0, 20), "adagrad", {})
    loop.run(20)
    fresh = Loop(only("dlrm", 0, 20), "adagrad", {})
    fresh.model.load_state_dict(loop.model.state_dict())
    batch = next(iter(data.clicks(1, 32, seed=8)))
    with torch.no_grad():
        assert torch.equal(loop.model(batch.dense, batch.bags), fresh.model(batch.dense, batch.bags))
    assert fresh.runtime.step_number == 0
