"""Weighted sums of rows that were looked up one by one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from adaptive_rec.modules.loop.uploads import to_device


def weighted_sums(rows_ND: Tensor, weights_N: Tensor | None, offsets: Tensor) -> Tensor:
    """Sum bags of vectors with weights, to (bags, D); `offsets` include the end of the last bag."""
    device = rows_ND.device
    numbers = torch.arange(len(rows_ND), device=device)
    weights_N = None if weights_N is None else to_device(weights_N, device)
    if not len(rows_ND):
        nothing = rows_ND.sum() + (0 if weights_N is None else weights_N.sum())
        return rows_ND.new_zeros((len(offsets) - 1, rows_ND.shape[1])) + nothing
    return embedding_bag(
        numbers, rows_ND, to_device(offsets, device), mode="sum", per_sample_weights=weights_N, include_last_offset=True
    )
