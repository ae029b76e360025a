"""`wrap`: move the tables of a model's ``nn.Embedding``s and ``nn.EmbeddingBag``s into two tiers, in place."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from pydantic import ByteSize
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.bag import AdaptiveEmbedding, AdaptiveEmbeddingBag, why_unsupported
from adaptive_rec.modules.collection import AdaptiveEmbeddingBagCollection
from adaptive_rec.modules.data_parallel import check_not_parallel
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop_directory import LOG
from adaptive_rec.modules.optimizer_steps import follow_optimizers, hand_over_state
from adaptive_rec.modules.options import PRECISIONS, TYPES, Options, rates_from, setup_from
from adaptive_rec.modules.rates import rates_of_optimizer
from adaptive_rec.modules.row_gradient import RowGradient
from adaptive_rec.modules.tiered_module import TieredModule, tiered_class, tiered_weights
from adaptive_rec.modules.weight import TieredWeight
from adaptive_rec.units import printable

WEIGHT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
ADAPTIVE: dict[type[nn.Module], type[nn.Module]] = {nn.EmbeddingBag: AdaptiveEmbeddingBag, nn.Embedding: AdaptiveEmbedding}


@dataclass
class _Table:
    """A weight that one or several modules hold."""

    name: str
    weight: Tensor
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    """Paths and modules; one module may have several paths."""


@dataclass(frozen=True)
class WrapReport:
    """The modules of a model whose tables `wrap` moved into tiers, and those that it left."""

    replaced: tuple[str, ...]
    """Paths of these modules, with the sizes of their tables."""
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
    """Move the tables of a model's `nn.Embedding` and `nn.EmbeddingBag` modules into two tiers, in place, and keep their rows.
    Returns the runtime that they share.

    ``budget=``: device memory for hot rows and their optimizer state ("2GiB"). ``optimizer=``: a torch SGD, Adagrad,
    SparseAdam, Adam, AdamW or RMSprop that holds the tables' weights, or the class of one that will be made. Rows are then
    updated in its ``step()``, as it would update ordinary parameters: with its state, the learning rate that its param group has
    at that time, and the gradients that backward passes, clipping and ``GradScaler`` have left. Or the name of a rule, with
    ``lr=``: rows are then updated at the end of each backward pass. Wrap a model after it was moved to its device. `device`: the
    device of looked-up vectors, by default that of the model's other parameters. See `Options` for the rest.

    Where the script has a process group of several ranks, they share the tables, and each of them must make every call.

    Weights stay the parameters that they were (`TieredWeight`), so whoever holds one goes on to hold it.

    Raises ConfigError, and leaves the model as it was, where no table can be moved or rows could not be updated as requested.
    """
    check_not_parallel(model)
    if options.get("ids", "rows") != "rows":
        raise ConfigError(
            f"ids must be rows in wrap, which keeps the rows of a model's tables, got {options['ids']!r}; raw ids are for "
            "AdaptiveEmbedding, AdaptiveEmbeddingBag and the collections"
        )
    in_backward = isinstance(options.get("optimizer"), str) or options.get("update") == "backward"
    tables, left = _tables(model, in_backward)
    weights = [table.weight for table in tables]
    dtype, place = _dtype(weights), torch.device(device) if device is not None else _place(model, weights)
    optimizer = options.get("optimizer")
    holder = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    rates = rates_from(options) if holder is None else rates_of_optimizer(holder, weights, in_backward=in_backward)
    if holder is not None and (extra := [name for name in ("lr", "eps", "betas") if options.get(name) is not None]):
        raise ConfigError(f"{extra[0]} must be left to the optimizer that is given, got {options[extra[0]]}")  # type: ignore[literal-required]
    specs = [TableSpec(table.name, *map(int, weight.shape)) for table, weight in zip(tables, weights, strict=True)]
    runtime = WrappedRuntime(specs, setup_from(options, place), rates, dtype)
    if in_backward and (pending := [table.name for table in tables if _has_gradient(table.weight)]):
        LOG.warning("wrap drops the gradients of %s: no later optimizer step will use them", printable(", ".join(pending)))
    follow_optimizers(runtime)
    del weights
    paths = [_move(runtime, number, table, holder) for number, table in enumerate(tables)]
    runtime.report = _report(runtime, paths, left)
    return runtime


def _has_gradient(weight: Tensor) -> bool:
    grad = weight.grad
    return grad is not None and bool((grad._values() if grad.is_sparse else grad).any())


def _tables(model: nn.Module, in_backward: bool) -> tuple[list[_Table], list[tuple[str, str]]]:
    """Return the tables of all modules that can be moved, and the modules that cannot."""
    tables: dict[int, _Table] = {}
    left: list[tuple[str, str]] = []
    elsewhere = _other_owners(model)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, TieredModule) and module.runtime is not None:
            raise ConfigError(f"model must not be wrapped already, {name or 'it'} is an {type(module).__name__}")
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        reason = _why_left(module)
        if not reason and in_backward and id(module.weight) in elsewhere:
            reason = f"its weight is {elsewhere[id(module.weight)]} too"
        if reason:
            left.append((name, reason))
            continue
        table = tables.setdefault(id(module.weight), _Table(name or "weight", module.weight))
        table.modules.append((name or "weight", module))
    left += _leave_narrow(tables)
    if not tables:
        raise ConfigError(f"model must have nn.Embedding or nn.EmbeddingBag modules that can be moved, {_listed(left)}")
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in tables and all(module is not known for _, known in tables[id(parameter)].modules):
                tables[id(parameter)].modules.append(("", module))
    return list(tables.values()), left


def _leave_narrow(tables: dict[int, _Table]) -> list[tuple[str, str]]:
    """Leave tables of 16 bits where there are others too, as the tables of one runtime are of one type."""
    narrow = {key: table for key, table in tables.items() if table.weight.dtype.itemsize == 2}
    if len(narrow) == len(tables):
        return []
    for key in narrow:
        del tables[key]
    why = "of {}, beside tables of more bits: wrap modules with tables of one type each"
    return [(name, why.format(table.weight.dtype)) for table in narrow.values() for name, _ in table.modules]


def _other_owners(model: nn.Module) -> dict[int, str]:
    """Return the names of parameters of modules that are no embeddings, or must be left, by the parameters' ids."""
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or _why_left(module)
    }


