"""Updates of rows in the ``step()`` of torch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.rates import lr_at, row_rule_of
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.row_states import RowState
from adaptive_rec.modules.loop.steps import LoopSteps
from adaptive_rec.modules.tensors.weight import TieredWeight

IN_BACKWARD: WeakSet[LoopSteps] = WeakSet()
"""Steps of loops that update rows in the backward pass."""
Given = tuple[tuple[Any, ...], dict[str, Any]]


def follow_optimizers(runtime: EmbeddingRuntime) -> None:
    """Have every optimizer update the rows of the weights that it holds in its ``step()``, or, where rows are updated in the
    backward pass, have the runtime know of its steps."""
    if runtime.updates_in_backward:
        IN_BACKWARD.add(runtime.steps)
    _register_hooks()


@cache
def _register_hooks() -> None:
    """Register with torch what is done before and after the steps of all optimizers. Rows are updated by the last hook of the
    optimizer itself: hooks of the user's own, which come before it, may change gradients. A compiled step calls
    them uncompiled."""
    taken: dict[int, list[tuple[TieredWeight, Tensor]]] = {}
    last_hooks: WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = WeakKeyDictionary()
    update = torch.compiler.disable(_update)

    @torch.compiler.disable
    def before(optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        for steps in IN_BACKWARD:
            steps.optimizer_stepped()
        if not holds_rows(optimizer):
            return
        if optimizer not in last_hooks:
            last_hooks[optimizer] = optimizer.register_step_pre_hook(step_rows)
        own, number = optimizer._optimizer_step_pre_hooks, last_hooks[optimizer].id
        own[number] = own.pop(number)  # behind those that were registered since

    @torch.compiler.disable
    def step_rows(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
        if not holds_rows(optimizer):
            return None
        optimizer_itself, *rest = args  # torch passes the optimizer first
        closure = rest[0] if rest else kwargs.get("closure")
        if closure is None:
            taken[id(optimizer)] = _update(optimizer)
            return None

        def closure_then_rows() -> Any:
            loss = closure()
            taken[id(optimizer)] = update(optimizer)
            return loss

        if rest:
            return (optimizer_itself, closure_then_rows, *rest[1:]), kwargs
        return args, {**kwargs, "closure": closure_then_rows}

    @torch.compiler.disable
    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            for weight, gradient in taken.pop(id(optimizer), ()):
                weight.grad = gradient  # as torch leaves it, until zero_grad

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def holds_rows(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has weights whose rows are in tiers."""
    return any(isinstance(one, TieredWeight) for group in optimizer.param_groups for one in group["params"])


def _update(optimizer: torch.optim.Optimizer) -> list[tuple[TieredWeight, Tensor]]:
    """Update the rows of all weights of an optimizer that have a gradient. Their gradients are taken away, so that the optimizer
    passes them over, and returned."""
    with torch._C.DisableTorchFunctionSubclass():  # reads and writes of `grad` go to torch at once
        found = [
            (one, gradient, group)
            for group in optimizer.param_groups
            for one in group["params"]
            if isinstance(one, TieredWeight) and (gradient := one.grad) is not None
        ]
    change = _unscaling(optimizer)
    begins = not optimizer.state and all(_is_nothing(gradient, group) for _, gradient, group in found)
    runtimes = {id(weight.runtime): weight.runtime for weight, _, _ in found}.values()
    for runtime in runtimes:
        runtime.tables.life.check()
    for runtime in runtimes if len(runtimes) > 1 and change is not None else ():
        runtime.steps.check_gradients([(weight.table, gradient) for weight, gradient, _ in found if weight.runtime is runtime])
    for runtime in runtimes:
        own = [(weight, gradient, group) for weight, gradient, group in found if weight.runtime is runtime]
        followed = [(runtime.tables.rates.of(weight.table), group) for weight, _, group in own]
        for rates, group in {(id(rates), id(group)): (rates, group) for rates, group in followed}.values():
            rates.check_group(optimizer, group)
        for weight, _, _ in own:
            hand_over_state(optimizer, weight)
        if begins:
            runtime.states.begin([weight.table for weight, _, _ in own])
        elif change is not None:
            number_T = runtime.tables.steps_T + 1
            try:
                runtime.steps.step_rows(
                    [(w.table, change(gradient), lr_at(group, int(number_T[w.table]))) for w, gradient, group in own]
                )
            except Exception:
                for weight, _, _ in own:
                    runtime.states.withdraw(weight.table, weight, optimizer)
                raise
    with torch._C.DisableTorchFunctionSubclass():
        for weight, _, _ in found:
            weight.grad = None
    return [(weight, gradient) for weight, gradient, _ in found]


