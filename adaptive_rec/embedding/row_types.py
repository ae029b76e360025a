"""Conversion of 16-bit rows between torch's types and the bit patterns of the kernels (see `kernels/rows16.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FP16_LIMIT = 65504
"""The largest number of half precision."""

NUMPY_DTYPE = {torch.float32: np.float32, torch.float64: np.float64}
"""Types of optimizer state, and of rows that are not of 16 bits."""

_PATTERNS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_NUMBERS = {patterns: numbers for numbers, patterns in _PATTERNS.items()}


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return the memory of a CPU tensor as an array; 16-bit floats become bit patterns."""
    array: NDArray[Any] = tensor.view(_PATTERNS.get(tensor.dtype, tensor.dtype)).numpy()
    return array


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return the memory of an array as a tensor; bit patterns become 16-bit floats."""
    tensor = torch.from_numpy(array)
    return tensor.view(_NUMBERS.get(tensor.dtype, tensor.dtype))


def has_infinity(table_RD: NDArray[Any], row: int) -> bool:
    """Return whether a row of half precision has a component that is infinite or not a number."""
    return table_RD.dtype == np.int16 and not bool(np.isfinite(table_RD[row].view(np.float16)).all())
