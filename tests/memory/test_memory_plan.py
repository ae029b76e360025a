"""What a run is said to hold in memory before it is made, against what it then holds."""

from __future__ import annotations

import copy
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.metrics import quality
from adaptive_rec.embedding.device import SLOT_RECORD_BYTES
from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.memory.dense import Living, living_bytes, optimizer_bytes
from adaptive_rec.memory.disk import free_bytes, free_room
from adaptive_rec.memory.parts import RANKED_BYTES, SCORED_BYTES, WHILE_TRAINING, own_bytes, peak_bytes
from adaptive_rec.memory.plan import MemoryPart, MemoryPlan, needed_bytes
from adaptive_rec.memory.rows import COPIES, JUDGED_BYTES, TWIN_COPIES, TWIN_DENSE, TWIN_ROWS, array_bytes
from adaptive_rec.offline.forecast import rehearsal
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime import skipping_guard
from adaptive_rec.runtime.assemble import assemble, plan_run
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.paired_trial import PairedTrial, Twin
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.host_memory import UNLIMITED, available_bytes
from tests.doubles.late_streams import LateStreams

TINY = [
    "run.device=cpu", "run.threads=1", "run.steps=3", "run.batch_size=32", "data.table_rows=[600, 400, 90]",
    "data.dense_features=2", "data.synthetic.samples=4000", "model.embedding_dim=4", "model.bottom_mlp=[8]",
    "model.top_mlp=[8]", "knobs.hot_budget_bytes=9000",
]  # fmt: skip
MEDIUM = [
    "run.device=cpu", "run.threads=1", "run.steps=3", "run.batch_size=256", "data.table_rows=[200000, 50000, 3000, 40]",
    "model.table_dims=[16, 8, 16, 4]", "data.synthetic.samples=9000", "run.row_precision=bf16",
    "optimizer.embedding=lazy_adam", "optimizer.dense=Adam", "knobs.hot_budget_bytes=2MiB", "knobs.policy=adaptive",
]  # fmt: skip
PASSING = {
    "batches ahead", "a step of the dense part", "an evaluation's batch", "scores of the held-out samples", "data",
    "data being shuffled", "staging", "the process itself", "a window's end", "a checkpoint's shards", COPIES,
    *WHILE_TRAINING, TWIN_ROWS, TWIN_DENSE, TWIN_COPIES,
}  # fmt: skip
"""Parts that come and go while a run trains, or are no arrays of it."""


def config_of(*settings: str) -> Any:
    return load_config(None, {}, list(settings))


def tables_bytes(runtime: Runtime) -> int:
    store = runtime.store
    of_rows = [store.index.placement.slot_of_row, store.index.changed_R, store.index._unchanged_R]
    return sum(array.nbytes for array in [*store.cold.types.weights, *store.cold.types.state, *of_rows])


def tier_bytes(runtime: Runtime) -> int:
    device = runtime.store.hot.tier
    monitors = [part for monitor in device.monitors for part in (monitor.record_HR, monitor.touches_H)]
    return sum(part.nbytes for part in [*device.weights, *device.state, *monitors])


def records_bytes(runtime: Runtime) -> int:
    device = runtime.store.hot.tier
    return sum(part.nbytes for part in [*device.row_of_slot, *device.stale, *device.estimate, *device.movement])


def dense_bytes(runtime: Runtime) -> dict[str, int]:
    parameters = list(runtime.dense.model.parameters())
    state = [value for kept in runtime.dense.optimizer.state.values() for value in kept.values()]
    return {
        "dense parameters": sum(parameter.nbytes for parameter in parameters),
        "dense gradients": sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None),
        "dense optimizer": sum(value.nbytes for value in state if isinstance(value, torch.Tensor)),
    }


def of(plan: MemoryPlan, name: str) -> int:
    return sum(part.bytes for part in plan.parts if part.name == name)


