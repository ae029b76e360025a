"""Copies to a device that do not make the host wait for it, and weighted sums of rows there."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def to_device(given: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. From pageable host memory CUDA copies only while the host waits, so it is pinned first."""
    if device.type != "cuda" or given.device.type != "cpu":
        return given.to(device)
    return given.pin_memory().to(device, non_blocking=True)


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
