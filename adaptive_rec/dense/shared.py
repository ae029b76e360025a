"""The dense part of a run of several processes: a copy on every rank, updated by the sum of all ranks' gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from adaptive_rec.dense.eager import DensePart, scale_down
from adaptive_rec.dense.replayed import ReplayedDense
from adaptive_rec.system.group import Group

if TYPE_CHECKING:
    from adaptive_rec.embedding.staged.link import Link


class SharedDense(DensePart):
    """A dense part whose gradients and losses are added up over the ranks, all at once, while rows are updated."""

    def __init__(self, group: Group, *parts: Any) -> None:
        super().__init__(*parts)
        self.group = group
        self._sum: tuple[list[Tensor], Tensor] | None = None
        """What `share` has begun, once it has ended."""

    def share(self) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        figures = torch.stack([self.step_loss, torch.tensor(float(self._taken))]).to(self.dtype)
        self._summed = [*gradients, figures]
        self._flat = _flatten_dense_tensors(self._summed)
        self._wait = self.group.add_later("dense", self._flat.numpy())

    def clip(self, limit: float, pooled: list[Tensor]) -> None:
        gradients, _ = self._sums()
        scale_down(gradients, pooled, limit)

    def step(self, factor: float) -> None:
        gradients, figures = self._sums()
        self._sum = None
        loss, micro_batches = figures.tolist()
        self.step_loss.fill_(loss)
        if not micro_batches:  # no rank trained a sample
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        super().step(factor)

    def _sums(self) -> tuple[list[Tensor], Tensor]:
        """Wait for the sums over the ranks. Returns the parameters' gradients, and the loss with the micro-batches run."""
        if self._sum is None:
            self._wait()
            *gradients, figures = _unflatten_dense_tensors(self._flat, self._summed)
            self._sum = gradients, figures
        return self._sum


class SharedReplayed(ReplayedDense):
    """The same on devices: gradients, losses and norms are added up from device to device, after the replays."""

    def __init__(self, group: Group, link: Link, *parts: Any) -> None:
        super().__init__(*parts)
        self.group = group
        self._link = link
        self._flat = _flatten_dense_tensors(self.parameter_gradients)
        """The parameters' gradients, which are views of it."""
        self.parameter_gradients = list(_unflatten_dense_tensors(self._flat, self.parameter_gradients))
        for parameter, gradient in zip(self.parameters, self.parameter_gradients, strict=True):
            parameter.grad = gradient
        self._trained = False
        """Whether some rank trained a sample in this step."""

    def share(self) -> None:
        self._trained = self.group.any_true(self._last is not None or self._kept_lines > 0)
        self._zeroed = False
        self._link.add("dense", self._flat)
        self._link.add("dense", self._step_sums)

    def step(self, factor: float) -> None:
        if self._trained:
            super().step(factor)
        else:
            self.streams.launch(self._count_step)
