"""torch's own sample inputs of `embedding` and `embedding_bag`, and of the modules, give the same with rows in tiers.

They are those of the installed torch (``torch.testing._internal``), which its own suite runs as well. The rest of its tests of
these modules is retold in `test_bag.py`, `test_bag_module.py`, `test_weight.py` and below; docs/torch-tests.md lists them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adaptive_rec
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.modules.tensors.weight import TieredWeight

pytest.importorskip("expecttest", reason="torch's sample inputs need the package expecttest")

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

OPERATIONS = {op.name: op for op in op_db if op.name in ("nn.functional.embedding", "nn.functional.embedding_bag")}
INTEGERS = [torch.int32, torch.int64]
DTYPES = [torch.float32, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_operation = pytest.mark.parametrize("name", OPERATIONS)


def tiered(rows: Tensor, **options: Any) -> TieredWeight:
    """A weight in tiers with these rows, a third of them hot."""
    module = nn.Embedding(*rows.shape, _weight=rows.detach().clone(), **options)
    adaptive_rec.wrap(module, budget=rows.numel() * rows.element_size() // 3, optimizer=torch.optim.SGD)
    weight = module.weight
    assert isinstance(weight, TieredWeight)
    return weight


def dense(gradient: Any) -> Tensor:
    found = gradient.dense() if hasattr(gradient, "dense") else gradient
    return found.to_dense() if found.is_sparse else found


def leaves(values: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, with tensors of their own where they require a gradient."""
    return {
        key: one.detach().clone().requires_grad_() if isinstance(one, Tensor) and one.requires_grad else one
        for key, one in values.items()
    }


@each_dtype
@each_operation
def test_samples_of_torch_give_the_same_vectors_and_gradients(name: str, dtype: torch.dtype) -> None:
    samples = 0
    for sample in OPERATIONS[name].sample_inputs("cpu", dtype, requires_grad=True):
        plain, ours = sample.input.detach().clone().requires_grad_(), tiered(sample.input)
        given, own = leaves(sample.kwargs), leaves(sample.kwargs)
        if given.get("mode") == "max":
            with pytest.raises(ConfigError, match="mode must be sum or mean"):
                OPERATIONS[name](ours, *sample.args, **own)
            continue
        wanted = OPERATIONS[name](plain, *sample.args, **given)
        found = OPERATIONS[name](ours, *sample.args, **own)
        torch.testing.assert_close(found, wanted)
        upstream = torch.rand_like(wanted)
        wanted.backward(upstream)
        found.backward(upstream)
        torch.testing.assert_close(dense(ours.grad), plain.grad)
        for key, one in given.items():
            if isinstance(one, Tensor) and one.requires_grad:
                torch.testing.assert_close(own[key].grad, one.grad)
        samples += 1
    assert samples >= 3


@each_operation
def test_wrong_inputs_of_torch_are_errors_here_too(name: str) -> None:
    cases = list(OPERATIONS[name].error_inputs("cpu")) if OPERATIONS[name].error_inputs_func else []
    for case in cases:
        sample, weight = case.sample_input, case.sample_input.input
        own = tiered(weight) if weight.dim() == 2 and weight.dtype in DTYPES else weight
        with pytest.raises((ValueError, RuntimeError, TypeError)):
            OPERATIONS[name](own, *sample.args, **sample.kwargs)


@each_dtype
def test_modules_of_torch_s_list_compute_the_same(dtype: torch.dtype) -> None:
    found = 0
    for info in module_db:
        if info.module_cls not in (nn.Embedding, nn.EmbeddingBag):
            continue
        for case in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=True):
            torch.manual_seed(0)
            plain = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs, dtype=dtype)
            ours = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs, dtype=dtype)
            ours.load_state_dict(plain.state_dict())
            adaptive_rec.wrap(ours, budget="1KiB", optimizer=torch.optim.SGD)
            given = case.forward_input
            wanted, got = plain(*given.args, **given.kwargs), ours(*given.args, **given.kwargs)
            torch.testing.assert_close(got, wanted)
            wanted.sum().backward()
            got.sum().backward()
            torch.testing.assert_close(dense(ours.weight.grad), plain.weight.grad)
            found += 1
    assert found >= 2


# torch's tests of nn.Embedding (test/nn/test_embedding.py), retold -----------------------------------------------------


@each_dtype
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("padding", [0, -2])
def test_the_padding_row_is_read_as_zeros_and_gets_no_gradient(dtype: torch.dtype, sparse: bool, padding: int) -> None:
    module = nn.Embedding(10, 20, padding_idx=padding, sparse=sparse, dtype=dtype)
    adaptive_rec.wrap(module, budget="1KiB", optimizer=torch.optim.SGD)
    row = padding % 10
    ids = torch.tensor([[row, 2, 4, 5], [4, 3, row, 9]])
    vectors = module(ids)
    assert not vectors[0, 0].any()
    assert not vectors[1, 2].any()
    vectors.sum().backward()
    assert not dense(module.weight.grad)[row].any()


