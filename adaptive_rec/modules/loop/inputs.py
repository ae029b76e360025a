"""Inputs of `torch.nn.EmbeddingBag`, as arrays of ids and offsets of bags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.kernels.lookups import are_bounds

INTEGERS = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Jagged:
    """N ids in L bags, with a weight for each id where they are weighted."""

    ids_N: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """L + 1 bounds of the bags, from 0 to N."""
    weights_N: Tensor | None = None

    def without(self, id_: int) -> Jagged:
        """Return the same bags without a padding id."""
        keep_N = self.ids_N != id_
        if keep_N.all():
            return self
        kept_N1 = np.concatenate([[0], np.cumsum(keep_N)])
        weights_N = (
            None if self.weights_N is None else self.weights_N[torch.from_numpy(keep_N).to(self.weights_N.device)]
        )
        return Jagged(self.ids_N[keep_N], kept_N1[self.offsets], weights_N)


def bags_of(
    input: Tensor, offsets: Tensor | None, weights: Tensor | None, include_last_offset: bool, padding_idx: int | None
) -> Jagged:
    """Read the arguments of ``nn.EmbeddingBag.forward``, without the lookups of `padding_idx`. Raises ValueError where they do
    not fit together."""
    check_integers("input", input)
    if weights is not None and weights.shape != input.shape:
        raise ValueError(
            f"per_sample_weights must have the shape of input, {tuple(input.shape)}, got {tuple(weights.shape)}"
        )
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError("offsets must not be given with a 2-D input, whose rows are bags of equal length")
        bounds = np.arange(len(input) + 1, dtype=np.int64) * input.shape[1]
    elif input.dim() == 1:
        bounds = _bounds(offsets, len(input), include_last_offset)
        if padding_idx is not None and len(bounds) > 1:
            bounds[-1] = len(input)  # torch: with a padding id the last bag has all ids that are left
    else:
        raise ValueError(f"input must be 1-D or 2-D, got {input.dim()} dimensions")
    used = int(bounds[-1])
    ids_N = as_ids(input if input.dim() == 1 else input.reshape(-1))
    kept_weights = None if weights is None else weights.reshape(-1)[:used]
    found = Jagged(ids_N if used == len(ids_N) else ids_N[:used], bounds, kept_weights)
    return found if padding_idx is None else found.without(padding_idx)


def _bounds(offsets: Tensor | None, lookups: int, include_last_offset: bool) -> NDArray[np.int64]:
    """Return the L + 1 bounds of the bags of a 1-D input."""
    if offsets is None or offsets.dim() != 1:
        got = "none" if offsets is None else f"{offsets.dim()} dimensions"
        raise ValueError(f"offsets must be a 1-D tensor where input is 1-D, got {got}")
    check_integers("offsets", offsets)
    given = as_ids(offsets)
    if include_last_offset and not len(given):
        raise ValueError(
            "offsets must hold at least the end of the last bag where include_last_offset is set, got none"
        )
    # A copy, as the backward pass reads it again.
    bounds = np.empty(len(given) + (not include_last_offset), dtype=np.int64)
    bounds[-1] = lookups
    bounds[: len(given)] = given
    if not are_bounds(bounds, lookups):
        if bounds[0] != 0:
            raise ValueError(f"offsets[0] must be 0, got {bounds[0]}")
        raise ValueError(f"offsets must rise, up to the length of input, {lookups}; got {bounds.tolist()[:8]} ...")
    return bounds


def check_integers(name: str, tensor: Tensor) -> None:
    """Raise ValueError for a tensor that does not hold ids."""
    if tensor.dtype not in INTEGERS:
        raise ValueError(f"{name} must be of torch.int32 or torch.int64, got {tensor.dtype}")


def as_ids(tensor: Tensor) -> NDArray[np.int64]:
    """Return integers as an array of 64 bits each, in host memory."""
    array: NDArray[Any] = tensor.numpy(force=True)
    return np.ascontiguousarray(array, dtype=np.int64)


def why_no_raw_ids(given_K2: Tensor, first: int, end: int) -> str:
    """Return why a table whose raw ids may have the rows from `first` to `end` cannot have these ids with the numbers of their
    rows (K, 2), or nothing."""
    if given_K2.dtype != torch.int64 or given_K2.dim() != 2 or given_K2.shape[1] != 2:
        return f"must be of shape (K, 2) and int64, got {tuple(given_K2.shape)} and {given_K2.dtype}"
    if len(given_K2) > end - first:
        return f"must be at most {end - first}, got {len(given_K2)}"
    row_K = given_K2[:, 1]
    if len(row_K) and not first <= int(row_K.min()) <= int(row_K.max()) < end:
        return f"must have rows in [{first}, {end}), after those that are shared, got {row_K.min()} to {row_K.max()}"
    for column, what in enumerate(("ids", "rows")):
        if len(torch.unique(given_K2[:, column])) < len(given_K2):
            return f"must have different {what}, some are given twice"
    return ""
