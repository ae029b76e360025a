"""Rows equal those of plain PyTorch for random tables, bags, rules, policies, budgets and changes of knobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.modules.api import wrap

from .test_device import ReadableStreams
from .training import RULES

OPTIMIZERS = {
    **RULES,
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.02),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.02, weight_decay=0.1),
}
POLICIES = ["hybrid", "hotline", "slipstream"]
EXACT = {"target_skip_ratio": 0.0, "action": "freeze"}
"""Under which slipstream skips nothing."""


@dataclass(frozen=True)
class Table:
    rows: int
    dim: int
    mode: str
    """Of its bags; "single": it is read row by row."""
    last: bool
    """Whether offsets include the last one; whether a table read row by row has a row of padding."""


@dataclass(frozen=True)
class Use:
    """One forward call of one table's bag in a step."""

    table: int
    lengths: tuple[int, ...]
    seed: int
    weighted: bool
    flat: bool


@dataclass(frozen=True)
class Step:
    uses: tuple[Use, ...]
    turn: dict[str, Any]
    """Knobs turned before it."""
    foretold: bool
    evaluate: bool
    passes: int = 1
    """Backward passes whose gradients are summed."""
    clip: str = ""
    left_out: bool = False
    """Whether the optimizer's step is left out."""


@dataclass(frozen=True)
class Life:
    tables: tuple[Table, ...]
    steps: tuple[Step, ...]
    rule: str
    policy: str
    budget: int
    window: int
    prefetch: bool


tables = st.builds(
    Table, st.integers(1, 40), st.sampled_from([1, 2, 3, 8]), st.sampled_from(["sum", "mean", "single", "single"]), st.booleans()
)
budgets = st.sampled_from([0, 500, 1000, 3000, 1 << 20])
turns = st.fixed_dictionaries(
    {},
    optional={
        "hot_budget_bytes": budgets,
        "policy": st.sampled_from(POLICIES),
        "reclassify_every": st.integers(1, 5),
        "prefetch_depth": st.integers(0, 5),
        "max_moved_bytes": st.sampled_from([0, 500, 1 << 20]),
    },
)


@st.composite
def uses(draw: st.DrawFn, count: int) -> Use:
    flat = draw(st.booleans())
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    lengths = [max(1, lengths[0])] * len(lengths) if flat else lengths  # torch knows no empty bags in 2-D
    return Use(draw(st.integers(0, count - 1)), tuple(lengths), draw(st.integers(0, 99)), draw(st.booleans()), flat)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    chosen = draw(st.lists(tables, min_size=1, max_size=4))
    step = st.builds(
        Step,
        st.lists(uses(len(chosen)), max_size=5).map(tuple),
        st.one_of(st.just({}), turns),
        st.sampled_from([True, True, True, False]),
        st.booleans(),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.sampled_from(["", "", "", "norm", "value"]),
        st.sampled_from([False, False, False, True]),
    )
    steps = draw(st.lists(step, min_size=1, max_size=10))
    return Life(
        tuple(chosen), tuple(steps), draw(st.sampled_from(list(RULES))), draw(st.sampled_from(POLICIES)), draw(budgets),
        draw(st.integers(1, 4)), draw(st.booleans()),
    )  # fmt: skip