@pytest.mark.parametrize("settings", [TINY, MEDIUM, [*TINY, "knobs.policy=hybrid"], [*TINY, "knobs.policy=xdl"]])
def test_a_run_holds_what_its_plan_says(settings: list[str]) -> None:
    plan = plan_run(config_of(*settings))
    runtime = assemble(config_of(*settings))
    list(runtime.run())
    tracker = runtime.observer.tracker
    held = {
        "tables": tables_bytes(runtime),
        "hot rows": tier_bytes(runtime),
        "records of slots": records_bytes(runtime),
        **dense_bytes(runtime),
        "sketch": tracker.counter.bytes,
        "candidates": tracker.bytes - tracker.counter.bytes,
        "trials of memories": array_bytes(runtime.observer.trials) if runtime.observer.trials else 0,
    }
    for name in (
        "tables",
        "hot rows",
        "records of slots",
        "dense parameters",
        "dense gradients",
        "dense optimizer",
        "sketch",
    ):
        assert of(plan, name) == held[name], name
    total, planned = sum(held.values()), sum(p.bytes for p in plan.parts if p.name not in PASSING)
    assert planned == pytest.approx(total, rel=0.05)
    assert {part.name for part in plan.parts} >= {name for name, size in held.items() if size}
    assert sum(t.weights_bytes + t.state_bytes + t.placement_bytes for t in plan.tables) == held["tables"]
    assert plan.needed("device") == 0


def held_by(twin: Twin) -> tuple[int, int]:
    """Return the bytes of a twin's rows, and those of its dense part between two steps."""
    dense, rows = twin.dense, [*twin.rows._copy.weights, *twin.rows._copy.state]
    tensors = [*dense.model.parameters(), *(part.grad for part in dense.parameters if part.grad is not None)]
    tensors += [value for state in dense.optimizer.state.values() for value in state.values()]
    tensors += [part for lines in dense._buffers for part in (lines.dense_SX, *lines.pooled, lines.labels_S, lines.scale_S)]
    tensors += dense.gradients()
    return sum(part.nbytes for part in rows), sum(part.nbytes for part in tensors)


@pytest.mark.parametrize("settings", [TINY, MEDIUM])
def test_the_twins_of_a_trial_hold_what_the_plan_says(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping_guard, "CHANCE_EVERY", 1)
    settings = [
        *settings, "run.steps=14", "knobs.policy=adaptive", "knobs.reclassify_every=2", "knobs.min_probe_touches=1",
        "knobs.min_touch_ratio=0", "knobs.stale_threshold=1e9", "knobs.guard_ratio=1.0", "policy.trial_steps=8",
    ]  # fmt: skip
    plan, runtime = plan_run(config_of(*settings)), assemble(config_of(*settings))
    list(runtime.run())
    assert runtime.guard is not None
    trial = runtime.guard.trial
    assert trial is not None, "the run has ended within a trial"
    held = [held_by(twin) for twin in trial.twins]
    assert [of(plan, name) for name in (TWIN_ROWS, TWIN_DENSE)] == [sum(part) for part in zip(*held, strict=True)]
    batch = runtime.state.config.run.batch_size
    assert PairedTrial.bytes_of(runtime.dense, runtime.store, True, batch) == sum(map(sum, held))
    assert of(plan_run(config_of(*settings, "knobs.guard_max_logloss_increase=0")), TWIN_ROWS) == 0


def test_where_twins_do_not_fit_a_run_fits_at_a_limit_of_0() -> None:
    settings = [*TINY, "knobs.policy=adaptive"]
    tried, never = (plan_run(config_of(*settings, *more)) for more in ([], ["knobs.guard_max_logloss_increase=0"]))
    needs = [plan.needed("host") - sum(part.bytes for part in plan.parts if part.held) for plan in (tried, never)]
    problems = [replace(plan, available_bytes={"host": needs[1]}).problems for plan in (tried, never)]
    assert [len(found) for found in problems] == [1, 0]
    assert needs[0] - needs[1] >= sum(of(tried, name) for name in (TWIN_ROWS, TWIN_DENSE, TWIN_COPIES))


