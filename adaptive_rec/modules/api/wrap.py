"""`wrap`: move the tables of a model's ``nn.Embedding``s and ``nn.EmbeddingBag``s into two tiers, in place."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from pydantic import ByteSize
from torch import Tensor, nn

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError, first_line
from adaptive_rec.modules.api.bag import AdaptiveEmbedding, AdaptiveEmbeddingBag
from adaptive_rec.modules.api.collection import AdaptiveEmbeddingBagCollection
from adaptive_rec.modules.api.options import Options, rates_from, setup_from
from adaptive_rec.modules.api.raw_id_modules import take_raw_ids
from adaptive_rec.modules.api.wrap_raw import Keys, RawTable, check_same_raw_ids, raw_tables
from adaptive_rec.modules.api.wrap_tables import MovableTable, change_places, has_hooks, tables_of, weight_type
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.rates import Rates, rates_of_optimizers
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.watch import LOG
from adaptive_rec.modules.tensors.data_parallel import check_not_parallel
from adaptive_rec.modules.tensors.optimizer_steps import (
    check_state_begins_with_zeros,
    follow_optimizers,
    hand_over_state,
    take_state_back,
)
from adaptive_rec.modules.tensors.tiered_module import TieredModule, tiered_class
from adaptive_rec.modules.tensors.tiered_parameters import TieredParameters, tiered_weights
from adaptive_rec.modules.tensors.weight import TieredWeight
from adaptive_rec.units import printable

ADAPTIVE: dict[type[nn.Module], type[nn.Module]] = {nn.EmbeddingBag: AdaptiveEmbeddingBag, nn.Embedding: AdaptiveEmbedding}


@dataclass(frozen=True)
class WrapReport:
    """The modules of a model whose tables `wrap` moved into tiers, and those that it left."""

    replaced: tuple[str, ...]
    """Paths of these modules, with the sizes of their tables."""
    left: tuple[tuple[str, str], ...]
    """Paths of modules with embeddings, and of parameters that may be tables, that were left as they are, each with the
    reason."""
    summary: str

    def __str__(self) -> str:
        kept = [f"left as it is: {name}, {reason}" for name, reason in self.left]
        return "\n".join([self.summary, *(f"  {line}" for line in (*self.replaced, *kept))])


class WrappedRuntime(EmbeddingRuntime):
    """The runtime of a wrapped model."""

    report: WrapReport

    def report_tables(self, paths: list[str], left: list[tuple[str, str]]) -> None:
        """Make the report of the tables that were moved, by the paths of their modules, and of those that were left."""
        specs, raw, ranks = self.space.tables, self.raw_ids, self.rows.group.ranks
        known = [f", {len(raw.keys_and_rows(number)[0]):,} with a raw id" if raw else "" for number in range(len(specs))]
        named = zip(paths, specs, known, strict=True)
        replaced = [f"{names}: {spec.rows:,} rows x {spec.dim}{ids}" for names, spec, ids in named]
        stats, owners = self.stats(), "" if ranks == 1 else f", each owned by one of {ranks} ranks"
        summary = (
            f"{len(replaced)} table{'s' if len(replaced) > 1 else ''}, {self.space.rows:,} rows in two tiers{owners}: "
            f"policy {stats.policy}, updates {self.tables.rates.name}, "
            f"up to {ByteSize(stats.budget_bytes).human_readable()} of hot rows on {self.device}"
        )
        self.report = WrapReport(tuple(replaced), tuple(left), summary)


def wrap(
    model: nn.Module,
    *,
    device: torch.device | str | None = None,
    keys: Keys | None = None,
    tables: Sequence[str] = (),
    **options: Unpack[Options],
) -> WrappedRuntime:
    """Move the tables of a model's `nn.Embedding` and `nn.EmbeddingBag` modules into two tiers, in place, and keep their rows.
    Returns the runtime that they share.

    ``budget=``: device memory for hot rows and their optimizer state ("2GiB"). ``optimizer=``: an optimizer of torch.optim that
    holds the tables' weights (docs/models.md names those that rows can follow), or a list of optimizers of which each table has
    one, or the class of one that will be made. Rows are then updated in its ``step()``, as it would update ordinary parameters:
    with its state, the learning rate that its param group has at that time, and the gradients that backward passes, clipping
    and ``GradScaler`` have left. Or the name of a rule, with ``lr=``: rows are then updated at the end of each backward pass.
    Wrap a model after it was moved to its device. `device`: the device of looked-up vectors, by default that of the model's
    other parameters. See `Options` for the rest.

    ``ids="raw"``: the modules that ``keys=`` names are given raw ids from now on, others are left as they are. ``keys`` has for
    each name the ids (K) of the table's first K rows, which keep their values and optimizer state, or None: its rows are dropped,
    and begin anew as ids get them. A padding_idx stays, as an id.

    `tables`: names of parameters of the model that are tables too, from which it reads rows (``self.table[ids]``,
    ``F.embedding(ids, self.table)``). Parameters that may be tables are listed in ``runtime.report``.

    Where the script has a process group of several ranks, they share the tables, and each of them must make every call.

    Weights stay the parameters that they were (`TieredWeight`), so whoever holds one goes on to hold it.

    Raises ConfigError, and leaves the model as it was, where no table can be moved or rows could not be updated as requested.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module, got an object of {type(model).__name__}")
    check_not_parallel(model)
    in_backward = isinstance(options.get("optimizer"), str) or options.get("update") == "backward"
    movable, left = tables_of(model, in_backward, tables)
    raw: list[RawTable] = []
    if options.get("ids") == "raw":
        if tables:
            raise ConfigError(f'tables must be left out where ids="raw": keys names modules, got {", ".join(tables)}')
        raw = raw_tables(movable, left, keys)
        movable = [each.table for each in raw]
    elif keys is not None:
        raise ConfigError(f'keys must be left out unless ids="raw", got those of {", ".join(keys)}')
    for table in movable:
        _check_movable(table)
    weights = [table.weight for table in movable]
    dtype, place = weight_type(weights), torch.device(device) if device is not None else _place(model, weights)
    holder_T: Sequence[torch.optim.Optimizer | None] = [None] * len(movable)
    rates: Rates | Sequence[Rates]
    if given := _optimizers(options):
        rates, holder_T = rates_of_optimizers(given, {each.name: each.weight for each in movable}, in_backward)
    else:
        rates = rates_from(options)
    if given and (extra := [name for name in ("lr", "eps", "betas") if options.get(name) is not None]):
        raise ConfigError(f"{extra[0]} must be left to the optimizer that is given, got {options[extra[0]]}")  # type: ignore[literal-required]
    for holder in given if raw else ():
        check_state_begins_with_zeros(holder)
    setup = replace(setup_from(options, place), padded=any(each.padding_idx is not None for each in raw))
    check_same_raw_ids(setup.group, raw)
    specs = [TableSpec(each.name, setup.rows_of_table(len(each.weight)), each.weight.shape[1]) for each in movable]
    runtime = WrappedRuntime(specs, setup, rates, dtype)
    if in_backward and (pending := [table.name for table in movable if _has_gradient(table.weight)]):
        LOG.warning("wrap drops the gradients of %s: no later optimizer step will use them", printable(", ".join(pending)))
    follow_optimizers(runtime)
    del weights
    for number, each in enumerate(raw):
        each.move(runtime, number, holder_T[number])
    paths = [_move(runtime, number, table, holder_T[number]) for number, table in enumerate(movable)]
    runtime.report_tables(paths, left)
    return runtime


