"""Linear layers of float32 on the CPU, multiplied by oneDNN instead of the BLAS that torch was built with.

On processors that are not Intel's, MKL keeps to vectors of 256 bits, even where those of 512 are twice as fast. oneDNN, which
torch brings too and uses for bf16, takes what the processor has.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from adaptive_rec.errors import ConfigError
from adaptive_rec.system.processor import vendor

WIDER = 16
"""A gradient of weights that has so many times fewer inputs than outputs is multiplied the other way round: 146 instead of
548 us for 13 inputs and 512 outputs of 2,048 samples (EPYC, Zen 5)."""


def linear_layers(name: str, compiled: bool, batch_size: int) -> AbstractContextManager[Any]:
    """Return the context in which linear layers run on the CPU, to be entered for each forward pass.

    `name`: value of run.linear. `auto` depends on the processor only, as a resumed run must round as before. `compiled`: whether
    the model is compiled, which fixes its products. Raises ConfigError where oneDNN is asked for and cannot be had.
    """
    if name == "torch" or (name == "auto" and (compiled or not onednn_is_faster())):
        return nullcontext()
    if reason := "run.compile is true" if compiled else why_not():
        raise ConfigError(f"run.linear must be auto or torch where {reason}, got {name}")
    return OneDnnLinear(batch_size)


def loses_by_compiling(name: str, precision: str) -> str:
    """Return what a compiled model does without on this processor, as a warning; empty for nothing."""
    if precision != "float32" or name == "torch" or not onednn_is_faster():
        return ""
    return (
        "run.compile=true leaves matrix products to MKL, which uses half of this processor's vectors; without it oneDNN "
        "makes them (run.linear), and a step of DLRM takes two thirds of the time"
    )


def onednn_is_faster() -> bool:
    """Whether oneDNN can be used, and torch's own library is slow on this processor."""
    return not why_not() and mkl_is_slow()


def why_not() -> str:
    """Return the reason why oneDNN cannot be used; empty if it can."""
    if not torch.backends.mkldnn.is_available():
        return "torch has no oneDNN"
    return "" if hasattr(torch.ops.mkldnn, "_linear_pointwise") else "torch does not offer oneDNN's product of float32"


def mkl_is_slow() -> bool:
    """Whether torch multiplies float32 with MKL on a processor of whose vectors MKL uses half."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkl.is_available() and vendor() == "AuthenticAMD"


class OneDnnLinear(TorchFunctionMode):
    """Within it, `torch.nn.functional.linear` of plain float32 tensors on the CPU runs in oneDNN, forward and backward.

    oneDNN makes code for each number of lines, which takes as long as some products. So numbers that are no multiple of the batch
    size, such as those of micro-batches, are filled up with lines of zeros to one of few.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self._batch_size = batch_size

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear and _suits(*args, **(kwargs or {})):
            return self._run(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _run(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        flat = input if input.dim() == 2 else input.reshape(-1, input.shape[-1])
        count = len(flat) if len(flat) % self._batch_size == 0 else _filled_up(len(flat))
        outputs: Tensor = _Linear.apply(flat, weight.t(), bias, count)
        return outputs if input.dim() == 2 else outputs.view(*input.shape[:-1], len(weight))


def _filled_up(lines: int) -> int:
    """Return a number of lines at most a sixteenth larger, one of sixteen between two powers of two."""
    step = max(1, (1 << lines.bit_length() - 1) // 16)
    return -(-lines // step) * step


def _suits(input: Any, weight: Any, bias: Any = None) -> bool:
    """Whether oneDNN takes a layer's tensors: no subclasses, none under autocast, transformed or traced, none without samples.

    Shapes that torch broadcasts or refuses are left to it. oneDNN reads a bias without regard to its strides.
    """
    tensors = (input, weight) if bias is None else (input, weight, bias)
    return (
        all(type(part) in (Tensor, nn.Parameter) for part in tensors)
        and all(part.dtype == torch.float32 and part.device.type == "cpu" for part in tensors)
        and all(part.layout == torch.strided for part in tensors)
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._is_tracing()
        and forward_ad._current_level < 0
        and weight.dim() == 2
        and input.numel() > 0
        and weight.numel() > 0
        and input.shape[-1:] == weight.shape[1:]
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and not torch.is_autocast_enabled("cpu")
    )


class _Linear(torch.autograd.Function):
    """``lines @ turned + bias``, with lines of zeros up to a count meanwhile.

    It keeps what torch's own product keeps, and no more: what it does not need may change in place, and `torch.utils.checkpoint`
    finds the same tensors when it runs a part of a model again, outside of the context.
    """

    @staticmethod
    def forward(ctx: Any, lines: Tensor, turned: Tensor, bias: Tensor | None, count: int) -> Tensor:
        of_lines, of_turned, *_ = ctx.needs_input_grad
        ctx.save_for_backward(lines if of_turned else None, turned if of_lines else None)
        ctx.count = count
        product = _product(_with_zeros(lines, count), turned.t().contiguous(), bias)
        if count == len(lines):
            return product
        # Its first lines, but no view, which would not be allowed to change in place.
        return product.new_empty(0).set_(product.untyped_storage(), 0, (len(lines), product.shape[1]), product.stride())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lines, turned = ctx.saved_tensors
        of_lines, of_turned, of_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients
            multiply, count = _by_torch, len(grads[0])
        else:
            multiply, count = _product, ctx.count
        grad = _with_zeros(grads[0], count)
        return (
            multiply(grad, turned)[: len(grads[0])] if of_lines else None,
            _of_weight(multiply, grad, _with_zeros(lines, count)).t() if of_turned else None,
            grads[0].sum(0) if of_bias else None,
            None,
        )


def _with_zeros(lines: Tensor, count: int) -> Tensor:
    """Return lines with others of zeros up to a count."""
    if len(lines) == count:
        return lines.contiguous()
    filled = lines.new_empty((count, lines.shape[1]))
    filled[: len(lines)] = lines
    filled[len(lines) :] = 0
    return filled


def _of_weight(multiply: Any, grad: Tensor, lines: Tensor) -> Tensor:
    """Return ``grad.T @ lines``, the gradient of the weights."""
    if WIDER * lines.shape[1] < grad.shape[1]:
        turned: Tensor = multiply(lines.t(), grad.t()).t()
        return turned
    product: Tensor = multiply(grad.t(), lines.t())
    return product


def _by_torch(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(left, right, bias)


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``left @ right.T + bias``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product
