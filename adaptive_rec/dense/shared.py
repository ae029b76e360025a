"""The dense part of a run of several processes: a copy on every rank, updated by the sum of all ranks' gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from adaptive_rec.dense.eager import DensePart
from adaptive_rec.system.group import Group


class SharedDense(DensePart):
    """A dense part whose step adds up gradients and losses over the ranks first, all parameters at once."""

    def __init__(self, group: Group, *parts: Any) -> None:
        super().__init__(*parts)
        self.group = group

    def step(self, factor: float) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flat = _flatten_dense_tensors(gradients)
        self.group.add("dense", flat.numpy())
        sums = np.array([float(self.step_loss), float(self._taken)])
        self.group.add("dense", sums)
        self.step_loss.fill_(sums[0])
        if not sums[1]:  # no rank trained a sample
            return
        for parameter, gradient in zip(self.parameters, _unflatten_dense_tensors(flat, gradients), strict=True):
            parameter.grad = gradient
        super().step(factor)