OPTIMIZERS = {
    "SGD": {}, "SGD momentum": {"momentum": 0.9}, "Adagrad": {}, "Adam": {}, "Adam fused": {"fused": True},
    "Adam amsgrad": {"amsgrad": True}, "AdamW": {}, "Adamax": {}, "Adadelta": {}, "RMSprop": {}, "Rprop": {}, "NAdam": {},
    "RAdam": {}, "ASGD": {}, "Adafactor": {},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_dense_optimizer_keeps_what_was_measured(name: str, dtype: torch.dtype) -> None:
    config, model = config_of(f"optimizer.dense={name.split()[0]}"), torch.nn.Linear(30, 20, dtype=dtype)
    config.optimizer.dense_options.update(OPTIMIZERS[name])
    make = assembling.build_dense_optimizer
    measured = optimizer_bytes(config, model, make, dtype)
    optimizer = make(config, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if value is not None]
    assert measured == sum(value.nbytes for value in kept)


@pytest.mark.parametrize(("name", "few"), [("Adam", True), ("Adafactor", False)])
def test_measuring_the_dense_optimizer_takes_no_memory(monkeypatch: pytest.MonkeyPatch, name: str, few: bool) -> None:
    made: list[torch.nn.Parameter] = []
    make = assembling.build_dense_optimizer

    def noted(config: Any, model: torch.nn.Module) -> torch.optim.Optimizer:
        made.extend(model.parameters())
        return make(config, model)

    monkeypatch.setattr(assembling, "build_dense_optimizer", noted)
    assert of(plan_run(config_of(*TINY, f"optimizer.dense={name}")), "dense optimizer") > 0
    on_cpu = [one.numel() for one in made if one.device.type == "cpu"]
    assert sum(on_cpu[:2]) == 3 * 5 + 7
    assert (len(made) == 2) == few, "what is kept for a matrix and a vector shows what is kept for all"


@pytest.mark.parametrize("cold_rows", ["auto", "in_place"])
def test_on_a_device_hot_rows_and_the_dense_part_are_the_devices(cold_rows: str) -> None:
    settings = [*TINY, "knobs.policy=hotline", f"run.cold_rows={cold_rows}"]
    streams = LateStreams(1)
    runtime = assemble(config_of(*settings), streams=streams)
    policy, source = runtime.policy, runtime.source
    plan = assembling.plan_memory(
        config_of(*settings), source, policy, runtime.dense.model, assembling.build_dense_optimizer, torch.device("cpu"),
        {"host": 1 << 40, "device": 1 << 40}, first_batch=True,
    )  # fmt: skip
    list(runtime.run())
    on_device = {part.name: part.bytes for part in plan.parts if part.place == "device"}
    assert on_device["hot rows"] == tier_bytes(runtime) == runtime.store.hot.bytes
    for name, size in dense_bytes(runtime).items():
        assert on_device[name] == size
    assert 0.1 * on_device["staging"] < runtime.store.path.ring.device_bytes <= on_device["staging"]  # type: ignore[attr-defined]
    changing, planned = runtime.store.hot.moves.ring, on_device["rows that change tier"]  # type: ignore[attr-defined]
    assert 0.5 * planned < changing.device_bytes <= planned
    assert changing.pinned_bytes <= 2 * planned
    host = {part.name: part.bytes for part in plan.parts if part.place == "host"}
    assert host["rows that change tier"] == 2 * planned
    assert host["staging"] == 2 * on_device["staging"], "every slot has a pinned half, which torch takes in powers of two"
    assert host["tables"] == tables_bytes(runtime)
    assert not {"hot rows", "dense parameters"} & host.keys()


def test_a_slots_record_is_as_large_as_its_constant_says() -> None:
    runtime = assemble(config_of(*TINY))
    assert records_bytes(runtime) == SLOT_RECORD_BYTES * sum(runtime.store.hot.tier.capacities) > 0


# What comes and goes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [[], ["run.precision=float64"], ["model.interaction=dcnv2", "run.precision=bf16"]])
def test_tensors_without_memory_live_as_real_ones_do(settings: list[str]) -> None:
    # Those without memory go through torch's own layers; oneDNN's need a little less.
    config = config_of(*TINY, *settings, "run.linear=torch", "run.steps=1", "eval.batch_size=64")
    runtime = assemble(config)
    dense, space = runtime.dense, runtime.store.space
    step, evaluation = living_bytes(config, space, runtime.source.dense_features, copy.deepcopy(dense.model))
    with Living() as living:
        for _ in range(2):
            dense.begin_step()
            dense.run(zeros(dense.inputs(32)))
        parameters = sum(parameter.nbytes for parameter in dense.parameters)
        assert step == pytest.approx(living.most_bytes - parameters, abs=64)  # but for a number or two
        dense.begin_step()
        living.most_bytes = 0
        micro = zeros(dense.evaluation_inputs(64))
        dense.logits(micro.dense_SX, micro.pooled)
    assert evaluation == pytest.approx(living.most_bytes, abs=64)
    assert step > 32 * len(space.features) * 4 * 4


def zeros(micro: MicroBatch) -> MicroBatch:
    for part in (micro.dense_SX, *micro.pooled, micro.labels_S, micro.scale_S):
        part.detach().zero_()
    return micro


def test_a_checkpoint_copies_what_the_plan_says(tmp_path: Path) -> None:
    plan, runtime = plan_run(config_of(*MEDIUM)), assemble(config_of(*MEDIUM), options=RunOptions(tmp_path))
    list(runtime.run())
    list(runtime.saving.at_the_end())
    copied = sum(array.nbytes for array in runtime.parts.base.copies._memory.values())
    as_they_come = of(plan, "candidates") + of(plan, "trials of memories")
    assert of(plan, COPIES) - as_they_come < copied < of(plan, COPIES)


def test_rows_are_kept_only_where_a_run_saves_itself_while_it_trains() -> None:
    never = "checkpoint.every_seconds=0"
    for settings, saves in (([], True), ([never], False), ([never, "checkpoint.every_steps=5"], True)):
        plan = plan_run(config_of(*TINY, *settings))
        assert [of(plan, name) > 0 for name in WHILE_TRAINING] == [saves, saves]


def test_scores_take_what_their_constant_says() -> None:
    rng, samples = np.random.default_rng(0), 200_000
    labels, logits = (rng.random(samples) < 0.3).astype(np.float32), rng.standard_normal(samples).astype(np.float32)
    weights, groups = rng.random(samples).astype(np.float32), np.arange(samples)

    def peak(*more: Any) -> int:
        tracemalloc.start()
        quality(labels, logits, *more)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak() / samples + 8 == pytest.approx(SCORED_BYTES, rel=0.1)
    assert peak(weights, groups, ["gauc", "recall@20", "ndcg@20", "mrr"]) / samples + 20 == pytest.approx(RANKED_BYTES, rel=0.1)


def test_judging_rows_takes_what_its_constant_says(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(*MEDIUM, "run.steps=8", "run.row_precision=float32", "knobs.hot_budget_bytes=20MiB")
    runtime = assemble(config)
    peaks = []
    end_window = runtime.reclassifier.end_window

    def traced(*arguments: Any) -> Any:
        tracemalloc.start()
        try:
            return end_window(*arguments)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(runtime.reclassifier, "end_window", traced)
    list(runtime.run())
    assert max(peaks) / sum(runtime.store.hot.tier.capacities) < 1.25 * JUDGED_BYTES


def test_of_what_comes_and_goes_the_largest_counts() -> None:
    parts = [
        MemoryPart("a", "host", 100, ""), MemoryPart("b", "host", 30, "", moment="step"),
        MemoryPart("c", "host", 20, "", moment="evaluation"),
        MemoryPart("d", "host", 15, "", moment="evaluation"), MemoryPart("e", "device", 7, "", moment="step"),
    ]  # fmt: skip
    assert (needed_bytes(parts, "host"), needed_bytes(parts, "device")) == (135, 7)


def test_the_process_is_counted_as_it_is() -> None:
    before = own_bytes()
    plan = plan_run(config_of(*TINY))
    assert 0.9 * before < of(plan, "the process itself") <= own_bytes() <= peak_bytes()
    assert plan.on_another_machine().free("host") < plan.free("host"), "elsewhere it is not in memory yet"


# What does not fit ---------------------------------------------------------------------------------------------------


def plan_with(available: int, *parts: MemoryPart) -> MemoryPlan:
    return MemoryPlan("cpu", "hybrid", [], [], list(parts), {"host": available})


def test_what_fits_to_the_byte_fits() -> None:
    parts = MemoryPart("tables", "host", 100, "a"), MemoryPart("data", "host", 50, "b", held=True)
    assert plan_with(100, *parts).problems == []
    (problem,) = plan_with(99, *parts).problems
    assert "host memory" in problem


def test_what_does_not_fit_names_the_keys_of_its_largest_parts() -> None:
    gib = 1 << 30
    parts = (
        MemoryPart("data", "host", 2 * gib, "b"),
        MemoryPart("tables", "host", 6 * gib, "a"),
        MemoryPart("tiny", "host", 5, "c"),
    )
    (problem,) = plan_with(4 * gib, *parts).problems
    assert problem == "the run will need 8.00 GiB of host memory, 4.00 GiB are available; lower a, then b"
    (problem,) = plan_with(100 << 20, MemoryPart("torch", "host", 1 * gib, ""), *parts).problems
    assert problem == "the run will need 9.00 GiB of host memory, 100 MiB are available; no key lowers 1.00 GiB of that"


def test_a_run_that_does_not_fit_is_refused_before_its_tables_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "available_bytes", lambda: 20_000)

    def no_store(*_: Any) -> None:
        raise AssertionError("tables were made")

    monkeypatch.setattr(assembling, "build_store", no_store)
    with pytest.raises(MemoryPlanError, match=r"1\.1 MiB of host memory, 20 KiB are available; lower knobs\.hot_budget_bytes"):
        assemble(config_of(*TINY))


# The command ---------------------------------------------------------------------------------------------------------


def dry_run(*arguments: str) -> int:
    settings = [part for setting in TINY for part in ("--set", setting)]
    return main(["train", "--dry-run", *settings, *arguments])


def test_the_plan_is_printed_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "step_seconds", lambda *_: 0.01)  # of small tables
    monkeypatch.setattr(assembling, "build_store", lambda *_, **__: pytest.fail("tables were made"))
    assert dry_run() == 0
    printed = capsys.readouterr().out
    for word in (
        "C1",
        "3 tables, ",
        "hot rows",
        "the process itself",
        "about 0 s: ",
        "needed",
        "fits",
    ):
        assert word in printed
    assert not list(tmp_path.iterdir())