@pytest.mark.parametrize("others", [[], [1, 3], [2]])
@pytest.mark.parametrize("times", [1, 2, 1000])
def test_however_often_the_padding_row_is_read_its_gradient_is_zero(times: int, others: list[int]) -> None:
    module = nn.Embedding(5, 2, padding_idx=0)
    adaptive_rec.wrap(module, budget="1KiB", optimizer=torch.optim.SGD)
    ids = torch.tensor(others + [0] * times)
    module(ids).sum().backward()
    gradient = dense(module.weight.grad)
    assert not gradient[0].any()
    assert gradient.sum() == 2 * len(others)


def test_a_padding_row_that_is_set_is_read_as_it_was_set() -> None:
    module = nn.Embedding(10, 20, padding_idx=2, sparse=True)
    adaptive_rec.wrap(module, budget="1KiB", optimizer=torch.optim.SGD)
    with torch.no_grad():
        module.weight[2] = torch.ones(20)
    assert torch.equal(module(torch.tensor([0, 2]))[1], torch.ones(20))


@each_dtype
def test_gradients_of_passes_are_summed_until_they_are_zeroed(dtype: torch.dtype) -> None:
    module = nn.Embedding(10, 3, sparse=True, dtype=dtype)
    adaptive_rec.wrap(module, budget="1KiB", optimizer=torch.optim.SGD)
    ids = torch.tensor([7, 1, 3])
    module(ids).sum().backward()
    module(ids).sum().backward()
    assert torch.equal(dense(module.weight.grad)[ids], torch.full((3, 3), 2.0, dtype=dtype))
    module.zero_grad()
    module(ids).sum().backward()
    ids[0] = 8  # overwritten after its forward pass
    module(ids).sum().backward()
    assert torch.equal(dense(module.weight.grad)[:, 0], torch.tensor([0, 2, 0, 2, 0, 0, 0, 1, 1, 0], dtype=dtype))


@pytest.mark.parametrize("padding", [None, 2])
def test_pretrained_rows_are_kept(padding: int | None) -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [7.0, 7.0], [5.0, 6.0]])
    module = nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=padding)
    adaptive_rec.wrap(module, budget="1KiB", optimizer=torch.optim.SGD)
    assert torch.equal(module.weight.data, rows)
    assert torch.equal(module(torch.arange(4)), rows)
    assert torch.equal(F.embedding(torch.tensor([[1, 3, 2]]), module.weight), rows[None, [1, 3, 2]])


@pytest.mark.parametrize("shape", [(0, 4), (10, 0)])
def test_empty_tables_are_left_as_they_are_and_named(shape: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"empty: it has {shape[0]} rows of dim {shape[1]}"):
        adaptive_rec.wrap(nn.Embedding(*shape), budget="1KiB", optimizer=torch.optim.SGD)


def test_a_second_derivative_through_rows_is_refused_or_equal() -> None:
    """gradgradcheck of torch's: gradients of gradients do not reach rows, and say so."""
    weight = tiered(torch.rand(20, 4, dtype=torch.float64))
    vectors = F.embedding(torch.tensor([0, 1, 1, 2]), weight)
    (gradient,) = torch.autograd.grad(vectors.square().sum(), vectors, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad|differentiat"):
        torch.autograd.grad(
            torch.autograd.grad(vectors.square().sum(), weight, create_graph=True)[0].sum(), weight
        )
    assert gradient.requires_grad


@pytest.mark.parametrize("ids_type", INTEGERS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_ids_out_of_bounds_are_errors(mode: str, ids_type: torch.dtype) -> None:
    weight = tiered(torch.rand(10, 2))
    for ids in ([[-1, 1]], [[11, 8]]):
        with pytest.raises(DataError, match="must lie in"):
            F.embedding_bag(torch.tensor(ids, dtype=ids_type), weight, padding_idx=0, mode=mode)
        with pytest.raises(DataError, match="must lie in"):
            F.embedding(torch.tensor(ids, dtype=ids_type), weight)


@pytest.mark.parametrize("ids_type", INTEGERS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 5, 53, 23), (101, 5, 3, 7), (2, 101, 3, 7)])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_is_the_sum_or_the_mean_of_single_rows(mode: str, shape: tuple[int, ...], ids_type: torch.dtype) -> None:
    """Both kinds of module over one table in tiers."""
    count, dim, size, length = shape
    both = nn.ModuleDict({"bag": nn.EmbeddingBag(count, dim, mode=mode), "one": nn.Embedding(count, dim)})
    with torch.no_grad():
        both["one"].weight.copy_(both["bag"].weight)
    adaptive_rec.wrap(both, budget="1KiB", optimizer=torch.optim.SGD)
    ids = torch.randint(count, (size, length), dtype=ids_type)
    pooled = both["bag"](ids.view(-1), torch.arange(0, size * length, length, dtype=ids_type))
    single = both["one"](ids)
    single = single.sum(1) if mode == "sum" else single.mean(1)
    torch.testing.assert_close(pooled, single, rtol=1e-5, atol=1e-5)
    upstream = torch.rand(size, dim)
    pooled.backward(upstream)
    single.backward(upstream)
    torch.testing.assert_close(dense(both["bag"].weight.grad), dense(both["one"].weight.grad), rtol=1e-4, atol=1e-4)