def call_of(use: Use, table: Table) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What a bag is called with; a few ids come often."""
    dice = torch.Generator().manual_seed(use.seed)
    lengths = torch.tensor(use.lengths)
    ids = (table.rows * torch.rand(int(lengths.sum()), generator=dice) ** 3).long()
    scale = torch.rand(len(ids), generator=dice) + 0.5 if use.weighted and table.mode == "sum" else None
    if table.mode == "single":
        return ids.view(len(use.lengths), use.lengths[0]) if use.flat else ids, None, None
    if use.flat:
        shape = (len(use.lengths), use.lengths[0])
        return ids.view(shape), None, None if scale is None else scale.view(shape)
    offsets = lengths.cumsum(0)
    offsets = torch.cat([offsets.new_zeros(1), offsets]) if table.last else offsets - lengths
    return ids, offsets, scale


def model_of(life: Life) -> nn.ModuleList:
    torch.manual_seed(1)
    sparse = life.rule == "sparse_adam"
    return nn.ModuleList(
        nn.Embedding(table.rows, table.dim, padding_idx=table.rows // 2 if table.last else None, sparse=sparse)
        if table.mode == "single"
        else nn.EmbeddingBag(table.rows, table.dim, mode=table.mode, include_last_offset=table.last, sparse=sparse)
        for table in life.tables
    )


def loss_of(model: nn.ModuleList, step: Step, life: Life) -> Tensor:
    calls = [(use.table, call_of(use, life.tables[use.table])) for use in step.uses]
    pooled = [model[n](*(call[:1] if life.tables[n].mode == "single" else call)) for n, call in calls]
    # So little bent that steps of SGD on a row with a hundred lookups do not make rounding grow.
    return torch.stack([(part / 10 + number).sin().sum() for number, part in enumerate(pooled)]).sum()


def live(life: Life, adaptive: bool) -> tuple[list[float], list[Tensor]]:
    model = model_of(life)
    optimizer = OPTIMIZERS[life.rule](list(model.parameters()))
    steps: Any = life.steps
    runtime: Any = None
    if adaptive:
        knobs = {"reclassify_every": life.window, "sample_ratio": 1.0, "hysteresis": 0.0, **EXACT}
        runtime = adaptive_rec.wrap(model, budget=life.budget, optimizer=optimizer, policy=life.policy, knobs=knobs)
        steps = runtime.prefetch(life.steps, sparse=lambda step: announced(step, life)) if life.prefetch else steps
    losses, before = [], -1
    for step in steps:
        if runtime is not None and step.turn:
            runtime.set_knobs(**step.turn)
        if step.uses:
            optimizer.zero_grad()
            if step.evaluate:
                with torch.no_grad():
                    losses.append(loss_of(model, step, life).item())
            for _ in range(step.passes):
                loss = loss_of(model, step, life)
                loss.backward()
                losses.append(loss.item())
            if life.rule != "sparse_adam":  # torch does not clip sparse gradients
                clip(step.clip, model)
            if not step.left_out:
                optimizer.step()
        if runtime is not None:
            stats = runtime.stats()
            assert stats.steps >= before
            assert stats.device_bytes <= max(stats.budget_bytes, 0)
            before = stats.steps
    found = losses, [part.weight.detach().clone() for part in model]  # type: ignore[operator, union-attr]
    if runtime is not None:
        assert runtime.step_number == sum(bool(step.uses) and not step.left_out for step in life.steps)
        runtime.close()
    return found


def clip(how: str, model: nn.Module) -> None:
    if how == "norm":
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    elif how == "value":
        nn.utils.clip_grad_value_(model.parameters(), 0.02)


def announced(step: Step, life: Life) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for use in step.uses if step.foretold else ():
        ids, offsets, _ = call_of(use, life.tables[use.table])
        found.setdefault(str(use.table), []).append(ids if offsets is None else (ids, offsets))
    return {name: calls if len(calls) > 1 else calls[0] for name, calls in found.items()}


def check(life: Life) -> None:
    losses, rows = live(life, adaptive=True)
    expected, theirs = live(life, adaptive=False)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-11, atol=1e-11)
    for mine, other in zip(rows, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=[*HealthCheck])


@examples(15)
@given(life=lives())
def test_rows_are_those_of_plain_pytorch(life: Life) -> None:
    check(life)


kinds = st.sampled_from(["adam", "adamw"])


@examples(15)
@given(life=lives(), kind=kinds)
def test_rows_under_dense_adam_are_those_of_plain_pytorch(life: Life, kind: str) -> None:
    under_dense_adam(life, kind)


@pytest.mark.slow
@examples(200)
@given(life=lives(), kind=kinds)
def test_rows_under_dense_adam_equal_torch_in_more_loops(life: Life, kind: str) -> None:
    under_dense_adam(life, kind)


def under_dense_adam(life: Life, kind: str) -> None:
    exact = {"slipstream": "hotline"}
    steps = tuple(
        replace(step, turn={name: exact.get(value, value) for name, value in step.turn.items()}) for step in life.steps
    )
    check(replace(life, rule=kind, policy=exact.get(life.policy, life.policy), steps=steps))


@examples(8)
@given(life=lives(), seed=st.integers(0, 99))
def test_rows_on_a_device_equal_torch_in_random_training_loops(life: Life, seed: int) -> None:
    on_late_device(life, seed)


@pytest.mark.slow
@examples(200)
@given(life=lives(), seed=st.integers(0, 99))
def test_rows_on_a_device_equal_torch_in_more_loops(life: Life, seed: int) -> None:
    on_late_device(life, seed)


def on_late_device(life: Life, seed: int) -> None:
    """On the device of `late_streams.py`, where a wait that is missing shows."""
    plain = wrap.setup_from
    with pytest.MonkeyPatch.context() as patch:
        late = ReadableStreams(seed)
        patch.setattr(wrap, "setup_from", lambda given, place: replace(plain(given, place), streams=late))
        check(life)


@pytest.mark.slow
@examples(400)
@given(life=lives())
def test_rows_equal_torch_in_more_loops(life: Life) -> None:
    check(life)


@pytest.mark.long
@examples(2000)
@given(life=lives())
def test_rows_equal_torch_in_random_training_loops(life: Life) -> None:
    check(life)


def test_a_step_of_hot_rows_waits_only_for_its_indices() -> None:
    """With nothing announced no gather of the step's own goes before its update."""
    use = Use(0, (1,), 0, weighted=False, flat=True)
    steps = Step((use, use), {}, foretold=True, evaluate=False), Step((use,), {}, foretold=True, evaluate=False)
    life = Life((Table(1, 1, "sum", last=False),), steps, "sgd", "hotline", budget=100, window=1, prefetch=False)
    for seed in range(24):
        on_late_device(life, seed)
