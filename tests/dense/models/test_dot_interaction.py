"""The dot interaction as one operation: on the CPU its kernel changes no bit of what torch's own operations compute."""

from __future__ import annotations

import pytest
import torch

from adaptive_rec.dense.models.dot_interaction import DotInteraction


@pytest.mark.parametrize("samples", [1, 5, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
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


def test_autocast_multiplies_float32_in_bf16() -> None:
    """The kernel gets numbers of another type than it writes then."""
    dice = torch.Generator().manual_seed(1)
    first, part = torch.randn((5, 8), generator=dice), torch.randn((5, 3, 8), generator=dice)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = DotInteraction(4, 8)(first, [part])
    vectors = torch.cat([first.unsqueeze(1), part], dim=1).bfloat16()
    products = (vectors @ vectors.mT)[:, *torch.tril_indices(4, 4, offset=-1)]
    torch.testing.assert_close(outputs, torch.cat([first, products.float()], dim=1))


@pytest.mark.parametrize("compiling", [False, True])
def test_gradients_of_gradients_are_those_of_autograd(compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sum of outputs, too, whose own gradient is constant: there only the vectors' part is left."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    dice = torch.Generator().manual_seed(1)
    shapes = (2, 4), (2, 3, 4), (2, 1, 4)
    inputs = [torch.randn(shape, generator=dice, dtype=torch.float64, requires_grad=True) for shape in shapes]
    interaction = DotInteraction(5, 4)

    def interact(first: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        return interaction(first, parts)

    assert torch.autograd.gradgradcheck(interact, inputs)
    assert torch.autograd.gradcheck(lambda *given: torch.autograd.grad(interact(*given).sum(), given, create_graph=True), inputs)
