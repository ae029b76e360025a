"""Copies to a device that do not make the host wait for it."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(given: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. From pageable host memory CUDA copies only while the host waits, so it is pinned first."""
    if device.type != "cuda" or given.device.type != "cpu":
        return given.to(device)
    return given.pin_memory().to(device, non_blocking=True)
