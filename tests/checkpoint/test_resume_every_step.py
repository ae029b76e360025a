"""A run that is killed and resumed at any step ends as the uninterrupted one, to the last bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint import files as disk
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.path.row_path import BatchPath
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.popular_samples import PopularSamples
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.paired_trial import Twin
from adaptive_rec.runtime.phases import Phases
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.stream import Stretch
from adaptive_rec.tracking.horizon import MemoryTrials
from adaptive_rec.tracking.popularity import PopularityTracker
from tests.doubles.late_streams import LateStreams
from tests.matrix import always, grid, only

TINY = [
    "run.device=cpu", "run.threads=1", "run.batch_size=32", "run.steps=12", "run.split=always",
    "data.table_rows=[60, 40, 9, 30]", "data.dense_features=2", "data.synthetic.samples=4000", "data.synthetic.test_samples=64",
    "data.synthetic.head_ratio=0.1", "data.synthetic.popular_ratio=0.8", "model.embedding_dim=4", "model.bottom_mlp=[8]",
    "model.table_dims=[4, 2, 4, 4]", "model.top_mlp=[8]", "optimizer.embedding=rowwise_adagrad", "optimizer.dense=Adam",
    "optimizer.warmup_steps=4", "knobs.reclassify_every=3", "knobs.report_every=1", "knobs.sample_ratio=1.0",
    "knobs.hysteresis=0.0", "knobs.probe_ratio=0.4", "knobs.min_probe_touches=1", "knobs.stale_metric=max_abs",
    "knobs.stale_threshold=0.05", "knobs.alpha=0.3", "knobs.guard_ratio=1.0", "knobs.guard_max_logloss_increase=10.0",
    "policy.trial_steps=8",
    "knobs.keep_probability=0.3", "knobs.hot_budget_bytes=4000", "policy.small_table_bytes=200", "policy.sampling_ratio=0.5",
    "policy.search_sample_ratio=1.0", "policy.drop_tolerance_ratio=0.4", "policy.window_ratio=0.2",
    "policy.stale_lookups_ratio=0.5",
]  # fmt: skip

ARRANGED = ["run.steps=0", "data.epochs=2", "data.synthetic.samples=200"]
"""Two epochs of seven batches, the last of each smaller."""

GUARDED = ["knobs.reclassify_every=2", "knobs.probe_ratio=0.25", "run.steps=24"]
"""A trial lasts from step 4 to 16; then the guard lets skip."""

RUNS = {
    "hybrid": [],
    "xdl": [],
    "hotline": [],
    "hotline few moves": ["knobs.sample_ratio=0.5", "knobs.max_moved_bytes=200"],
    "slipstream": ["knobs.action=freeze"],
    "slipstream drop": ["knobs.action=drop"],
    "slipstream subsample": ["knobs.action=subsample"],
    "slipstream search": ["knobs.stale_threshold=search", "knobs.target_skip_ratio=0.5", "knobs.action=drop"],
    "random_skip": ["knobs.action=drop"],
    "adaptive": GUARDED,
    "adaptive freeze": [*GUARDED, "knobs.action=freeze"],
    "device_only": [],
    "cdlrm": [],
    "oracle": [],
    "fae": ARRANGED,
    "fae_released": ARRANGED,
    "slipstream_released": ARRANGED,
    "hotline bf16": ["run.row_precision=bf16", "optimizer.embedding=lazy_adam"],
    "slipstream float64": ["run.precision=float64", "optimizer.embedding=adagrad", "optimizer.dense=SGD"],
}
"""Policies with what is changed for them."""

SKIPPING = {name for name in RUNS if name.startswith(("slipstream", "random_skip", "adaptive"))}


@pytest.fixture(autouse=True)
def _disk_that_need_not_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.DiskOutput, "sync", lambda self: None)
    monkeypatch.setattr(disk.Disk, "sync_folder", lambda self, path: None)


def build(name: str, *changes: str, streams: Any = None, folder: Path | None = None) -> Runtime:
    settings = [*TINY, f"knobs.policy={name.split()[0]}", *RUNS[name], *changes]
    return assemble(load_config(None, {}, settings), streams=streams, options=RunOptions(folder))


# All that a run remembers ------------------------------------------------------------------------------------------------

TIMES = {"_times", "times", "recorder"}
"""Clocks, which differ in a resumed run."""

OUTSIDE = {"config", "source", "device", "torch_device", "space", "rule", "rules", "mailbox", "control", "publisher", "reports",
           "pipeline", "notices", "checkpoints", "parts", "saving", "evaluator", "changed_R", "_unchanged_R",
           "_taken", "_overrides", "phase", "streams", "options",
           "_source", "_publisher", "_evaluator", "_mailbox", "_journal", "_checkpoints", "_being_written",
           "seeds", "_hashes"}  # fmt: skip
"""Made from the configuration alone, or only for display."""

WITHIN_A_STEP = {
    "step_loss", "losses_S", "_buffers", "_taken", "_gradients", "_step_losses", "_forward", "pool_shapes",
    "parameters", "_loss_B", "_last_step",
    "_decided", "_outcome", "ended", "_placed", "_trained", "_tails", "_due", "window_due", "measured",
}  # fmt: skip
"""Filled again in each step or phase, or used up when a resumed run has found its place."""

THREADS = {"_thread", "_behind", "_crew", "threads"}


def image(thing: Any, seen: dict[int, Any] | None = None) -> Any:
    """Copy all that can be reached from a component, in plain values; what can be reached twice is copied once."""
    seen = {} if seen is None else seen
    if isinstance(thing, np.ndarray):
        return thing.copy()
    if isinstance(thing, torch.Tensor):
        return image(thing.detach().view(torch.int16).numpy() if thing.element_size() == 2 else thing.detach().numpy())
    if thing is None or isinstance(thing, (bool, int, float, str, np.generic)):
        return thing
    if isinstance(thing, Mapping):
        return {str(key): image(value, seen) for key, value in thing.items()}
    if isinstance(thing, (list, tuple, deque)):
        return [image(value, seen) for value in thing]
    if isinstance(thing, Knobs):
        return thing.model_dump()
    if id(thing) in seen:
        return "seen before"
    seen[id(thing)] = thing
    if isinstance(thing, torch.nn.Module):
        return image(thing.state_dict(), seen)
    if isinstance(thing, torch.optim.Optimizer):  # rates are set in each step
        return image(thing.state_dict()["state"], seen)
    if isinstance(thing, EmbeddingStore):
        parts = {"index": image(thing.index, seen), "drawn": image(thing.contents._drawn, seen)}
        tables = [[part.copy() for part in thing.contents.export(index)] for index in range(len(thing.space.tables))]
        return {**parts, "tables": tables, "device": image(thing.hot.tier, seen)}
    if isinstance(thing, Twin):  # nobody reads the sum of its losses
        dense = {"model": thing.dense.model, "optimizer": thing.dense.optimizer}
        return image({**kept(thing), "dense": dense}, seen)
    if isinstance(thing, DeviceTier):  # what free slots hold means nothing
        hot = [rows >= 0 for rows in thing.row_of_slot]
        own = {name: image(value, seen) for name, value in kept(thing).items() if name not in ("weights", "state")}
        return own | {
            name: [array[hot_H] for array, hot_H in zip(image(getattr(thing, name)), hot, strict=True)]
            for name in ("weights", "state")
        }
    if isinstance(thing, Observer):
        thing.settle()  # lookups are counted in the background
    if isinstance(thing, PopularSamples):
        return list(thing.arrays())
    if isinstance(thing, Phases):
        unreported = [
            np.concatenate([[], *(getattr(moved, way) for moved in thing._unreported)]) for way in ("promote", "demote")
        ]
        return {name: image(value, seen) for name, value in kept(thing).items()} | {"_unreported": unreported}
    if isinstance(thing, PopularityTracker):
        own = {name: image(value, seen) for name, value in kept(thing).items()}
        return own | {"_met": thing._met[: thing._rows_met].copy()}
    if isinstance(thing, MemoryTrials):  # see _new: lists that are taken in as one
        own, known = {name: image(value, seen) for name, value in kept(thing).items()}, slice(thing.held_rows)
        held = {name: image(getattr(thing, name)[..., known]) for name in ("_rows", "_now", "_counts", "_hot")}
        return own | held | {"_new": [np.concatenate([[], *parts]) for parts in zip(*thing._new, strict=True)]}
    if isinstance(thing, Callable | Future | ClassifiedBatch | BatchPath):  # type: ignore[arg-type]
        return type(thing).__name__  # a path has the parts of the store, and rows only within a step
    return {name: image(value, seen) for name, value in kept(thing).items()}


def kept(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object that a resumed run must have again."""
    left_out = TIMES | OUTSIDE | WITHIN_A_STEP | THREADS
    if isinstance(thing, Stretch):
        left_out = left_out - {"options"}
    slots = {name: getattr(thing, name) for name in getattr(thing, "__slots__", ())}
    return {name: value for name, value in (getattr(thing, "__dict__", {}) | slots).items() if name not in left_out}


