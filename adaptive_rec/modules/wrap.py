"""`wrap`: replace a model's ``nn.EmbeddingBag``s in place by modules with tables in two tiers."""

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
from adaptive_rec.modules.bag import AdaptiveEmbeddingBag, why_unsupported
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop_directory import LOG
from adaptive_rec.modules.options import PRECISIONS, Options, rates_from, setup_from
from adaptive_rec.modules.rates import STATE_NAMES, Rates, rates_of_optimizer, take_out
from adaptive_rec.units import printable

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
WEIGHT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass
class _Table:
    """A weight that one or several modules look up."""

    name: str
    weight: Tensor | None
    modules: list[tuple[str, nn.EmbeddingBag]] = field(default_factory=list)
    """Paths and modules; one module may have several paths."""


@dataclass(frozen=True)
class WrapReport:
    """The modules of a model that `wrap` replaced, and those that it left."""

    replaced: tuple[str, ...]
    """Paths of replaced modules, with the sizes of their tables."""
    left: tuple[tuple[str, str], ...]
    """Paths of modules with embeddings that were left as they are, each with the reason."""
    summary: str

    def __str__(self) -> str:
        kept = [f"left as it is: {name}, {reason}" for name, reason in self.left]
        return "\n".join([self.summary, *(f"  {line}" for line in (*self.replaced, *kept))])


class WrappedRuntime(EmbeddingRuntime):
    """The runtime of a wrapped model."""

    report: WrapReport


def wrap(model: nn.Module, *, device: torch.device | str | None = None, **options: Unpack[Options]) -> WrappedRuntime:
    """Replace a model's `nn.EmbeddingBag` modules in place and keep their rows. Returns the runtime that they share.

    ``budget=``: device memory for hot rows and their optimizer state ("2GiB"). ``optimizer=``: the name of a rule, with ``lr=``;
    or a torch SGD, Adagrad or SparseAdam that holds the tables. They are then removed from it, and rows are updated as it did,
    with its state and the learning rate that its param group has at each step. Wrap a model after it was moved to its device, and
    before its parameters are handed to anything else. `device`: the device of pooled vectors, by default that of the model's
    other parameters. See `Options` for the rest.

    Rows are updated inside ``backward``, so later changes do not reach them: gradient clipping, a skipped optimizer step,
    ``GradScaler`` (bf16 autocast needs none). Where gradients are accumulated over several passes, each pass is an update.

    Raises ConfigError, and leaves the model as it was, where nothing can be replaced or rows could not be updated as requested.
    """
    tables, left = _tables(model)
    weights = [table.weight for table in tables if table.weight is not None]
    dtype, place = _dtype(weights), torch.device(device) if device is not None else _place(model, weights)
    optimizer = options.get("optimizer")
    holder = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    rates = rates_from(options) if holder is None else rates_of_optimizer(holder, weights)
    if holder is not None and (extra := [name for name in ("lr", "eps", "betas") if options.get(name) is not None]):
        raise ConfigError(f"{extra[0]} must be left to the optimizer that is given, got {options[extra[0]]}")  # type: ignore[literal-required]
    specs = [TableSpec(table.name, *map(int, weight.shape)) for table, weight in zip(tables, weights, strict=True)]
    runtime = WrappedRuntime(specs, setup_from(options, place), rates, dtype)
    pending = [table.name for table, weight in zip(tables, weights, strict=True) if _has_gradient(weight)]
    if pending:
        LOG.warning("wrap drops the gradients of %s: no later optimizer step will use them", printable(", ".join(pending)))
    states = [{} for _ in weights] if holder is None else take_out(holder, weights)
    weights.clear()
    paths = [
        _replace(model, runtime, number, table, state, rates)
        for number, (table, state) in enumerate(zip(tables, states, strict=True))
    ]
    runtime.report = _report(runtime, paths, left)
    return runtime


def _has_gradient(weight: Tensor) -> bool:
    grad = weight.grad
    return grad is not None and bool((grad._values() if grad.is_sparse else grad).any())


def _tables(model: nn.Module) -> tuple[list[_Table], list[tuple[str, str]]]:
    """Return the tables of all modules that can be replaced, and the modules that cannot."""
    tables: dict[int, _Table] = {}
    left: list[tuple[str, str]] = []
    elsewhere = _other_owners(model)
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


def _other_owners(model: nn.Module) -> dict[int, str]:
    """Return the names of parameters of modules that cannot be replaced, by the parameters' ids."""
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not isinstance(module, nn.EmbeddingBag) or _why_left(module)
    }


def _listed(left: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in left) or "it has none"


def _why_left(module: nn.EmbeddingBag) -> str:
    """Return why a module cannot be replaced, or nothing."""
    if type(module) is not nn.EmbeddingBag:
        return f"a {type(module).__name__}, not nn.EmbeddingBag itself"
    if not module.weight.requires_grad:
        return "frozen: its weight requires no gradient"
    if module.weight.dtype not in PRECISIONS:
        return f"of {module.weight.dtype}: tables may be of torch.float32 or torch.float64"
    if any(getattr(module, hooks) for hooks in HOOKS) or any(
        getattr(module.weight, hooks, None) for hooks in WEIGHT_HOOKS
    ):
        return "it has hooks, which the new module would not have"
    return why_unsupported(module.mode, module.max_norm, module.scale_grad_by_freq)


def _dtype(weights: Sequence[Tensor]) -> torch.dtype:
    dtypes = {weight.dtype for weight in weights}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ConfigError(f"tables must all be of torch.float32 or all of torch.float64, got {names}")
    return dtypes.pop()


def _place(model: nn.Module, weights: Sequence[Tensor]) -> torch.device:
    """Return the device of the model's other parameters, or else that of its tables."""
    own = {id(weight) for weight in weights}
    return next((p.device for p in model.parameters() if id(p) not in own), weights[0].device)


def _replace(
    model: nn.Module, runtime: EmbeddingRuntime, number: int, table: _Table, state: dict[str, Any], rates: Rates
) -> str:
    """Copy a table and its optimizer state, replace the modules that look it up, and release it. Returns their paths."""
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
        module.forward = partial(_refuse_call, name)  # type: ignore[method-assign]
    names = ", ".join(name for name, _ in table.modules)
    table.weight = None  # frees its memory, unless the user holds it too
    table.modules.clear()
    return names


def _refuse_call(name: str, *_: Any, **__: Any) -> NoReturn:
    """Stand in for the ``forward`` of a replaced module, whose rows are no longer trained."""
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
