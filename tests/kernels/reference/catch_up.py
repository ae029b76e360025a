"""Plain NumPy twin of `catch_up.py`: every missed step is made, as torch's Adam and AdamW make it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def catch_up_row(
    weights_D: Array, state_K: Array, lr_S: Array, first: int, betas: tuple[float, float], eps: float, weight_decay: float
) -> None:
    """Make the steps up to number ``first + len(lr_S)`` that a row missed; the rates of the steps are `lr_S`."""
    dim = len(weights_D)
    done = int(state_K[2 * dim])
    for number in range(done + 1, first + len(lr_S) + 1):
        lr = lr_S[number - first - 1]
        weights_D *= 1 - lr * weight_decay
        state_K[:dim] *= betas[0]
        state_K[dim : 2 * dim] *= betas[1]
        root = np.sqrt(state_K[dim : 2 * dim]) / np.sqrt(1 - betas[1] ** number) + eps
        weights_D -= lr / (1 - betas[0] ** number) * state_K[:dim] / root
    state_K[2 * dim] = first + len(lr_S)
