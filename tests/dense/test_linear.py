"""Linear layers in oneDNN: sums and gradients are those of torch to rounding, in all forms; torch keeps what it must not take."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from adaptive_rec.config.tree import load_config
from adaptive_rec.dense import linear as module
from adaptive_rec.dense.linear import OneDnnLinear, linear_layers
from adaptive_rec.errors import ConfigError
from adaptive_rec.runtime.assemble import assemble
from tests.doubles.late_streams import LateStreams

pytestmark = pytest.mark.skipif(bool(module.why_not()), reason=f"oneDNN cannot be used: {module.why_not()}")


BATCH = 50


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what oneDNN multiplied."""
    made: list[tuple[int, ...]] = []
    product = module._product

    def noted(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        made.append((*left.shape, len(right)))
        return product(left, right, bias)

    monkeypatch.setattr(module, "_product", noted)
    return made


def outcome(inputs: Tensor, weight: Tensor, bias: Tensor | None, context: Any, spread: bool = False) -> list[Tensor]:
    """The output and all gradients."""
    parts = [part.detach().clone(memory_format=torch.preserve_format).requires_grad_() for part in (inputs, weight)]
    of_bias = [] if bias is None else [bias.detach().clone().requires_grad_()]
    with context:
        outputs = linear(*parts, *of_bias)
    torch.manual_seed(3)
    (outputs.sum() if spread else outputs * torch.randn(outputs.shape)).sum().backward()
    return [outputs.detach(), *(part.grad for part in (*parts, *of_bias) if part.grad is not None)]


FORMS = {
    "few inputs": ((300, 13), (512, 13)),
    "filled up": ((301, 13), (512, 13)),
    "square": ((97, 64), (64, 64)),
    "one output": ((64, 33), (1, 33)),
    "one sample": ((1, 7), (5, 7)),
    "sequences": ((6, 5, 17), (9, 17)),
    "a vector": ((17,), (9, 17)),
}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_sums_and_gradients_are_those_of_torch(form: str, has_bias: bool, products: list[tuple[int, ...]]) -> None:
    shape, of_weight = FORMS[form]
    dice = torch.Generator().manual_seed(1)
    inputs, weight = torch.randn(shape, generator=dice), torch.randn(of_weight, generator=dice)
    bias = torch.randn(of_weight[0], generator=dice) if has_bias else None
    exact = outcome(inputs.double(), weight.double(), None if bias is None else bias.double(), nullcontext())
    mine, again = (outcome(inputs, weight, bias, OneDnnLinear(BATCH)) for _ in range(2))
    assert len(products) == 6, "forward and two gradients, twice"
    for one, same, true in zip(mine, again, exact, strict=True):
        assert torch.equal(one, same)
        assert one.dtype == torch.float32
        assert float((one - true).abs().max() / true.abs().max()) < 3e-6


@pytest.mark.parametrize("what", ["transposed weight", "every other line", "a broadcast line", "a spread gradient"])
def test_strides_do_not_matter(what: str, products: list[tuple[int, ...]]) -> None:
    dice = torch.Generator().manual_seed(2)
    inputs, weight = torch.randn(40, 24, generator=dice), torch.randn(24, 32, generator=dice).t()
    if what != "transposed weight":
        weight = weight.contiguous()
    if what == "every other line":
        inputs = torch.randn(80, 24, generator=dice)[::2]
    if what == "a broadcast line":
        inputs = torch.randn(1, 24, generator=dice).expand(40, 24)
    spread = what == "a spread gradient"
    plain = outcome(inputs, weight, None, nullcontext(), spread)
    for one, other in zip(outcome(inputs, weight, None, OneDnnLinear(BATCH), spread), plain, strict=True):
        assert float((one - other).abs().max() / other.abs().max()) < 3e-6
    assert len(products) == 3


def test_few_numbers_of_lines_are_multiplied(products: list[tuple[int, ...]]) -> None:
    layer = nn.Linear(3, 2)
    with OneDnnLinear(1500):
        for lines in range(1, 4097):
            assert layer(torch.ones(lines, 3)).shape == (lines, 2)
    counts = {left for left, *_ in products}
    assert len(counts) < 16 * 9 + 16
    assert {1500, 3000} <= counts
    assert max(counts) == 4096
    assert all(lines <= left <= lines * 17 / 16 for lines, (left, *_) in enumerate(products, 1))


def test_gradients_of_gradients_are_those_of_torch() -> None:
    def penalty(context: Any) -> list[Tensor]:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        inputs = torch.randn(6, 5, requires_grad=True)
        with context:
            score = model(inputs).sum()
        (grad,) = torch.autograd.grad(score, inputs, create_graph=True)
        grad.square().sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for one, other in zip(penalty(OneDnnLinear(BATCH)), penalty(nullcontext()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_other_tensors_stay_with_torch(products: list[tuple[int, ...]]) -> None:
    layer = nn.Linear(4, 3)
    with OneDnnLinear(BATCH):
        assert layer.double()(torch.randn(2, 4).double()).dtype == torch.float64
        layer.float()
        assert layer(torch.randn(0, 4)).shape == (0, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(torch.randn(2, 4)).dtype == torch.bfloat16
        assert torch.func.vmap(layer)(torch.randn(2, 4)).shape == (2, 3)
        with forward_ad.dual_level():
            dual = layer(forward_ad.make_dual(torch.randn(2, 4), torch.ones(2, 4)))
            assert forward_ad.unpack_dual(dual).tangent is not None
        assert torch.jit.trace(layer, torch.randn(2, 4), check_trace=False)(torch.randn(2, 4)).shape == (2, 3)
        assert layer.to("meta")(torch.randn(2, 4, device="meta")).device.type == "meta"
    assert not products


def test_a_frozen_layer_gets_no_gradient(products: list[tuple[int, ...]]) -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)
    inputs = torch.randn(5, 4, requires_grad=True)
    with OneDnnLinear(BATCH):
        outputs = layer(inputs)
    outputs.sum().backward()
    assert inputs.grad is not None
    assert layer.weight.grad is None
    assert len(products) == 2


@pytest.mark.parametrize("lines", [4, 33])
@pytest.mark.parametrize("context", [nullcontext(), OneDnnLinear(BATCH)], ids=["torch", "oneDNN"])
def test_only_what_a_gradient_needs_must_not_change(context: Any, lines: int) -> None:
    first, frozen = nn.Linear(6, 5), nn.Linear(5, 5).requires_grad_(False)
    with context:
        hidden = nn.functional.relu_(first(torch.randn(lines, 6)))
        outputs = frozen(hidden * 1.0).add_(1.0)
        copy = hidden * 1.0
        outputs = outputs + frozen(copy)
    copy.add_(1.0)
    with torch.no_grad():
        first.weight.mul_(2.0)  # inputs that are data need no gradient
    outputs.sum().backward()
    inputs = torch.randn(lines, 6)
    with context:
        outputs = first(inputs)
    inputs.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@pytest.mark.parametrize("widths", [(6, 6, 6), (6, 5, 3)])
def test_a_part_that_is_run_again_outside_has_the_same_gradients(widths: tuple[int, int, int]) -> None:
    def grads(context: Any, again: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(*widths[:2]), nn.Tanh(), nn.Linear(*widths[1:]))
        inputs = torch.randn(33, widths[0], requires_grad=True)
        with context:
            outputs = checkpoint(model, inputs, use_reentrant=False) if again else model(inputs)
        outputs.square().sum().backward()
        return [part.grad for part in (inputs, *model.parameters()) if part.grad is not None]

    for one, other in zip(grads(OneDnnLinear(BATCH), again=True), grads(nullcontext(), again=False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["strided", "spread", "of one", "a line", "of no layer"])
def test_other_biases_stay_with_torch(what: str, products: list[tuple[int, ...]]) -> None:
    dice = torch.Generator().manual_seed(6)
    inputs, weight, values = (torch.randn(*shape, generator=dice) for shape in ((4, 6), (5, 6), (1, 10)))
    bias = {"strided": values[0, ::2], "spread": values[0, :1].expand(5), "of one": values[0, :1],
            "a line": values[:, :5], "of no layer": values[0, :7]}[what]  # fmt: skip
    if what == "of no layer":
        with OneDnnLinear(BATCH), pytest.raises(RuntimeError, match="size of the tensor"):
            linear(inputs, weight, bias)
        return
    with OneDnnLinear(BATCH):
        assert torch.equal(linear(inputs, weight, bias), linear(input=inputs, weight=weight, bias=bias))
    assert not products
    for one, other in zip(*(outcome(inputs, weight, bias, c) for c in (OneDnnLinear(BATCH), nullcontext())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("maker", "vectors", "mkl", "compiled", "takes"),
    [
        ("AuthenticAMD", "AVX512", True, False, True),
        ("AuthenticAMD", "AVX2", True, False, False),
        ("GenuineIntel", "AVX512", True, False, False),
        ("AuthenticAMD", "AVX512", False, False, False),
        ("AuthenticAMD", "AVX512", True, True, False),
    ],
)
def test_auto_depends_on_the_processor(
    maker: str, vectors: str, mkl: bool, compiled: bool, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "vendor", lambda: maker)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    assert isinstance(linear_layers("auto", compiled, BATCH), OneDnnLinear) is takes
    assert not isinstance(linear_layers("torch", compiled, BATCH), OneDnnLinear)


def test_compiled_models_say_what_they_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mkl_is_slow", lambda: True)
    assert "run.compile=true leaves matrix products to MKL" in module.loses_by_compiling("auto", "float32")
    assert not module.loses_by_compiling("torch", "float32")
    assert not module.loses_by_compiling("auto", "bf16")
    monkeypatch.setattr(module, "mkl_is_slow", lambda: False)
    assert not module.loses_by_compiling("auto", "float32")


def test_what_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="run.linear must be auto or torch where run.compile is true, got onednn"):
        linear_layers("onednn", compiled=True, batch_size=BATCH)
    config = load_config(None, {}, ["run.linear=onednn", "data.synthetic.samples=2000"])
    with pytest.raises(ConfigError, match="run.linear must be auto or torch on a device, got onednn"):
        assemble(config, streams=LateStreams(seed=1))
    config = load_config(None, {}, ["run.linear=onednn", "run.precision=bf16", "data.synthetic.samples=2000"])
    with pytest.raises(ConfigError, match="run.linear must be auto or torch unless run.precision is float32, got onednn"):
        assemble(config)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="run.linear must be auto or torch where torch has no oneDNN, got onednn"):
        linear_layers("onednn", compiled=False, batch_size=BATCH)


def test_a_run_trains_through_it(products: list[tuple[int, ...]]) -> None:
    settings = ["run.device=cpu", "run.steps=3", "run.batch_size=64", "data.table_rows=[60, 40]", "data.dense_features=2",
                "data.synthetic.samples=400", "model.embedding_dim=4", "model.bottom_mlp=[8]", "model.top_mlp=[8]"]  # fmt: skip
    for name, count in (("torch", 0), ("onednn", 3 * (4 * 3 - 1))):
        products.clear()
        runtime = assemble(load_config(None, {}, [*settings, f"run.linear={name}"]))
        for _ in runtime.run():
            pass
        assert len(products) == count, "three products for each layer, but no gradient of the dense features"
