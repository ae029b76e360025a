"""Exact policies equal plain steps: losses to 1e-12 relative and rows to 1e-11 in float64 over 200 steps on real rows.

The settings that matter inside of a run are covered value by value in `make test`, over 24 steps; on a GPU any two values of two
settings occur together in some case of 200 steps, and in `make check` all combinations make 200. The axes of the product, pair
by pair, are in `test_cells.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive_rec.kernels.update_rules import NAMED_RULES
from tests.matrix import always, each, grid, only, pairwise, product, title
from tests.settings import DEVICES

gpu = pytest.mark.gpu

SETTINGS: dict[str, list[Any]] = {
    "policy": ["hotline", "device_only"],
    "optimizer": list(NAMED_RULES),
    "bags": ["one-hot", "sum", "mean"],
    "device": [],
    "budget_bytes": [200_000, 2_000_000],
    "depth": [0, 1, 2, 4],
    "churn": [False, True],
    "classify": ["host", "device"],
}


def possible(case: dict[str, Any]) -> bool:
    """Only a placement by popularity can be made to churn, and on a CPU the host classifies."""
    return not (case["policy"] == "device_only" and case["churn"]) and (case["device"], case["classify"]) != ("direct", "device")


CASES = product(SETTINGS | {"device": ["direct", "late"]}, possible)
CUDA_CASES = product(SETTINGS | {"device": ["cuda"]}, possible)
COVER, CUDA_COVER = pairwise(CASES), pairwise(CUDA_CASES)
CUDA_OTHERS = [case for case in CUDA_CASES if case not in CUDA_COVER]


_plain: dict[Any, Any] = {}


def plain(train: Any, optimizer: str, bags: str, precision: str = "float64", steps: int = 200) -> Any:
    """The run under `hybrid` that a case is compared with; made once. Its result is kept, without the runtime and its tables."""
    key = (optimizer, bags, precision, steps)
    if key not in _plain:
        outcome = train(optimizer=optimizer, bags=bags, precision=precision, steps=steps)
        _plain[key] = replace(outcome, runtime=None)
    return _plain[key]


@pytest.fixture(scope="module", autouse=True)
def plain_runs_dropped() -> Iterator[None]:
    yield
    _plain.clear()


def assert_equal(one: Any, other: Any, device: str = "") -> None:
    """A real device adds up in another order. Gradients that differ by 4e-16 at random make, by this measure, up to 0.33
    in losses and in rows, for Adagrad and Adam divide by what may be small; ten times the limits is far from a mistake."""
    slack = 10 if device == "cuda" else 1
    np.testing.assert_allclose(one.losses, other.losses, rtol=slack * 1e-12, atol=0)
    for mine, theirs in zip(one.tables + one.dense, other.tables + other.dense, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=slack * 1e-11)


@pytest.mark.parametrize("case", each(CASES), ids=title)
def test_exact_policies_equal_plain_steps(train: Any, case: dict[str, Any]) -> None:
    check_case(train, case, steps=24)


@gpu
@pytest.mark.parametrize("case", CUDA_COVER, ids=title)
def test_exact_policies_on_a_cuda_device_equal_plain_steps_on_the_cpu(train: Any, case: dict[str, Any]) -> None:
    check_case(train, case, steps=200)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=gpu) for case in CUDA_OTHERS)], ids=title)
def test_every_combination_over_200_steps(train: Any, case: dict[str, Any]) -> None:
    check_case(train, case, steps=200)


def check_case(train: Any, case: dict[str, Any], steps: int) -> None:
    outcome = train(**case, steps=steps)

    assert_equal(outcome, plain(train, case["optimizer"], case["bags"], steps=steps), case["device"])
    totals = outcome.runtime.reports.totals()
    assert totals["samples_trained"] == totals["samples_seen"]
    assert totals["row_updates_skipped"] == 0
    assert totals["lookups_hot"] > 0
    if case["churn"]:
        assert outcome.runtime.store.index.placement.version > steps // 4
    if case["device"] != "direct":
        assert outcome.runtime.store.path.classifies == (case["classify"] == "device")
        assert (totals["device_to_host_bytes"] > 0) == (case["policy"] == "hotline")


@grid(always, only("lion", "lazy_adam"), optimizer=SETTINGS["optimizer"], device=DEVICES[1:])
def test_plain_steps_on_a_device_equal_those_on_the_cpu(train: Any, optimizer: str, device: str) -> None:
    outcome = train(optimizer=optimizer, bags="mean", device=device, depth=3, steps=24)

    assert_equal(outcome, plain(train, optimizer, "mean", steps=24), device)


@grid(always, each, device=DEVICES[1:], budget_bytes=[0, 1 << 40])
def test_no_budget_and_one_for_everything(train: Any, budget_bytes: int, device: str) -> None:
    settings = {"optimizer": "lazy_adam", "bags": "mean", "steps": 24}
    outcome = train("hotline", device=device, budget_bytes=budget_bytes, depth=3, **settings)

    assert_equal(outcome, plain(train, **settings), device)
    assert (outcome.runtime.reports.totals()["lookups_hot"] > 0) == (budget_bytes > 0)


@grid(always, each, split=["always", "never"], device=DEVICES)
def test_whole_or_split_the_step_is_the_same(train: Any, split: str, device: str) -> None:
    settings = {"optimizer": "rowwise_adagrad", "bags": "one-hot", "steps": 24}
    outcome = train("hotline", device=device, budget_bytes=2_000_000, depth=2, split=split, **settings)

    assert_equal(outcome, plain(train, **settings), device)
    assert outcome.runtime.reports.totals()["samples_popular"] > 0


@grid(always, each, precision=["float32", "bf16"], optimizer=SETTINGS["optimizer"], device=DEVICES)
def test_one_step_parity(train: Any, optimizer: str, device: str, precision: str) -> None:
    """From one and the same state a step differs by rounding only; over many steps it drifts, which is not gated.

    Adaptive rules divide by the gradient: where it is nothing but rounding, they make a whole step of that. A GPU's network
    rounds in another way than a CPU's, so these rules are compared with plain steps whose network is on the GPU as well.
    """
    tolerance = {"float32": 1e-5, "bf16": 2e-2}[precision]
    first = plain(train, optimizer, "one-hot", precision, steps=1)
    other = train("device_only", optimizer=optimizer, precision=precision, steps=1, device=device)

    np.testing.assert_allclose(other.losses, first.losses, rtol=tolerance)
    if device == "cuda" and optimizer != "sgd":
        first = train("hybrid", optimizer=optimizer, precision=precision, steps=1, device=device)
    for mine, theirs in zip(other.tables + other.dense, first.tables + first.dense, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


@grid(always, lambda cases: cases[-1:], optimizer=["sgd", "rowwise_adagrad"], classify=["host", "device"])
def test_reading_before_write_back_is_caught(
    train: Any, optimizer: str, classify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite can fail: staged rows that an earlier batch on its way holds are wrong when they are not taken over."""
    from adaptive_rec.embedding.staged.stager import Stager

    stage = Stager.stage
    monkeypatch.setattr(Stager, "stage", lambda stager, work, earlier: stage(stager, work, []))
    settings = {"optimizer": optimizer, "budget_bytes": 200_000, "depth": 4, "classify": classify, "steps": 24}
    broken = train("hotline", device="late", **settings)

    with pytest.raises(AssertionError):
        assert_equal(broken, plain(train, optimizer, "one-hot", steps=24))


@grid(always, only("host"), classify=["host", "device"])
def test_computing_before_the_copy_arrives_is_caught(train: Any, classify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.doubles.late_streams import LateStreams

    monkeypatch.setattr(LateStreams, "compute_waits", lambda streams, event: None)
    with pytest.raises(Exception, match=r"finite|nan|NaN|index|range"):
        train("hotline", device="late", budget_bytes=200_000, depth=1, steps=20, classify=classify)


def test_places_from_before_a_migration_are_caught(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that the device makes are wrong where its slots of rows are not those of the placement."""
    from adaptive_rec.embedding.staged.classifier import Classifier

    monkeypatch.setattr(Classifier, "move", lambda *arguments: None)
    broken = train("hotline", device="late", budget_bytes=200_000, depth=4, churn=True, steps=24, classify="device")

    with pytest.raises(AssertionError):
        assert_equal(broken, plain(train, "sgd", "one-hot", steps=24))