def differences(one: Any, other: Any, path: str = "run") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            if name in one and name in other:
                yield from differences(one[name], other[name], f"{path}.{name}")
            else:
                yield f"{path}.{name} is in one of them"
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, f"{path}[{number}]")
    elif isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"):
            yield f"{path}: {one} and {other}"
    elif one != other and not (one != one and other != other):
        yield f"{path}: {one} and {other}"


@dataclass
class Straight:
    """A run that was saved at every step and never lost."""

    folder: Path
    images: dict[int, Any] = field(default_factory=dict)
    """Images of the run after each step's boundary; the last one under -1."""
    saved: dict[int, Path] = field(default_factory=dict)
    quality: Any = None
    runtime: Runtime | None = None


def follow(runtime: Runtime, images: dict[int, Any]) -> None:
    for event in runtime.run():
        if isinstance(event, Snapshot) and event.step == runtime.step_number:
            images[event.step] = image(runtime)
    images[-1] = image(runtime)


def straight(name: str, folder: Path, *changes: str) -> Straight:
    runtime = build(name, "checkpoint.every_steps=1", "checkpoint.keep=99", *changes, folder=folder)
    made = Straight(folder, runtime=runtime)
    follow(runtime, made.images)
    made.saved = {int(path.name[5:14]): path for path in folder.iterdir()}
    evaluation = runtime.evaluate()
    assert evaluation
    made.quality = evaluation.quality
    return made