def _is_nothing(gradient: Tensor, group: Mapping[str, Any]) -> bool:
    """Return whether a weight is stepped as ``torch.distributed.checkpoint`` does it, so that an optimizer has a state to load
    into: with an ordinary gradient of zeros, and a learning rate of 0."""
    return not isinstance(gradient, RowGradient) and not float(group["lr"]) and not bool(gradient.any())


def hand_over_state(optimizer: torch.optim.Optimizer, weight: TieredWeight) -> None:
    """Have the tiers hold the state that an optimizer has for a weight.

    It made steps before, or loaded it, or somebody changed it. An optimizer without a state takes over what the tiers hold, if no
    other has it (after `wrap`, or a state that the runtime has loaded); otherwise it starts from nothing, as in torch.

    Raises ConflictError where it loaded what it had before later steps, without a copy."""
    runtime, table = weight.runtime, weight.table
    state: Any = optimizer.state
    found, current = state.get(weight), runtime.states.entry(table)
    if found is not None and found is current and not current.was_read:
        _check_writes(runtime, table)
        return
    if runtime.raw_ids is not None:
        check_state_begins_with_zeros(optimizer)
    if not found and (current is not None or not runtime.tables.steps_T[table]):
        found = _first_state(optimizer, weight)
    if found and current is None and runtime.tables.steps_T[table] and not found.get("step", 1):
        found = None  # Adagrad made it of zeros, before any step; the tiers hold a state that was loaded
    parts = _parts_of(runtime, table, found) if found else {}
    steps = int(found.get("step", 1)) if found else 0  # SGD numbers no steps: with a buffer the first one was made
    _check_not_outdated(runtime, table, found, parts)
    is_same = current is not None and (found is current or (bool(found) and _is_shown(current, optimizer, found)))
    had_state = current is not None
    if is_same:
        assert current is not None
        current.forget()
        state[weight] = current
    del current
    if had_state and not is_same:
        runtime.states.displace(table)
    if parts:
        runtime.states.take(table, list(parts.values()), steps)
        for part in parts.values():  # torch would go on with this very tensor
            runtime.states.copies[table].add(part, int(runtime.tables.steps_T[table]))
    elif had_state:
        runtime.states.clear(table)
    _check_writes(runtime, table)
    if not is_same:
        state.pop(weight, None)
        if runtime.tables.rates.rule_of(table).state_names and not runtime.updates_in_backward:
            state[weight] = runtime.states.new_entry(table, weight, optimizer)


def _first_state(optimizer: torch.optim.Optimizer, weight: TieredWeight) -> dict[str, Any] | None:
    """Return the state with which an optimizer that has none for a weight begins, where it is not of zeros: Adagrad's."""
    first = optimizer.defaults.get("initial_accumulator_value")
    return {"step": 0, "sum": torch.full(weight.shape, first, dtype=weight.dtype)} if first else None


