"""A client: a model of a foreign library, as that library's user trains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CHANGED_LINES = 2
"""Lines of a loop that change: ``import adaptive_rec`` and the call of `adaptive_rec.wrap`."""


@dataclass(frozen=True)
class Client:
    """One model with its batches and its loss. The same seed makes the same model."""

    library: str
    name: str
    make: Callable[[], nn.Module]
    """Return a new model, in float64."""
    batches: Callable[[int], Sequence[Any]]
    """Return this many batches. A step may change its batch: trials train on copies."""
    loss: Callable[[nn.Module, Any], Tensor]
    """Return the loss of a batch, a tensor of one number."""
    loop: Callable[[Any, torch.optim.Optimizer, Sequence[Any]], list[float]] | None = None
    """Train with an optimizer on batches and return the losses, where the loop is that of a library."""
    changed_lines: int = CHANGED_LINES


def in_float64() -> None:
    """Let this process compute in float64, also where a library asks for ``torch.float`` or calls ``Tensor.float()``."""
    torch.set_default_dtype(torch.float64)
    torch.float, torch.cfloat = torch.float64, torch.complex128  # type: ignore[misc]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[misc]


def ids(dice: torch.Generator, rows: int, *shape: int, first: int = 0) -> Tensor:
    """Return popular and rare ids from `first` to rows - 1."""
    return first + ((rows - first) * torch.rand(*shape, generator=dice, dtype=torch.float64) ** 3).long()