def assert_goes_on(run: Straight, name: str, step: int, *changes: str) -> None:
    again = build(name, *changes)
    checkpoint.load(again.parts, run.saved[step])
    images: dict[int, Any] = {}
    follow(again, images)
    wrong = [text for at in images for text in differences(run.images[at], images[at], f"at step {at}")]
    assert not wrong, "\n".join([f"lost at step {step}:", *wrong[:20]])
    assert set(images) == {-1, *(at for at in run.images if at >= step)}
    evaluation = again.evaluate()
    assert evaluation
    assert evaluation.quality == run.quality


LOST_AT = {
    "hotline few moves": (2, 6), "slipstream search": (3, 7), "adaptive freeze": (14,), "cdlrm": (5, 10), "oracle": (8,),
    "fae": (4, 9), "slipstream_released": (11,), "hotline bf16": (1,),
}  # fmt: skip
"""The steps at which some runs are lost in `make test`: of each kind one, and each step within a window or at its end once. In
`make check` all runs are lost at each of their steps; ``test_cells`` resumes the other policies."""


@pytest.mark.parametrize(
    ("name", "lost_at"),
    [
        *(pytest.param(name, steps, id=name) for name, steps in LOST_AT.items()),
        *(pytest.param(name, (), id=f"{name}, at any step", marks=pytest.mark.slow) for name in RUNS),
    ],
)
def test_a_run_killed_at_any_step_ends_as_the_uninterrupted_one(
    name: str, lost_at: tuple[int, ...], tmp_path: Path
) -> None:
    run = straight(name, tmp_path)
    assert run.runtime
    totals = run.runtime.reports.totals()
    skipped = totals["samples_seen"] - totals["samples_trained"] + totals["row_updates_skipped"]
    assert (skipped > 0) == (name in SKIPPING), "the run must show what its policy is about"
    steps = sorted(run.saved)
    assert len(steps) >= 11
    for step in lost_at or steps:
        assert_goes_on(run, name, step)


@grid(always, only("slipstream search"), name=["slipstream search", "adaptive"])
def test_saving_changes_nothing(name: str, tmp_path: Path) -> None:
    run = straight(name, tmp_path)
    plain = build(name)
    images: dict[int, Any] = {}
    follow(plain, images)
    assert not [text for at in images for text in differences(run.images[at], images[at])]


def test_the_comparison_of_runs_sees_each_single_change(tmp_path: Path) -> None:
    """Each of these, changed alone, is seen; so the test above would see it if a checkpoint left it out."""
    runtime = build("adaptive")
    list(runtime.run())
    before = image(runtime)

    def seen(change: Callable[[], object]) -> list[str]:
        change()
        return list(differences(before, image(runtime)))

    sketch: Any = runtime.observer.tracker.counter
    assert seen(lambda: setattr(sketch, "decays", sketch.decays + 1))
    sketch.decays -= 1
    assert not seen(lambda: None)
    policy: Any = runtime.policy
    policy._level._mean = (0.5, 0.1)
    assert any("_level._mean" in text for text in seen(lambda: None))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_60_steps_killed_at_any_step_ends_as_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    longer = ["data.synthetic.samples=1200"] if RUNS[name] == ARRANGED else ["run.steps=60"]
    longer.append("knobs.reclassify_every=5")
    run = straight(name, tmp_path, *longer)
    assert len(run.saved) >= 59
    for step in sorted(run.saved):
        assert_goes_on(run, name, step, *longer)


@grid(always, only("slipstream"), name=["hotline", "slipstream", "fae_released"])
def test_a_device_run_resumes_too(name: str, tmp_path: Path) -> None:
    """On a device that is as late as it may be: rows, placement and popularity as in the straight run."""
    first = build(name, "run.split=never", streams=LateStreams(seed=3), folder=tmp_path)
    paths = []
    for event in first.run():
        if isinstance(event, Snapshot) and event.step == 5:
            paths.append(checkpoint.save(first.parts, tmp_path))
    again = build(name, "run.split=never", streams=LateStreams(seed=4))
    checkpoint.load(again.parts, paths[0])
    list(again.run())
    np.testing.assert_array_equal(again.store.index.placement.slot_of_row, first.store.index.placement.slot_of_row)
    for table in range(4):
        for mine, theirs in zip(again.store.contents.export(table), first.store.contents.export(table), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
