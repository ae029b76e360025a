"""The dot interaction of DLRM, forward and backward as one operation of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.kernels.columns import pick_columns
from adaptive_rec.kernels.jit import usable_threads


class DotInteraction(nn.Module):
    """Concatenates the bottom MLP's vector with the dot products of all pairs of V vectors: to (S, D + V (V - 1) / 2).

    In its backward the products' gradients form a symmetric matrix G, and G times the vectors is their gradient. Autograd would
    scatter G with atomics, multiply twice, and fill matrices with zeros to add slices to. On the CPU columns are picked by a
    kernel, which is several times faster than `index_select`.
    """

    def __init__(self, vectors: int, dim: int) -> None:
        super().__init__()
        self.width = dim + vectors * (vectors - 1) // 2
        low, high = torch.tril_indices(vectors, vectors, offset=-1)
        self.pairs: Tensor
        """Place of each product in a matrix (V, V), row after row."""
        self.register_buffer("pairs", low * vectors + high, persistent=False)
        place_VV = torch.full((vectors, vectors), -1, dtype=torch.int64)
        place_VV[low, high] = place_VV[high, low] = dim + torch.arange(len(low))
        self.columns: Tensor
        """Column of the output for each element of such a matrix; 0 for a vector and itself, which are not a pair."""
        self.register_buffer("columns", place_VV.flatten().clamp(min=0), persistent=False)
        self._for_kernel = self.pairs.numpy().copy(), place_VV.flatten().numpy().copy()
        """The same two as arrays, with -1 in place of 0."""

    def forward(self, first: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """`first` (S, D) is the bottom MLP's vector, `parts` (S, T, D) are the others; they are rounded to its precision."""
        with_kernel = first.device.type == "cpu" and not torch.compiler.is_compiling()
        pairs, places = self._for_kernel if with_kernel else (self.pairs, self.columns)
        outputs: Tensor = _Interact.apply(with_kernel, pairs, places, first, *parts)
        return outputs


class _Interact(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, with_kernel: bool, pairs: Any, places: Any, first: Tensor, *parts: Tensor) -> Tensor:
        ends = [1]
        for part in parts:
            ends.append(ends[-1] + part.shape[1])
        if with_kernel:
            vectors = first.new_empty((len(first), ends[-1], first.shape[1]))
            vectors[:, 0] = first
            for part, begin, end in zip(parts, ends[:-1], ends[1:], strict=True):
                vectors[:, begin:end] = part
        else:
            vectors = torch.cat([first.unsqueeze(1), *(part.to(first.dtype) for part in parts)], dim=1)
        ctx.save_for_backward(vectors, first, *parts)
        ctx.places, ctx.with_kernel, ctx.ends, ctx.dtypes = places, with_kernel, ends, [part.dtype for part in parts]
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        if not with_kernel:
            return torch.cat([first, products.index_select(1, pairs)], dim=1)
        outputs = first.new_empty((len(first), first.shape[1] + len(pairs)))
        outputs[:, : first.shape[1]] = first
        _pick(products.to(first.dtype), pairs, first.shape[1], outputs)  # autocast multiplies float32 in bf16
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        vectors, first, *parts = ctx.saved_tensors
        samples, count, dim = vectors.shape
        if torch.is_grad_enabled():  # the gradient is to be differentiated: every operation here must be, down to the inputs
            vectors = torch.cat([first.unsqueeze(1), *(part.to(first.dtype) for part in parts)], dim=1)
            places = torch.as_tensor(ctx.places, device=vectors.device).clamp(min=0)
            symmetric = grads[0].index_select(1, places).view(samples, count, count)
            symmetric = symmetric * (1 - torch.eye(count, dtype=symmetric.dtype, device=symmetric.device))
        elif ctx.with_kernel:
            symmetric = vectors.new_empty((samples, count * count))
            _pick(grads[0].contiguous(), ctx.places, 0, symmetric)
            symmetric = symmetric.view(samples, count, count)
        else:
            symmetric = grads[0].index_select(1, ctx.places).view(samples, count, count)
            symmetric.diagonal(dim1=1, dim2=2).zero_()
        grad = torch.bmm(symmetric, vectors)
        of_parts = [
            grad[:, begin:end].to(dtype)
            for begin, end, dtype in zip(ctx.ends[:-1], ctx.ends[1:], ctx.dtypes, strict=True)
        ]
        return None, None, None, grad[:, 0] + grads[0][:, :dim], *of_parts


def _pick(table: Tensor, columns: NDArray[np.int64], first: int, out: Tensor) -> None:
    """Fill ``out[:, first:]`` with columns of a table on the CPU; -1 is zeros."""
    if type(table) is not Tensor:  # a stand-in without numbers, with which memory is planned
        return
    threads = usable_threads(torch.get_num_threads())
    pick_columns(_numbers(table), columns, first, _numbers(out), threads)


def _numbers(tensor: Tensor) -> Any:
    """Return the numbers of a tensor as an array that shares its memory; those of 16 bits, which Numba lacks, as bit patterns."""
    return (tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy()