def _parts_of(runtime: EmbeddingRuntime, table: int, found: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parts of a row's state that an optimizer has, by torch's names."""
    return {name: found[name] for name in runtime.tables.rates.rule_of(table).state_names if found.get(name) is not None}


def _is_shown(current: RowState, optimizer: torch.optim.Optimizer, found: Mapping[str, Any]) -> bool:
    """Whether an optimizer has loaded its own ``state_dict()`` as it is, which changes nothing."""
    return current.is_of(optimizer) and current.is_shown_by(found)


def _check_not_outdated(
    runtime: EmbeddingRuntime, table: int, found: Mapping[str, Any] | None, parts: Mapping[str, Tensor]
) -> None:
    """Raise ConflictError where an optimizer has loaded parts of a state that are those of before later steps."""
    copies, steps = runtime.states.copies[table], int(runtime.tables.steps_T[table])
    if found is None or not any(copies.is_outdated(part, steps) for part in parts.values()):
        return
    now = runtime.states.export(table)
    if int(found.get("step", steps)) != steps or any(not torch.equal(part, now[name]) for name, part in parts.items()):
        raise ConflictError(
            f"an optimizer must load a copy of an earlier state, that of table {runtime.space.tables[table].name} is what was "
            "read or loaded before later steps: in torch it would be the live state, and what the optimizer has for other "
            "parameters is live; keep copy.deepcopy(optimizer.state_dict()), and load a copy of it (copy.deepcopy) each time"
        )


def _check_writes(runtime: EmbeddingRuntime, table: int) -> None:
    """Raise ConflictError where somebody has written to a part of the state that was read before later steps."""
    if runtime.states.copies[table].has_lost_writes(but_of=int(runtime.tables.steps_T[table])):
        raise ConflictError(
            f"optimizer state of table {runtime.space.tables[table].name} that was read before the last step is a copy, and "
            "was written to: in torch that would have changed the state; to change it, read optimizer.state[weight] anew after "
            "each step"
        )


def take_state_back(optimizer: torch.optim.Optimizer, weight: TieredWeight) -> None:
    """Have an optimizer that holds a weight hold the state of its rows, too, before the weight leaves the tiers.

    It keeps a state of its own, which it has loaded. One that keeps other sums of a row than the tiers do gets nothing."""
    runtime, table = weight.runtime, weight.table
    group = next((group for group in optimizer.param_groups if any(one is weight for one in group["params"])), None)
    if group is None:
        return
    if _kept_names(optimizer, group) != runtime.tables.rates.rule_of(table).state_names:
        own = optimizer.state.get(weight) or {}
        own.update((name, part.contiguous()) for name, part in own.items() if isinstance(part, Tensor))
        return  # on a device Adagrad made sums of one value, without memory of a table's size
    if not runtime.updates_in_backward:
        hand_over_state(optimizer, weight)
        return
    loaded = optimizer.state.get(weight)
    if not (loaded and loaded.get("step", 1)) and (state := runtime.states.export(table)):
        optimizer.state[weight] = state


def _kept_names(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return torch's names for the parts of the state that an optimizer keeps of a row; None where rows cannot follow it."""
    try:
        _, rule = row_rule_of(optimizer, group)
    except ConfigError:
        return None
    return rule.state_names


def check_state_begins_with_zeros(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError where rows of ids that are new would begin with another state than that of other rows."""
    for group in optimizer.param_groups:
        if first := group.get("initial_accumulator_value"):
            rule = "initial_accumulator_value must be 0 where ids are raw, as rows begin with a state of zeros"
            raise ConfigError(f"{rule}, got {first}")


def _unscaling(optimizer: Any) -> Callable[[Tensor], Tensor] | None:
    """Return what is done to gradients for a fused optimizer, which ``GradScaler`` lets unscale by itself; None: leave the step
    out."""
    found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found_inf is not None and float(found_inf):  # a number where no gradient was there to look at
        return None
    if scale is None:
        return lambda gradient: gradient
    return lambda gradient: (
        gradient.each(lambda part: part / scale) if isinstance(gradient, RowGradient) else gradient / scale
    )
