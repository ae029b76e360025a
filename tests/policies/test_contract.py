"""The contract that every policy keeps, ours and users', on every device, with every action. A new policy joins by name below."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adaptive_rec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.steps import TrainingSteps
from tests.matrix import Case, always, grid, only
from tests.policies.worlds import WORLDS, World

USERS = "example_policy:FirstRows"
USERS_ORDER = "example_policy:EvenThenOdd"
POLICIES = (*BUILT_IN, USERS, USERS_ORDER)
SKIPPING = ("slipstream", "random_skip", "adaptive")
RELEASED = ("slipstream_released",)
"""Policies that skip as their authors' code does, whatever `knobs.action` is: see test_arranging.py."""
ONLY_ARRANGING = ("cdlrm", "fae", "fae_released", "oracle", "slipstream_released", "xdl", USERS_ORDER)
ACTIONS = ("freeze", "drop", "subsample")
KNOWN_OVER_BUDGET = "device_only"
"""The policy that ignores the hot budget, as documented."""


DEVICES = ["direct", "late", pytest.param("cuda", marks=pytest.mark.gpu)]


def acts(case: Case) -> bool:
    """Only policies that skip run under several actions, and those that only arrange the stream run batches whole."""
    return (case["policy"] in SKIPPING or case["action"] == ACTIONS[0]) and (
        case["policy"] not in ONLY_ARRANGING or case["split"] == "never"
    )


def in_turns(cases: Sequence[Case]) -> list[Case]:
    """Each policy runs once under each action, the ways of splitting and the devices in turn."""
    ways: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        ways.setdefault((case["policy"], case["action"]), []).append(case)
    return [some[number % len(some)] for number, some in enumerate(ways.values())]


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


@grid(acts, in_turns, policy=POLICIES, action=ACTIONS, split=["always", "never"], device=DEVICES)
def test_every_policy_keeps_the_contract(
    watch: Any, plain: Any, policy: str, action: str, split: str, device: str
) -> None:
    steps = 48 if policy in SKIPPING else 30
    changes = (f"knobs.action={action}", "knobs.alpha=0.5", f"run.split={split}", f"run.steps={steps}")
    seen = watch(policy, *changes, device=device)

    assert_contract(seen)
    assert (seen.totals["samples_popular"] > 0) == (policy not in ("hybrid", "xdl"))
    if seen.runtime.policy.exact:
        assert_equal_tables(seen, plain(arranged(seen), steps))
    else:
        skipped = seen.totals["row_updates_skipped"] + seen.totals["samples_seen"] - seen.totals["samples_trained"]
        assert skipped > 0, "this run would not notice a policy that may skip and never does"
        assert any(step.probe for step in seen.steps)
        assert not all(step.probe for step in seen.steps)


@grid(always, lambda cases: cases[:1], policy=SKIPPING, action=ACTIONS)
def test_without_a_share_to_skip_results_equal_plain_steps(watch: Any, plain: Any, policy: str, action: str) -> None:
    seen = watch(policy, f"knobs.action={action}", "knobs.target_skip_ratio=0.0")
    assert_contract(seen)
    assert_equal_tables(seen, plain())


# Skipping ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@grid(always, only("subsample"), action=ACTIONS)
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
    store.resize(split_budget(store.space, store.hot.row_bytes(), 1_000_000), np.arange(store.space.rows))
    store.path.classify(work)
    half = np.zeros(store.hot.tier.capacities[0], dtype=bool)
    half[: len(half) // 2] = True
    store.hot.tier.stale[0][:] = half

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
    hot = np.flatnonzero(store.index.placement.slot_of_row >= 0)
    assert hot.tolist() == list(range(store.hot.tier.capacities[0]))


@pytest.mark.slow
def test_the_synthetic_run_of_this_suite_is_deterministic(watch: Any) -> None:
    one, other = (watch("slipstream", "knobs.action=drop", "knobs.prefetch_depth=4", device="late") for _ in range(2))
    assert one.losses == other.losses
    timing = {"host_to_device_bytes"}  # rows travel again or not, as the writer's thread is slow or quick
    assert {k: v for k, v in one.totals.items() if k not in timing} == {
        k: v for k, v in other.totals.items() if k not in timing
    }


def test_a_seed_that_differs_makes_another_run() -> None:
    runs = [assemble(load_config(None, {}, ["data.table_rows=[5]", f"run.seed={seed}"])) for seed in (1, 2)]
    assert not np.array_equal(*(run.store.contents.export(0)[0] for run in runs))
