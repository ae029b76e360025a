"""Vectors on their way between hosts: as they are, or rounded to bfloat16, which halves their bytes and is not exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def packed(vectors: NDArray[Any], rounded: bool) -> NDArray[Any]:
    """Return vectors as they are sent. Rounding is to the nearest number."""
    if not rounded:
        return vectors
    patterns: NDArray[Any] = torch.from_numpy(np.ascontiguousarray(vectors)).bfloat16().view(torch.int16).numpy()
    return patterns


def unpack_vectors(sent: NDArray[Any], rounded: bool) -> NDArray[Any]:
    """Return vectors that were sent, in float32 where they were rounded."""
    if not rounded:
        return sent
    vectors: NDArray[Any] = torch.from_numpy(sent).view(torch.bfloat16).float().numpy()
    return vectors
