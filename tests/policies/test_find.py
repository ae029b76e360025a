"""Finding a policy by its name: the bases that its class lacks are added, flags and methods stay."""

from __future__ import annotations

import sys
from collections.abc import Generator
from types import ModuleType

import numpy as np
import pytest

from adaptive_rec.errors import ConfigError
from adaptive_rec.policy import (
    ArrangingPolicy,
    BatchView,
    MovementView,
    Outcome,
    Phase,
    Policy,
    SkippingPolicy,
    Staleness,
    StepPlan,
    StreamView,
)
from adaptive_rec.policy.find import ARRANGING, BUILT_IN, PER_TABLE, load_policy


class OnlyPlans(Policy):
    """Subclasses `Policy` alone, as all policies did before there were several bases."""

    name = "only_plans"

    def plan(self, view: BatchView) -> StepPlan:
        return StepPlan((np.arange(view.samples),))


class Judges(Policy):
    name = "judges"
    exact = False
    tracks_popularity = tracks_movement = guards_quality = True

    def find_stale(self, view: MovementView) -> Staleness:
        return Staleness(np.ones_like(view.stale_H), 7.0)


class Arranges(Policy):
    name = "arranges"
    exact = False
    arranges_stream = reorders_stream = tracks_movement = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        yield Phase("all", stream.rest())


def load(kind: type, monkeypatch: pytest.MonkeyPatch) -> Policy:
    module = ModuleType("policies_of_a_user")
    vars(module)[kind.__name__] = kind
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return load_policy(f"{module.__name__}:{kind.__name__}")


FLAGS = (
    "exact", "tracks_popularity", "tracks_movement", "adapts_memory", "arranges_stream", "reorders_stream", "prefetches",
    "request_per_table",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "base"), [(OnlyPlans, SkippingPolicy), (Judges, SkippingPolicy), (Arranges, ArrangingPolicy)]
)
def test_a_class_that_subclasses_policy_alone_gets_the_base_that_its_methods_need(
    kind: type[Policy], base: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load(kind, monkeypatch)
    assert isinstance(found, kind)
    assert isinstance(found, base)
    assert type(found).__name__ == kind.__name__
    assert [getattr(found, flag) for flag in FLAGS] == [getattr(kind, flag) for flag in FLAGS]
    for method in set(vars(kind)) & set(vars(base)) - {"__module__", "__doc__"}:
        assert getattr(type(found), method) == getattr(kind, method)


def test_a_class_with_its_bases_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("hotline", Policy), ("slipstream", SkippingPolicy), ("fae", ArrangingPolicy)):
        found = load_policy(name)
        assert isinstance(found, kind)
        assert type(found).__module__ == f"adaptive_rec.policies.{name}"
    assert not isinstance(load_policy("hotline"), SkippingPolicy | ArrangingPolicy)


def test_a_class_that_is_no_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must name a subclass of adaptive_rec\.policy\.Policy, got"):
        load(dict, monkeypatch)


def test_the_lists_that_spare_loading_policies_are_what_policies_say() -> None:
    policies = [load_policy(name) for name in BUILT_IN]
    assert set(ARRANGING) == {policy.name for policy in policies if policy.arranges_stream}
    assert set(PER_TABLE) == {policy.name for policy in policies if policy.request_per_table}
