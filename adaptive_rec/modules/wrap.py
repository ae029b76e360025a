"""A model's ``nn.EmbeddingBag``s, replaced in place by ones whose tables lie in two tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Unpack

import torch
from pydantic import ByteSize
from torch import Tensor, nn

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.modules.bag import AdaptiveEmbeddingBag, unlike
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.options import PRECISIONS, Options, own_rates, setup_of
from adaptive_rec.modules.rates import STATE_NAMES, Rates, rates_of, take_out
from adaptive_rec.modules.serving import LOG

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
WEIGHT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass
class _Table:
    """A parameter that one or several modules read."""

    name: str
    weight: Tensor | None
    modules: list[tuple[str, nn.EmbeddingBag]] = field(default_factory=list)
    """Where they are, by their paths; one module may be at several."""


@dataclass(frozen=True)
class WrapReport:
    """What `wrap` did to a model."""

    replaced: tuple[str, ...]
    """Modules that look up in two tiers now, with their tables' sizes."""
    left: tuple[tuple[str, str], ...]
    """Modules with embeddings that were left as they are, and why."""
    summary: str

    def __str__(self) -> str:
        kept = [f"left as it is: {name}, {reason}" for name, reason in self.left]
        return "\n".join([self.summary, *(f"  {line}" for line in (*self.replaced, *kept))])


class WrappedRuntime(EmbeddingRuntime):
    """The runtime of a wrapped model."""

    report: WrapReport


def wrap(model: nn.Module, *, device: torch.device | str | None = None, **options: Unpack[Options]) -> WrappedRuntime:
    """Replace a model's `nn.EmbeddingBag` modules in place; their rows are kept. Returns the runtime that they share.

    ``budget=``: device memory for hot rows and their optimizer state ("2GiB"). ``optimizer=``: a torch SGD, Adagrad or SparseAdam
    that holds the tables, which are taken out of it: rows are updated as it would, with its state, and with the learning rate
    that its param group has at each step; or the name of a rule, with ``lr=``. Wrap a model after it was moved to its device, and
    before it is handed to anything that remembers its parameters; `device` is where pooled vectors go, by default that of the
    model's other parameters. See `Options` for the rest.

    Rows are updated inside ``backward``, so what comes after it does not reach them: gradient clipping, a step that is left out,
    gradients accumulated over several passes (each is an update), ``GradScaler`` (bf16 autocast needs none).

    Raises ConfigError where nothing can be replaced, or rows could not be updated as asked; the model is as it was then.
    """
    tables, left = _tables(model)
    weights = [table.weight for table in tables if table.weight is not None]
    dtype, place = _kind(weights), torch.device(device) if device is not None else _place(model, weights)
    optimizer = options.get("optimizer")
    given = isinstance(optimizer, torch.optim.Optimizer)
    rates = rates_of(optimizer, weights) if isinstance(optimizer, torch.optim.Optimizer) else own_rates(options)
    if given and (extra := [name for name in ("lr", "eps", "betas") if options.get(name) is not None]):
        raise ConfigError(f"{extra[0]} must be left to the optimizer that is given, got {options[extra[0]]}")  # type: ignore[literal-required]
    specs = [TableSpec(table.name, *map(int, weight.shape)) for table, weight in zip(tables, weights, strict=True)]
    runtime = WrappedRuntime(specs, setup_of(options, place), rates, dtype)
    pending = [table.name for table, weight in zip(tables, weights, strict=True) if _has_gradient(weight)]
    if pending:
        LOG.warning(
            "wrap drops the gradients that %s have: an optimizer step that is still to come will not use them",
            ", ".join(pending),
        )
    states = take_out(optimizer, weights) if isinstance(optimizer, torch.optim.Optimizer) else [{} for _ in weights]
    weights.clear()
    paths = [
        _move(model, runtime, number, table, state, rates)
        for number, (table, state) in enumerate(zip(tables, states, strict=True))
    ]
    runtime.report = _report(runtime, paths, left)
    return runtime


def _has_gradient(weight: Tensor) -> bool:
    grad = weight.grad
    return grad is not None and bool((grad._values() if grad.is_sparse else grad).any())