def _optimizers(options: Options) -> list[torch.optim.Optimizer]:
    """Return the optimizers that are given; none where a rule or a class is. Raises ConfigError."""
    given = options.get("optimizer")
    if isinstance(given, torch.optim.Optimizer):
        return [given]
    if not isinstance(given, (list, tuple)):
        return []
    if wrong := [one for one in given if not isinstance(one, torch.optim.Optimizer)]:
        shown = wrong[0].__name__ if isinstance(wrong[0], type) else repr(wrong[0])
        raise ConfigError(f"a list given as optimizer must be of optimizers of torch.optim that hold the tables, got {shown}")
    if not given or len({id(one) for one in given}) < len(given):
        raise ConfigError(f"a list given as optimizer must have each optimizer once, got {len(given)} of them")
    return list(given)


def _check_movable(table: MovableTable) -> None:
    """Raise ConfigError where torch lets no other tensor take the place of a table's weight, as something else refers to it."""
    place = nn.Parameter(torch.empty(0))
    try:
        torch.utils.swap_tensors(table.weight, place)
    except RuntimeError as error:
        raise ConfigError(
            f"the weight of table {table.name} must be free to move, and something beside modules and optimizers refers to it; "
            f"call wrap before DistributedDataParallel, and drop losses of earlier steps (torch: {first_line(error)})"
        ) from None
    torch.utils.swap_tensors(table.weight, place)


def _has_gradient(weight: Tensor) -> bool:
    grad = weight.grad
    return grad is not None and bool((grad._values() if grad.is_sparse else grad).any())


def _place(model: nn.Module, weights: Sequence[Tensor]) -> torch.device:
    """Return the device of the model's other parameters, or else that of its tables. Raises ConfigError for several."""
    own = {id(weight) for weight in weights}
    others = [parameter for parameter in model.parameters() if id(parameter) not in own]
    places = sorted({str(each.device) for each in others or weights})
    if len(places) > 1:
        raise ConfigError(
            f"device must be given where {'parameters' if others else 'tables'} lie on several devices, got {', '.join(places)}: "
            "the vectors of all tables are on one"
        )
    return torch.device(places[0])