def _listed(left: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in left) or "it has none"


def _why_left(module: nn.Embedding | nn.EmbeddingBag) -> str:
    """Return why a module's table cannot be moved, or nothing."""
    if module._parameters.get("weight") is None:  # reading module.weight would compute it
        how = "parametrizations" if is_parametrized(module, "weight") else "a hook"
        return f"its weight is computed by {how} of the module (weight_norm, spectral_norm, prune, ...): rows have none"
    if not module.weight.requires_grad:
        return "frozen: its weight requires no gradient"
    if not module.weight.numel():
        return f"empty: it has {module.weight.shape[0]} rows of dim {module.weight.shape[1]}"
    if module.weight.dtype not in PRECISIONS:
        return f"of {module.weight.dtype}: tables may be of {TYPES}"
    if any(getattr(module.weight, hooks, None) for hooks in WEIGHT_HOOKS):
        return "its weight has hooks, which would not see the gradients of rows"
    return why_unsupported(getattr(module, "mode", "sum"), module.max_norm, module.scale_grad_by_freq)


def _dtype(weights: Sequence[Tensor]) -> torch.dtype:
    dtypes = {weight.dtype for weight in weights}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ConfigError(f"tables must all be of one type, got {names}; wrap submodules with tables of one type each")
    return dtypes.pop()


def _place(model: nn.Module, weights: Sequence[Tensor]) -> torch.device:
    """Return the device of the model's other parameters, or else that of its tables."""
    own = {id(weight) for weight in weights}
    return next((p.device for p in model.parameters() if id(p) not in own), weights[0].device)


def _move(runtime: EmbeddingRuntime, number: int, table: _Table, holder: torch.optim.Optimizer | None) -> str:
    """Move a table's rows and their optimizer state into the tiers. Its weight stays the same object, for all who hold it.
    Returns the paths of its modules."""
    weight = table.weight
    runtime.set_first_rows(number, lambda rows: rows.copy_(weight))
    gradient = None if runtime.updates_in_backward else weight.grad
    weight.grad = None
    torch.utils.swap_tensors(weight, TieredWeight(runtime, number))
    assert isinstance(weight, TieredWeight)
    runtime.hold(number, weight)
    if gradient is not None:
        weight.grad = _row_gradient(weight, gradient) if gradient.is_sparse else gradient
    if holder is not None:
        hand_over_state(holder, weight)
    for name, module in table.modules:
        if not isinstance(module, TieredModule):
            plain: Any = type(module)
            module.__class__ = ADAPTIVE.get(plain) or tiered_class(plain)
        if name:
            runtime.register(name, module)  # type: ignore[arg-type]
    return ", ".join(name for name, _ in table.modules if name)


