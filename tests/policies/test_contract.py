"""The contract that every policy keeps, ours and users', on every device, with every action. A new policy joins by name below."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adaptive_rec
from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.steps import TrainingSteps

USERS = "example_policy:FirstRows"
USERS_ORDER = "example_policy:EvenThenOdd"
POLICIES = (*BUILT_IN, USERS, USERS_ORDER)
SKIPPING = ("slipstream", "random_skip", "adaptive")
RELEASED = ("slipstream_released",)
"""Policies that skip as their authors' code does, whatever `knobs.action` is: see test_arranging.py."""
ONLY_ARRANGING = ("cdlrm", "fae", "fae_released", "oracle", "slipstream_released", "xdl", USERS_ORDER)
ACTIONS = ("freeze", "drop", "subsample")
GUARDED = {"adaptive": ("knobs.reclassify_every=4",)}
"""What lets a policy with a guard skip within 48 steps."""
World = tuple[list[Batch], tuple[TableSpec, ...], tuple[FeatureSpec, ...]]
KNOWN_OVER_BUDGET = "device_only"
"""The policy that ignores the hot budget, as documented."""


def cases() -> list[Any]:
    """List the cases; only policies that skip run under several actions. Each runs on one of the devices without a GPU, such that
    policies that skip have each with every way of splitting, and on the other one in `make check-long`."""
    found = []
    for policy in POLICIES:
        for number, action in enumerate(ACTIONS if policy in SKIPPING else ACTIONS[:1]):
            for split in ("never",) if policy in ONLY_ARRANGING else ("always", "never"):  # those run batches whole
                chosen = ("direct", "late")[(POLICIES.index(policy) + number + (split == "never")) % 2]
                for device in ("direct", "late", "cuda"):
                    name = f"{policy}-{action}-{split}-{device}"
                    marks = {"cuda": [pytest.mark.gpu], chosen: []}.get(device, [pytest.mark.slow])
                    found.append(pytest.param(policy, action, split, device, id=name, marks=marks))
    return found