def _move(runtime: EmbeddingRuntime, number: int, table: MovableTable, holder: torch.optim.Optimizer | None) -> str:
    """Move a table's rows and their optimizer state into the tiers. Its weight stays the same object, for all who hold it.
    Returns the paths of its modules."""
    weight = table.weight
    if runtime.raw_ids is None:
        runtime.weights.set_first_rows(number, lambda rows: rows.copy_(weight))
    gradient = None if runtime.updates_in_backward or runtime.raw_ids is not None else weight.grad
    weight.grad = None
    memory: Tensor = TieredWeight(runtime, number)
    change_places(weight, memory)
    assert isinstance(weight, TieredWeight)
    runtime.weights.hold(number, weight)
    if runtime.raw_ids is None:  # state dictionaries of before hold this memory, which steps no longer change
        runtime.weights.copies[number].add(memory, weight._version)
    if gradient is not None:
        weight.grad = _row_gradient(weight, gradient) if gradient.is_sparse else gradient
    if holder is not None and holder.state.get(weight):  # else it has no state before its first step, as in torch
        hand_over_state(holder, weight)
    for name, module in table.modules:
        if not isinstance(module, TieredParameters):
            plain: Any = type(module)
            module.__class__ = ADAPTIVE.get(plain) or tiered_class(plain)
        if name:
            runtime.register(name, module)  # type: ignore[arg-type]
    return ", ".join(name for name, _ in table.modules if name) or table.name


def _row_gradient(weight: TieredWeight, gradient: Tensor) -> RowGradient:
    """Return a sparse gradient as one of rows."""
    summed = gradient.coalesce()
    first_row = weight.runtime.space.table_range(weight.table)[1]
    return weight.runtime.rows.gradient_type(weight, None, first_row, (summed.indices()[0], summed.values()))


def unwrap(
    model: nn.Module, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None
) -> nn.Module:
    """Turn a wrapped model into an ordinary one again, in place, with the rows as they are, and close its runtimes. Returns it.

    The tables must fit in memory, on the device of the looked-up vectors. `optimizer`: one that holds the weights, or a
    list of such. It goes on as if they had never been wrapped: with the optimizer state of the rows, or with what it has loaded
    since; a new one begins without a state, as in torch, unless no optimizer has the rows' state. Modules that take raw ids go
    on to take them (`RawIdEmbedding`, `RawIdEmbeddingBag`), as in evaluation: no id gets a row any more. Raises ConfigError where
    no table is in tiers.
    """
    _check_free(model)
    runtimes, optimizers = {}, _optimizers({"optimizer": optimizer})
    tiered = [module for module in model.modules() if isinstance(module, TieredModule)]
    raw = {module: module.raw_rows() for module in tiered if module.raw_ids is not None}
    for name, module in model.named_modules():
        for weight in tiered_weights(module).values():
            runtimes[id(weight.runtime)] = weight.runtime
            _move_back(weight, optimizers, sparse=bool(getattr(module, "sparse", False)))
        if isinstance(module, TieredParameters):
            plain: Any = module.plain_class
            module.__class__ = plain
            if module in raw:
                take_raw_ids(module, *raw[module])
        elif isinstance(module, AdaptiveEmbeddingBagCollection):
            raise ConfigError(f"model must have modules of torch to unwrap, {name or 'it'} is an AdaptiveEmbeddingBagCollection")
    if not runtimes:
        raise ConfigError("model must be wrapped to be unwrapped, it has no table in tiers")
    for runtime in runtimes.values():
        runtime.close()
    return model


def _check_free(model: nn.Module) -> None:
    """Raise ConfigError where a loop looks ahead, or where a weight has hooks, or is still part of the graph of a loss, which
    would keep the tiers."""
    gc.collect()  # graphs that nobody holds any more may stand in circles
    for name, module in model.named_modules():
        held: dict[str, Any] = {**tiered_weights(module)}
        for key, weight in held.items():
            path = f"{name}.{key}" if name else key
            if weight.runtime.looks_ahead:
                raise ConfigError(
                    f"no loop over prefetch must be under way when {path} is unwrapped, as it looks its rows up ahead: leave the "
                    "loop before, and drop its iterator"
                )
            weight.runtime.weights.check_no_lost_writes(weight.table, "the model is unwrapped")
            if has_hooks(weight, but_of=weight.runtime.weights):
                raise ConfigError(f"{path} must have no hooks when it is unwrapped, as they would be lost: remove them before")
            if weight._use_count() > 2:  # itself, and the node that adds up its gradient
                raise ConfigError(
                    f"a loss or view that was computed from {path} must not be held when it is unwrapped: del it before"
                )


def _move_back(weight: TieredWeight, optimizers: Sequence[torch.optim.Optimizer], sparse: bool) -> None:
    """Turn a weight into an ordinary parameter, the same object for all who hold it. A gradient that waits is a sparse tensor
    afterwards if the module makes such."""
    rows, gradient = weight.whole(), weight.grad
    for optimizer in optimizers:
        take_state_back(optimizer, weight)
    if (entry := weight.runtime.states.entry(weight.table)) is not None:
        entry.leave()
    weight.grad = None
    change_places(weight, nn.Parameter(weight.leave(rows), weight.requires_grad))  # nothing is refused from here on
    if gradient is not None:
        if isinstance(gradient, RowGradient):
            summed = torch.sparse_coo_tensor(
                gradient.rows[None], gradient.values.to(weight.dtype), weight.shape, check_invariants=False
            )
            gradient = summed.coalesce() if sparse else summed.to_dense()
        weight.grad = gradient