def test_as_json_it_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    assert told["problems"] == []
    assert [table["name"] for table in told["tables"]] == ["C1", "C2", "C3"]
    assert told["needed_bytes"]["host"] == needed_bytes([MemoryPart(**part) for part in told["parts"]], "host")


def test_what_does_not_fit_is_said_and_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(assembling, "available_bytes", lambda: 200_000)
    assert dry_run() == 1
    printed = capsys.readouterr().out
    assert "problem" in printed
    assert "are available; lower eval." in printed


# How much there is ---------------------------------------------------------------------------------------------------


def system_with(folder: Path, **files: str) -> tuple[Path, Path]:
    for name, content in {"meminfo": "MemTotal: 9 kB\nMemAvailable:  4 kB\n", **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for old, new in (("max", "memory.max"), ("current", "memory.current"), ("stat", "memory.stat")):
        if (folder / old).exists():
            (folder / old).rename(folder / new)
    return folder, folder


def test_memory_is_what_the_machine_and_the_container_have_left(tmp_path: Path) -> None:
    assert available_bytes(*system_with(tmp_path / "none")) == 4096
    assert available_bytes(*system_with(tmp_path / "open", max="max\n", current="10\n", stat="x 1\n")) == 4096
    limited = system_with(tmp_path / "tight", max="3000\n", current="2500\n", stat="anon 9\ninactive_file 400\n")
    assert available_bytes(*limited) == 900
    assert available_bytes(tmp_path / "gone", tmp_path / "gone") == UNLIMITED
    over = system_with(tmp_path / "over", max="3000\n", current="3500\n", stat="anon 9\n")
    assert available_bytes(*over) == 0


def test_mapped_arrays_are_not_held(tmp_path: Path) -> None:
    class Source:
        def __init__(self) -> None:
            self.mapped = np.memmap(tmp_path / "x", dtype=np.uint8, mode="w+", shape=(100,))
            self.own = np.zeros(7, dtype=np.uint8)

    assert array_bytes(Source()) == 7


def test_a_plan_counts_no_files_of_the_working_directory_as_room_for_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the folder that run.disk names are its own; the folder of a run without one is not there yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named").mkdir()
    for name in ("large", "named/large"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # sparse: nothing is written
    before = free_bytes(tmp_path)
    assert free_room(None) <= before + (1 << 30)
    assert free_room(tmp_path / "named") >= before - (1 << 30) + (1 << 40)
