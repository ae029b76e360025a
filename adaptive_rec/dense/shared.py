"""The dense part of a run of several processes: a copy on every rank, updated by the sum of all ranks' gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from adaptive_rec.dense.eager import DensePart
from adaptive_rec.system.group import Group


class SharedDense(DensePart):
    """A dense part whose gradients and losses are added up over the ranks, all at once, while rows are updated."""

    def __init__(self, group: Group, *parts: Any) -> None:
        super().__init__(*parts)
        self.group = group

    def share(self) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        figures = torch.stack([self.step_loss, torch.tensor(float(self._taken))]).to(self.dtype)
        self._summed = [*gradients, figures]
        self._flat = _flatten_dense_tensors(self._summed)
        self._wait = self.group.add_later("dense", self._flat.numpy())

    def step(self, factor: float) -> None:
        self._wait()
        *gradients, figures = _unflatten_dense_tensors(self._flat, self._summed)
        loss, micro_batches = figures.tolist()
        self.step_loss.fill_(loss)
        if not micro_batches:  # no rank trained a sample
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        super().step(factor)
