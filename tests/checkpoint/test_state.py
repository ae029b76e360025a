"""A nested state in files, and the checks when it is restored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint import saved_state
from adaptive_rec.checkpoint.flatten import flatten, unflatten
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.saved import ANY, Saved, parts_by_number

STATE = {
    "step": 7,
    "loss": math.inf,
    "none": None,
    "list": [1, "a"],
    "part": {"rows": np.arange(3), "empty": {}, "low": -math.inf, "tiny": 5e-324},
    "pools": parts_by_number([{"a": np.zeros((2, 3), np.float32)}, {"a": np.ones((0, 3), np.float32)}]),
}


def test_a_state_is_restored_exactly() -> None:
    values, arrays = flatten(STATE)
    assert sorted(arrays) == ["part/rows", "pools/0/a", "pools/1/a"]
    back = unflatten(json.loads(json.dumps(values, allow_nan=False)), arrays)
    assert back["pools"]["1"]["a"].shape == (0, 3)
    assert {**back, "part": None, "pools": None} == {**STATE, "part": None, "pools": None}
    part: Any = STATE["part"]
    assert {**back["part"], "rows": None} == {**part, "rows": None}
    assert math.isnan(unflatten(flatten({"x": math.nan})[0], {})["x"])


@pytest.mark.parametrize(
    ("values", "arrays", "message"),
    [
        ({}, {"part/rows": np.zeros(1)}, "part/rows of a state must be in an object"),
        ({"part": 3}, {"part/rows": np.zeros(1)}, "part is none"),
        ({"rows": 3}, {"rows": np.zeros(1)}, "must not also be a value of state.json"),
        ({"x": "number:many"}, {}, "x of a state must be a number"),
    ],
)
def test_values_and_arrays_that_do_not_belong_together_are_errors(values: Any, arrays: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        unflatten(values, arrays)


WRONG: dict[str, tuple[Callable[[Saved], object], str]] = {
    "missing": (lambda saved: saved.integer("gone"), "state must hold gone, which is missing"),
    "a flag for a number": (lambda saved: saved.integer("flag"), "state/flag must be a whole number, got True"),
    "a fraction": (lambda saved: saved.integer("half"), "must be a whole number, got 0.5"),
    "a text": (lambda saved: saved.number("text"), "must be a number, got seven"),
    "no flag": (lambda saved: saved.flag("step"), "must be true or false, got 3"),
    "no text": (lambda saved: saved.text("step"), "must be a text, got 3"),
    "another type": (lambda saved: saved.array("rows", np.int32, 4), r"must be of \(4\) int32, got \(4,\) int64"),
    "another length": (lambda saved: saved.array("rows", np.int64, 5), r"must be of \(5\) int64, got \(4,\)"),
    "another shape": (lambda saved: saved.array("rows", np.int64, ANY, 4), r"must be of \(any, 4\) int64, got"),
    "no array": (lambda saved: saved.array("step", np.int64, 5), "must be an array, got 3"),
    "no part": (lambda saved: saved.part("step"), "must be a part with names, got 3"),
    "other parts": (lambda saved: saved.parts("parts", 2), "state/parts must be 2 parts, got 1"),
    "no numbers": (lambda saved: saved.numbers("words"), "state/words/a must be a number, got b"),
    "left over": (lambda saved: saved.finish(), "state must hold nothing unknown, got step"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_value_is_checked_by_name(name: str) -> None:
    ask, message = WRONG[name]
    found = {
        "step": 3, "flag": True, "half": 0.5, "text": "seven", "rows": np.zeros(4, np.int64), "words": {"a": "b"},
        "parts": {"0": {}},
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=message):
        ask(Saved(found))


def test_unknown_values_within_a_part_are_errors() -> None:
    saved = Saved({"part": {"known": 1, "unknown": 2}})
    assert saved.part("part").integer("known") == 1
    with pytest.raises(CheckpointError, match="state/part must hold nothing unknown, got unknown"):
        saved.finish()


# States of a run that somebody changed ---------------------------------------------------------------------------------

SMALL = [
    "run.device=cpu", "run.threads=1", "run.steps=23", "knobs.policy=adaptive", "knobs.reclassify_every=3",
    "knobs.stale_metric=signal_to_noise",
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime = build()
    list(runtime.run())
    return checkpoint.save(runtime.parts, tmp_path_factory.mktemp("run") / "checkpoints")


def build() -> Runtime:
    return assemble(load_config("tiny", {}, SMALL))


def leaves(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(values, dict) and values:
        return [found for name, value in values.items() for found in leaves(value, (*path, name))]
    return [path]


FREE = {
    ("recorder",), ("times",), ("position",), ("keys",), ("keys_reported",), ("disk_reported",), ("followed",), ("columns",),
    ("progressive",), ("store", "disk"), ("watchdog", "owed"), ("observer", "tracker", "cold_met"),
    ("observer", "tracker", "steps_counted"), ("owed", "best"), ("trend", "waiting"), ("trend", "best", "value"),
}  # fmt: skip
"""Names of clocks and counters are whatever they are; a reader may stand anywhere; older versions had no raw ids, no disk, no
columns, followed no data or kept no scores of it, counted no steps, forgot what a rule was to do, and waited for no better
evaluation."""


def test_no_value_may_be_missing_doubled_or_of_another_kind(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads((saved / "state.json").read_text())
    paths = [path for path in leaves(found["state"]) if not {path[:1], path[:2], path[:3]} & FREE]
    assert len(paths) > 80
    read: dict[str, Any] = {}
    monkeypatch.setattr(saved_state, "read_json_file", lambda *_: read)
    kept = build()  # set again and again: what is refused is refused before it is used
    for path in paths[:: max(1, len(paths) // 40)]:
        for change in ("missing", "of another kind"):
            read = json.loads(json.dumps(found))
            place = read["state"]
            for name in path[:-1]:
                place = place[name]
            if change == "missing":
                del place[path[-1]]
            else:
                place[path[-1]] = [1]
            if "judged_at" in path or (path[:1] == ("knobs",) and change == "missing"):
                continue  # any names are good; a knob that is missing is as by default
            fresh = build() if kept.store.hot.tier.hot_rows else kept
            try:
                checkpoint.load(fresh.parts, saved, verified=True)
            except CheckpointError:
                kept = fresh
            else:
                pytest.fail(f"{'/'.join(path)} {change} is accepted")


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("store/pools/0/row_of_slot", lambda array: np.full_like(array, 3), "must hold distinct rows"),
        (
            "store/pools/0/row_of_slot",
            lambda array: np.where(array >= 0, array + 10**6, array),
            "must hold distinct rows",
        ),
        ("store/pools/0/stale", lambda array: array[:-1], "stale must be of"),
        ("store/pools/0/monitor/record_HR", lambda array: array.astype(np.float64), "record_HR must be of"),
        ("observer/tracker/counter/counters", lambda array: array[:, :-1], "a sketch must have"),
        ("observer/sample_rows", lambda array: np.append(array, 0), "sample_rows must be of"),
        ("observer/trials/counts_MK", lambda array: array[:-1], "counts_MK must be of"),
        ("tally/lookups_T", lambda array: array.astype(np.int32), "lookups_T must be of"),
    ],
)
def test_arrays_that_do_not_fit_are_errors(
    saved: Path, monkeypatch: pytest.MonkeyPatch, path: str, change: Any, message: str
) -> None:
    read_all = saved_state.all_arrays

    def changed(file: Any) -> dict[str, Any]:
        arrays = read_all(file)
        return {name: change(array) if name == path else array for name, array in arrays.items()}

    monkeypatch.setattr(saved_state, "all_arrays", changed)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(build().parts, saved, verified=True)
