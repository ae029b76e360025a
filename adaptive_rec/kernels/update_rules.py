"""The update rules of embedding rows, each declared once: code, options, optimizer state, the optimizers of torch it equals.

Settings, memory, checkpoints, `wrap`, the table of docs/models.md and the parameters of tests derive from `UPDATE_RULES`.
Beside its entry a rule is a branch in the kernel for CPUs (`row_update.py`) and in its plain twin (`reference/step.py`); if it
moves touched rows only, also in the kernel for devices (`triton_rows.py`).
``python -m adaptive_rec.kernels.update_rules`` prints the table of the docs.
"""

from __future__ import annotations

from dataclasses import dataclass

SGD, ROWWISE_ADAGRAD, ADAGRAD, LAZY_ADAM, MOMENTUM, RMSPROP, LION = range(7)
"""Codes, as kernels branch by them. MOMENTUM is SGD with a momentum buffer."""


@dataclass(frozen=True)
class StatePart:
    """A part of a row's optimizer state: one number for each component, or one for the row."""

    name: str
    """Its name in torch, or in the rule's paper."""
    option: str = ""
    """The option without which rows do not have it; empty: they always do."""
    per_row: bool = False


@dataclass(frozen=True)
class TorchOptimizer:
    """A class of torch.optim that updates rows by a rule."""

    name: str
    option: str = ""
    """The option without which it updates them by another rule, which stands before this one in the table."""
    every_row: bool = False
    """Whether it moves every row at every step, touched or not. With weight decay each optimizer does."""
    step: str = "tensor"
    """How its state has the number of steps: as a "tensor", a plain "number", or not at all ("none")."""
    state_at_once: bool = False
    """Whether it makes its state when it is made, not in its first step."""


@dataclass(frozen=True)
class UpdateRule:
    """A way to update a row by its gradient."""

    name: str
    code: int
    update: str
    """The update in one line; g: gradient with its L2 term, w: weights."""
    options: tuple[str, ...] = ()
    """Constants besides the learning rate, by torch's names."""
    state: tuple[StatePart, ...] = ()
    torch: tuple[TorchOptimizer, ...] = ()
    eps: float = 1e-8
    """Default in a loop of one's own, as in torch; that of a run is `optimizer.eps`, one for all rules."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Default of both."""
    corrects_bias: bool = False
    """Whether an update depends on the number of its step, as it corrects the bias of moments that began with zeros."""
    missed_steps: str = "stepwise"
    """How rows make the steps without a gradient that they missed (`embedding/missed_steps.py`): "linear", by a matrix; "series",
    by Adam's power series; or "stepwise"."""
    missed_l2_steps: str = "stepwise"
    """The same where the gradient is an L2 term."""

    @property
    def is_lazy(self) -> bool:
        """Whether it may move touched rows only. Settings name such rules; others update rows for an optimizer of torch."""
        return not self.torch or not all(one.every_row for one in self.torch)

    @property
    def is_compact(self) -> bool:
        """Whether a row's state is smaller than the row, whatever its dim."""
        return all(part.per_row for part in self.state)


UPDATE_RULES = (
    UpdateRule(
        "sgd", SGD, "w -= lr * g", torch=(TorchOptimizer("SGD"),), missed_steps="linear", missed_l2_steps="linear",
    ),
    UpdateRule(
        "rowwise_adagrad", ROWWISE_ADAGRAD, "s += mean(g²); w -= lr * g / (√s + eps)", ("eps",),
        state=(StatePart("square", per_row=True),),
    ),
    UpdateRule(
        "adagrad", ADAGRAD, "s += g²; w -= lr * g / (√s + eps)", ("eps",), state=(StatePart("sum"),),
        torch=(TorchOptimizer("Adagrad", state_at_once=True),), eps=1e-10,
    ),
    UpdateRule(
        "lazy_adam", LAZY_ADAM, "m = β₁m + (1 - β₁)g; v = β₂v + (1 - β₂)g²; w -= lr * m / (√v + eps), bias corrected",
        ("eps", "betas"), state=(StatePart("exp_avg"), StatePart("exp_avg_sq")),
        torch=(
            TorchOptimizer("SparseAdam", step="number"), TorchOptimizer("Adam", every_row=True),
            TorchOptimizer("AdamW", every_row=True),
        ),
        corrects_bias=True, missed_steps="series",
    ),
    UpdateRule(
        "lion", LION, "c = β₁m + (1 - β₁)g; m = β₂m + (1 - β₂)g; w -= lr * sign(c)", ("betas",), state=(StatePart("exp_avg"),),
        betas=(0.9, 0.99),
    ),
    UpdateRule(
        "momentum", MOMENTUM, "b = momentum * b + (1 - dampening)g; w -= lr * b, or lr * (g + momentum * b) where nesterov",
        ("momentum", "dampening", "nesterov"), state=(StatePart("momentum_buffer"),),
        torch=(TorchOptimizer("SGD", "momentum", every_row=True, step="none"),), missed_steps="linear", missed_l2_steps="linear",
    ),
    UpdateRule(
        "rmsprop", RMSPROP, "v = αv + (1 - α)g²; w -= lr * g / (√v + eps); √(v - mean²) where centered; a buffer with momentum",
        ("eps", "momentum", "alpha", "centered"),
        state=(StatePart("square_avg"), StatePart("grad_avg", "centered"), StatePart("momentum_buffer", "momentum")),
        torch=(TorchOptimizer("RMSprop", every_row=True),), missed_steps="linear",
    ),
)  # fmt: skip
RULE_OF_CODE = {rule.code: rule for rule in UPDATE_RULES}
NAMED_RULES = {rule.name: rule for rule in UPDATE_RULES if rule.is_lazy}
"""The rules that settings may name."""


def names_with(option: str) -> str:
    """Return the names of the rules that settings may name and that have an option, as a text."""
    return ", ".join(rule.name for rule in NAMED_RULES.values() if option in rule.options)


def torch_names() -> list[str]:
    """Return the names of torch's optimizers that rows follow, each once."""
    return list(dict.fromkeys(one.name for rule in UPDATE_RULES for one in rule.torch))


def torch_titles(every_row: bool) -> str:
    """Return the names of torch's optimizers that move every row, or touched rows only, each with the option that it needs."""
    found = [one for rule in UPDATE_RULES for one in rule.torch if one.every_row == every_row]
    return ", ".join(f"{one.name} with {one.option}" if one.option else one.name for one in found)


def as_markdown() -> str:
    """Return the table of docs/models.md, in Markdown."""
    lines = ["| rule | update | options | state of a row | in torch |", "|---|---|---|---|---|"]
    for rule in UPDATE_RULES:
        name = f"`{rule.name}`" if rule.is_lazy else rule.name
        parts = (f"{part.name}{' (one number)' * part.per_row}{part.option and f' ({part.option})'}" for part in rule.state)
        like = (f"{one.name} (every row)" if one.every_row else one.name for one in rule.torch)
        default = {"eps": f" {rule.eps:.0e}", "betas": f" {rule.betas}"} if rule.is_lazy else {}
        options = (option + default.get(option, "") for option in rule.options)
        cells = name, f"`{rule.update}`", ", ".join(options), ", ".join(parts), ", ".join(like)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