def _tables(model: nn.Module) -> tuple[list[_Table], list[tuple[str, str]]]:
    """Tables of the modules that can be replaced, and the modules that cannot."""
    tables: dict[int, _Table] = {}
    left: list[tuple[str, str]] = []
    elsewhere = _read_elsewhere(model)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, AdaptiveEmbeddingBag):
            raise ConfigError(f"model must not be wrapped already, {name or 'it'} is an AdaptiveEmbeddingBag")
        if isinstance(module, nn.Embedding):
            left.append((name, "an nn.Embedding, which does not pool"))
        if not isinstance(module, nn.EmbeddingBag):
            continue
        if not name:
            raise ConfigError(
                "model must contain EmbeddingBags, it is one itself: make it an AdaptiveEmbeddingBag instead"
            )
        reason = _why_left(module)
        if not reason and id(module.weight) in elsewhere:
            reason = f"its weight is {elsewhere[id(module.weight)]} too"
        if reason:
            left.append((name, reason))
            continue
        table = tables.setdefault(id(module.weight), _Table(name, module.weight))
        table.modules.append((name, module))
    if not tables:
        raise ConfigError(f"model must have nn.EmbeddingBag modules that can be replaced, {_listed(left)}")
    return list(tables.values()), left


def _read_elsewhere(model: nn.Module) -> dict[int, str]:
    """Parameters that others than EmbeddingBags which can be replaced have, and under which name."""
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not isinstance(module, nn.EmbeddingBag) or _why_left(module)
    }


def _listed(left: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in left) or "it has none"


def _why_left(module: nn.EmbeddingBag) -> str:
    """Why a module cannot be replaced; empty where it can."""
    if type(module) is not nn.EmbeddingBag:
        return f"a {type(module).__name__}, not nn.EmbeddingBag itself"
    if not module.weight.requires_grad:
        return "frozen: its weight requires no gradient"
    if module.weight.dtype not in PRECISIONS:
        return f"of {module.weight.dtype}: tables may be of torch.float32 or torch.float64"
    if any(getattr(module, hooks) for hooks in HOOKS) or any(
        getattr(module.weight, hooks, None) for hooks in WEIGHT_HOOKS
    ):
        return "it has hooks, which its successor would not have"
    return unlike(module.mode, module.max_norm, module.scale_grad_by_freq)


def _kind(weights: Sequence[Tensor]) -> torch.dtype:
    kinds = {weight.dtype for weight in weights}
    if len(kinds) > 1:
        named = ", ".join(sorted(str(kind) for kind in kinds))
        raise ConfigError(f"tables must all be of torch.float32 or all of torch.float64, got {named}")
    return kinds.pop()


def _place(model: nn.Module, weights: Sequence[Tensor]) -> torch.device:
    """The device of the model's other parameters, else that of its tables."""
    own = {id(weight) for weight in weights}
    return next((p.device for p in model.parameters() if id(p) not in own), weights[0].device)


def _move(
    model: nn.Module, runtime: EmbeddingRuntime, number: int, table: _Table, state: dict[str, Any], rates: Rates
) -> str:
    """Copy a table and its optimizer state, put new modules in the places of those that read it, and let go of it. Returns
    their paths."""
    assert table.weight is not None
    with torch.no_grad():
        runtime.host_rows(number).copy_(table.weight)
    parts = [state[name] for name in STATE_NAMES.get(rates.rule.embedding, ()) if name in state]
    if parts:
        runtime.take_state(number, parts, int(state.get("step", 0)))
    made: dict[nn.EmbeddingBag, AdaptiveEmbeddingBag] = {}
    for name, module in table.modules:
        if module not in made:
            made[module] = AdaptiveEmbeddingBag.of(runtime, number, module, name)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made[module])
        module.forward = partial(_replaced, name)  # type: ignore[method-assign]
    names = ", ".join(name for name, _ in table.modules)
    table.weight = None  # its memory is free now, unless somebody else holds it
    table.modules.clear()
    return names


def _replaced(name: str, *_: Any, **__: Any) -> NoReturn:
    """What a former module's forward is: whoever still has it would look up rows that nobody trains."""
    raise ConflictError(
        f"{name} was replaced by wrap: a model must reach it by that path, not by a reference of its own"
    )


def _report(runtime: EmbeddingRuntime, paths: list[str], left: list[tuple[str, str]]) -> WrapReport:
    specs = runtime.store.space.tables
    replaced = [f"{names}: {spec.rows:,} rows x {spec.dim}" for names, spec in zip(paths, specs, strict=True)]
    stats, rules = runtime.stats(), runtime.rates.rule.embedding
    budget = ByteSize(stats.budget_bytes).human_readable()
    summary = (
        f"{len(replaced)} table{'s' if len(replaced) > 1 else ''}, {stats.total_rows:,} rows in two tiers: "
        f"policy {stats.policy}, updates {rules}, "
        f"up to {budget} of hot rows on {runtime.device}"
    )
    return WrapReport(tuple(replaced), tuple(left), summary)
