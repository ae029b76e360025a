"""The dot interaction as one operation: on the CPU its kernel changes no bit of what torch's own operations compute."""

from __future__ import annotations

import pytest
import torch

from adaptive_rec.dense.models.dot_interaction import DotInteraction


@pytest.mark.parametrize("samples", [1, 5, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_kernel_changes_no_bit(dtype: torch.dtype, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients; rows of bf16 runs are float32, and get float32 gradients."""
    dice = torch.Generator().manual_seed(samples)
    of_rows = torch.float32 if dtype == torch.bfloat16 else dtype
    first = torch.randn((samples, 8), generator=dice).to(dtype)
    parts = [torch.randn((samples, count, 8), generator=dice).to(of_rows) for count in (4, 1)]
    interaction, gradient = DotInteraction(6, 8), torch.randn((samples, 8 + 15), generator=dice).to(dtype)
    found = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        inputs = [tensor.clone().requires_grad_() for tensor in (first, *parts)]
        outputs = interaction(inputs[0], inputs[1:])
        outputs.backward(gradient)
        found.append([outputs.detach(), *(tensor.grad for tensor in inputs)])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