def _row_gradient(weight: TieredWeight, gradient: Tensor) -> RowGradient:
    """Return a sparse gradient as one of rows."""
    summed = gradient.coalesce()
    first_row = weight.runtime.space.table_range(weight.table)[1]
    return weight.runtime.rows.gradient_type(weight, None, first_row, (summed.indices()[0], summed.values()))


def unwrap(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
    """Turn a wrapped model into an ordinary one again, in place, with the rows as they are, and close its runtimes. Returns it.

    The tables must fit in memory, on the device of the looked-up vectors. `optimizer`: one that holds the weights; it gets the
    optimizer state of the rows, and goes on as if they had never been wrapped. Raises ConfigError where no table is in tiers.
    """
    _check_free(model)
    runtimes = {}
    for name, module in model.named_modules():
        for weight in tiered_weights(module).values():
            runtimes[id(weight.runtime)] = weight.runtime
            _move_back(weight, optimizer, sparse=bool(getattr(module, "sparse", False)))
        if isinstance(module, TieredModule):
            plain: Any = module.plain_class
            module.__class__ = plain
        elif isinstance(module, AdaptiveEmbeddingBagCollection):
            raise ConfigError(f"model must have modules of torch to unwrap, {name or 'it'} is an AdaptiveEmbeddingBagCollection")
    if not runtimes:
        raise ConfigError("model must be wrapped to be unwrapped, it has no table in tiers")
    for runtime in runtimes.values():
        runtime.close()
    return model


def _check_free(model: nn.Module) -> None:
    """Raise ConfigError where ids are raw, or where a weight is still part of the graph of a loss, which would keep the tiers."""
    gc.collect()  # graphs that nobody holds any more may stand in circles
    for name, module in model.named_modules():
        if isinstance(module, TieredModule) and module.raw_ids is not None:
            raise ConfigError(f"model must have ids that are rows to be unwrapped, those of {name or 'it'} are raw")
        held: dict[str, Any] = {**tiered_weights(module)}
        for key, weight in held.items():
            if weight._use_count() > 2:  # itself, and the node that adds up its gradient
                path = f"{name}.{key}" if name else key
                raise ConfigError(
                    f"a loss or view that was computed from {path} must not be held when it is unwrapped: del it before"
                )


def _move_back(weight: TieredWeight, optimizer: torch.optim.Optimizer | None, sparse: bool) -> None:
    """Turn a weight into an ordinary parameter, the same object for all who hold it. A gradient that waits is a sparse tensor
    afterwards if the module makes such."""
    plain, gradient = nn.Parameter(weight.whole(), weight.requires_grad), weight.grad
    runtime, table = weight.runtime, weight.table
    entry = runtime.row_state(table)
    owner = None if entry is None else entry.leave()
    weight.grad = None
    torch.utils.swap_tensors(weight, plain)
    if gradient is not None:
        if isinstance(gradient, RowGradient):
            summed = torch.sparse_coo_tensor(gradient.rows[None], gradient.values.to(weight.dtype), weight.shape)
            gradient = summed.coalesce() if sparse else summed.to_dense()
        weight.grad = gradient
    if optimizer is None or optimizer is owner or all(one is not weight for g in optimizer.param_groups for one in g["params"]):
        return
    if state := runtime.optimizer_state(table):
        optimizer.state[weight] = state


def _report(runtime: EmbeddingRuntime, paths: list[str], left: list[tuple[str, str]]) -> WrapReport:
    specs = runtime.space.tables
    replaced = [f"{names}: {spec.rows:,} rows x {spec.dim}" for names, spec in zip(paths, specs, strict=True)]
    stats, rules = runtime.stats(), runtime.rates.name
    budget = ByteSize(stats.budget_bytes).human_readable()
    ranks = runtime.rows.group.ranks
    owners = "" if ranks == 1 else f", each owned by one of {ranks} ranks"
    summary = (
        f"{len(replaced)} table{'s' if len(replaced) > 1 else ''}, {runtime.space.rows:,} rows in two tiers{owners}: "
        f"policy {stats.policy}, updates {rules}, "
        f"up to {budget} of hot rows on {runtime.device}"
    )
    return WrapReport(tuple(replaced), tuple(left), summary)