def over_devices(others: list[Any]) -> list[Any]:
    """Combine policies, other values and devices. Policies take the devices without a GPU in turn, and the other one is slow. Of
    those that only arrange the stream, which does not depend on the device, it is left out, and every second case is slow."""
    found = []
    for number, (policy, other) in enumerate(itertools.product(POLICIES, others)):
        lean = policy in ONLY_ARRANGING
        for device in ("direct", "late", "cuda"):
            if not lean or device in (("direct", "late")[number // 2 % 2], "cuda"):
                slow = number % 2 if lean else device == ("late", "direct")[(number + number // len(others)) % 2]
                marks = [pytest.mark.gpu] * (device == "cuda") + [pytest.mark.slow] * slow
                found.append(pytest.param(policy, other, device, id=f"{policy}-{other}-{device}", marks=marks))
    return found


def assert_contract(seen: Any) -> None:
    runtime, totals = seen.runtime, seen.totals
    assert len(seen.steps) == runtime.step_number == totals["steps"] > 0
    assert np.isfinite(seen.losses).all()
    assert all(np.isfinite(table).all() for table in seen.tables())

    trained = 0
    for step in seen.steps:
        samples = np.concatenate([np.empty(0, dtype=np.int64), *step.plan.micro_batches])
        assert len(np.unique(samples)) == len(samples), "no sample is trained twice"
        assert all(len(part) for part in step.plan.micro_batches), "no empty micro-batch"
        trained += len(samples)
        skipped_B = np.isin(np.arange(step.batch.size), samples, invert=True)
        assert np.array(step.popular)[skipped_B].all(), "only popular samples are ever skipped"
        assert step.plan.frozen_U is None or step.hot_U[step.plan.frozen_U].all(), "only hot rows are ever frozen"
        if step.probe:
            assert len(samples) == step.batch.size
            assert step.plan.frozen_U is None
            assert step.plan.weight_B is None
        if runtime.config.run.split == "always" and len(step.plan.micro_batches) == 2:
            popular = np.array(step.popular)
            assert popular[step.plan.micro_batches[0]].all()
            assert not popular[step.plan.micro_batches[1]].any()
        assert all(hot <= slots for hot, slots in zip(step.hot_rows, step.capacities, strict=True))
        assert step.device_bytes <= step.budget_bytes or runtime.policy.name == KNOWN_OVER_BUDGET

    left_out = 0 if runtime.policy.exact else sum(step.batch.skipped_samples for step in seen.steps)
    assert totals["samples_seen"] >= sum(step.batch.size for step in seen.steps) + left_out
    assert totals["samples_seen"] == seen.samples
    assert totals["samples_trained"] == trained
    assert totals["lookups"] == sum(step.batch.lookups for step in seen.steps)
    assert totals["samples_popular"] == sum(map(sum, (step.popular for step in seen.steps)))
    assert totals["lookups_hot"] <= totals["lookups"]
    assert totals["hot_row_updates"] <= totals["row_updates"], "a row that was skipped was not updated"
    skipped = totals["samples_seen"] - totals["samples_trained"]
    if runtime.policy.exact:
        assert skipped == totals["row_updates_skipped"] == 0
    if runtime.knobs.action == "freeze" and runtime.policy.name not in RELEASED:
        assert skipped == 0


def arranged(seen: Any) -> World | None:
    """Return the batches of a run in the order they were trained, where its policy reorders them."""
    if not seen.runtime.policy.reorders_stream:
        return None
    space = seen.runtime.store.space
    return [step.batch for step in seen.steps], space.tables, space.features


def assert_equal_tables(seen: Any, plain: Any) -> None:
    np.testing.assert_allclose(seen.losses, plain.losses, rtol=1e-12)
    for mine, theirs in zip(seen.tables(), plain.tables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("policy", "action", "split", "device"), cases())
def test_every_policy_keeps_the_contract(
    watch: Any, plain: Any, policy: str, action: str, split: str, device: str
) -> None:
    changes = (f"knobs.action={action}", "knobs.alpha=0.5", f"run.split={split}", *GUARDED.get(policy, ()))
    seen = watch(policy, *changes, device=device)

    assert_contract(seen)
    assert (seen.totals["samples_popular"] > 0) == (policy not in ("hybrid", "xdl"))
    if seen.runtime.policy.exact:
        assert_equal_tables(seen, plain(arranged(seen)))
    else:
        skipped = seen.totals["row_updates_skipped"] + seen.totals["samples_seen"] - seen.totals["samples_trained"]
        assert skipped > 0, "this run would not notice a policy that may skip and never does"
        assert any(step.probe for step in seen.steps)
        assert not all(step.probe for step in seen.steps)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("policy", SKIPPING)
def test_without_a_share_to_skip_results_equal_plain_steps(watch: Any, plain: Any, policy: str, action: str) -> None:
    seen = watch(policy, f"knobs.action={action}", "knobs.target_skip_ratio=0.0")
    assert_contract(seen)
    assert_equal_tables(seen, plain())


# Odd worlds ----------------------------------------------------------------------------------------------------------


def world(
    shapes: list[tuple[int, int]], readers: list[tuple[int, str]], longest_bag: int = 1, batches: int = 20
) -> World:
    """Make batches of skewed ids, the last one smaller. Bags hold one id, or none up to `longest_bag`."""
    random = np.random.default_rng(9)
    tables = tuple(TableSpec(f"T{i}", rows, dim) for i, (rows, dim) in enumerate(shapes))
    features = tuple(FeatureSpec(f"F{i}", table, pooling) for i, (table, pooling) in enumerate(readers))  # type: ignore[arg-type]
    made = []
    for number in range(batches):
        size = 16 if number + 1 < batches else 3
        bags = size * len(features)
        lengths = np.ones(bags, np.int64) if longest_bag == 1 else random.integers(0, longest_bag + 1, bags)
        limits = np.repeat([tables[f.table].rows for _ in range(size) for f in features], lengths)
        ids = (random.random(len(limits)) ** 3 * limits).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        labels = (random.random(size) < 0.4).astype(np.float32)
        made.append(Batch(random.normal(size=(size, 2)).astype(np.float32), ids, offsets, labels))
    return made, tables, features


def all_rows_once() -> World:
    """Make batches in which no row occurs twice, so that no row becomes popular in time."""
    dense, labels = np.zeros((16, 2), np.float32), np.ones(16, np.float32)
    batches = [Batch.one_hot(dense, ids_B[:, None], labels) for ids_B in np.arange(320).reshape(20, 16)]
    return batches, (TableSpec("T", 320, 4),), (FeatureSpec("F", 0),)


def nothing_looked_up() -> World:
    """Make some batches of empty bags only: all their samples are popular, as they look up no cold row."""
    batches, tables, features = world([(20, 4)], [(0, "mean")])
    empty = [Batch(b.dense_BX, b.ids_N[:0], np.zeros(b.size + 1, np.int64), b.labels_B) for b in batches]
    return [b if k % 3 else e for k, (b, e) in enumerate(zip(batches, empty, strict=True))], tables, features


WORLDS = {
    "bags with empty ones and mixed dims": world(
        [(50, 4), (30, 2), (20, 4), (5, 3)],
        [(0, "sum"), (1, "mean"), (2, "mean"), (0, "mean"), (3, "sum")],
        longest_bag=3,
    ),
    "one table": world([(30, 4)], [(0, "sum")]),
    "one row": world([(1, 4)], [(0, "sum")]),
    "pool no feature reads": world([(9, 4), (30, 3), (9, 2)], [(0, "sum"), (2, "sum")]),
    "no row comes back": all_rows_once(),
    "nothing looked up": nothing_looked_up(),
}


@pytest.mark.parametrize(("policy", "name", "device"), over_devices(list(WORLDS)))
def test_odd_worlds_keep_the_contract(watch: Any, plain: Any, policy: str, name: str, device: str) -> None:
    changes = ("run.split=always", "knobs.action=drop", "knobs.hot_budget_bytes=1500", "knobs.prefetch_depth=3")
    seen = watch(policy, *changes, device=device, world=WORLDS[name])
    assert_contract(seen)
    if seen.runtime.policy.exact:
        assert_equal_tables(seen, plain(arranged(seen) or WORLDS[name]))
    if name == "no row comes back" and policy in ("hybrid", "hotline", "slipstream", "random_skip"):
        assert seen.totals["samples_popular"] == 0


@pytest.mark.parametrize(("policy", "budget_bytes", "device"), over_devices([0, 1, 1 << 50]))
def test_a_budget_of_nothing_and_one_beyond_all_rows_keep_the_contract(
    watch: Any, policy: str, budget_bytes: int, device: str
) -> None:
    seen = watch(
        policy, f"knobs.hot_budget_bytes={budget_bytes}", "knobs.action=drop", "run.split=always", device=device
    )
    assert_contract(seen)
    rows = seen.runtime.store.space.rows
    if policy == "device_only" or (policy == USERS and budget_bytes > 1):
        assert seen.runtime.store.device.hot_rows == rows
    elif policy in ("hybrid", "xdl") or budget_bytes <= 1:
        assert seen.runtime.store.device_bytes == 0
    else:
        assert 0 < seen.runtime.store.device.hot_rows <= sum(seen.runtime.store.device.capacities) == rows


# Skipping ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_random_skip_skips_about_the_wanted_share(watch: Any, action: str) -> None:
    target = 0.3
    long_run = ("run.steps=120", "run.batch_size=64", "data.synthetic.samples=8000")
    seen = watch("random_skip", f"knobs.action={action}", f"knobs.target_skip_ratio={target}", *long_run)
    totals = seen.totals
    if action == "freeze":
        count = totals["row_updates_skipped"] + totals["hot_row_updates"]
        share = totals["row_updates_skipped"] / count
    else:
        share = (totals["samples_seen"] - totals["samples_trained"]) / totals["samples_popular"]
        count = totals["samples_popular"]
    assert count > 2000
    # Three deviations of the draws, and as much for the number of probe steps, which is a draw itself.
    probes = np.mean([step.probe for step in seen.steps])
    expected = target * (1 - probes) / (1 - seen.runtime.knobs.probe_ratio)
    assert abs(share - expected) < 3 * np.sqrt(target * (1 - target) / count)
    assert abs(share - target) < 0.05


@pytest.mark.parametrize(("action", "unbiased"), [("subsample", True), ("drop", False)])
def test_subsampling_keeps_the_expected_gradient(watch: Any, action: str, unbiased: bool) -> None:
    """With all rows hot and stale, a sample stays with probability p and weight 1/p, whereas dropping loses all of them."""
    config = [
        "knobs.keep_probability=0.4",
        f"knobs.action={action}",
        "knobs.hot_budget_bytes=1000000",
        "run.split=always",
    ]
    runtime = watch("slipstream", *config, "run.steps=1", "knobs.probe_ratio=1.0", world=WORLDS["one table"]).runtime
    batch = WORLDS["one table"][0][0]
    work = ClassifiedBatch(batch, runtime.store.space)
    store = runtime.store
    store.resize(split_budget(store.space, store.row_bytes, 1_000_000), np.arange(store.space.rows))
    store.classify(work)
    half = np.zeros(store.device.capacities[0], dtype=bool)
    half[: len(half) // 2] = True
    store.device.stale[0][:] = half

    def gradient(probe: bool) -> np.ndarray:
        """Return the gradient of the dense part and, added up, of the pooled vectors."""
        position_B = runtime.steps.execute(work, TrainingSteps.plan(runtime.steps, work, probe))
        parts = runtime.dense.gradients()
        dense = [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in runtime.dense.model.parameters()
        ]
        pooled = np.zeros((batch.size, 4))
        pooled[position_B >= 0] = parts[0][position_B[position_B >= 0], 0] if parts else 0
        return np.concatenate([torch.cat(dense).numpy(), pooled.flatten()])

    whole = gradient(probe=True)
    draws = []
    for step in range(400):
        runtime.state.set_step(step)  # random draws depend on the step's number
        draws.append(gradient(probe=False))
    mean, error = np.mean(draws, axis=0), np.std(draws, axis=0) / np.sqrt(len(draws))
    off = np.abs(mean - whole) / (error + 1e-9)
    assert np.linalg.norm(whole) > 0
    assert (np.max(off) < 4.5) == unbiased, np.max(off)
    assert np.linalg.norm(np.std(draws, axis=0)) > 0 or action == "drop", "samples are really skipped"


# Sources -------------------------------------------------------------------------------------------------------------

FOLDER = Path(adaptive_rec.__file__).parent / "policies"
ROOTS = {"__future__", "adaptive_rec", "numpy", "collections", "dataclasses", "itertools", "math", "typing"}
ALLOWED = tuple(
    f"adaptive_rec.{room}."
    for room in ("batch", "config.knobs", "config.policy", "placement", "policies", "policy", "saved", "tracking")
)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_a_policy_is_one_short_file_of_plain_numpy(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") < 150
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            root = name.partition(".")[0]
            assert root in ROOTS, name
            assert root != "adaptive_rec" or f"{name}.".startswith(ALLOWED), name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "exec", "eval", "__import__"}


def test_all_built_in_policies_are_in_the_folder_and_in_the_contract() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert files == set(BUILT_IN)
    for name in BUILT_IN:
        policy = load_policy(name)
        assert policy.name == name
        assert policy.exact == (name not in (*SKIPPING, *RELEASED))


def test_a_users_policy_is_trained_with_by_its_path(watch: Any) -> None:
    seen = watch(USERS, "knobs.hot_budget_bytes=400")
    store = seen.runtime.store
    hot = np.flatnonzero(store.placement.slot_of_row >= 0)
    assert hot.tolist() == list(range(store.device.capacities[0]))


def test_the_synthetic_run_of_this_suite_is_deterministic(watch: Any) -> None:
    one, other = (watch("slipstream", "knobs.action=drop", "knobs.prefetch_depth=4", device="late") for _ in range(2))
    assert one.losses == other.losses
    timing = {"host_to_device_bytes"}  # rows travel again or not, as the writer's thread is slow or quick
    assert {k: v for k, v in one.totals.items() if k not in timing} == {
        k: v for k, v in other.totals.items() if k not in timing
    }


def test_a_seed_that_differs_makes_another_run() -> None:
    runs = [assemble(load_config(None, {}, ["data.table_rows=[5]", f"run.seed={seed}"])) for seed in (1, 2)]
    assert not np.array_equal(*(run.store.export_table(0)[0] for run in runs))
