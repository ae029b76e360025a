"""16-bit rows between torch, which has types for them, and the kernels, which take bit patterns (see `kernels/rows16.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PATTERNS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_NUMBERS = {patterns: numbers for numbers, patterns in _PATTERNS.items()}


def as_array(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor on the CPU, as the kernels take it: 16-bit floats are bit patterns."""
    array: NDArray[Any] = tensor.view(_PATTERNS.get(tensor.dtype, tensor.dtype)).numpy()
    return array


def as_tensor(array: NDArray[Any]) -> Tensor:
    """The same the other way round."""
    tensor = torch.from_numpy(array)
    return tensor.view(_NUMBERS.get(tensor.dtype, tensor.dtype))


def has_infinity(table_RD: NDArray[Any], row: int) -> bool:
    """Whether a row of half precision has a component that is infinite or not a number."""
    return table_RD.dtype == np.int16 and not bool(np.isfinite(table_RD[row].view(np.float16)).all())
