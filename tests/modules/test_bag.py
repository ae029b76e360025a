"""AdaptiveEmbeddingBag equals nn.EmbeddingBag in the cases of PyTorch's own tests, and in some more."""

from __future__ import annotations

import itertools

import pytest
import torch

from adaptive_rec import AdaptiveEmbeddingBag
from adaptive_rec.errors import AdaptiveRecError
from tests.matrix import grid

from .both import ERRORS, INTEGERS, KINDS, Both, each_kind, each_mode, fused

# Shapes --------------------------------------------------------------------------------------------------------------


@grid(kind=KINDS, mode=["sum", "mean"], sparse=[False, True], ids_type=INTEGERS, offsets_type=INTEGERS)
def test_a_known_example(kind: str, mode: str, sparse: bool, ids_type: torch.dtype, offsets_type: torch.dtype) -> None:
    """With empty bags at the beginning, in the middle and at the end; the same in 2-D; and nothing but empty bags."""
    weight = torch.arange(1.0, 11.0).view(5, 2)
    both = Both(kind, 5, 2, weight, mode=mode, sparse=sparse)
    ids = torch.tensor([3, 1, 1, 1, 4, 0], dtype=ids_type)
    offsets = torch.tensor([0, 0, 3, 3, 6], dtype=offsets_type)
    gradient = torch.tensor([[99.0, 99.0], [1.0, 2.0], [99.0, 99.0], [3.0, 4.0], [99.0, 99.0]])
    divisor = 1 if mode == "sum" else 3
    pooled, rows = both.check(ids, offsets, None, gradient)
    expected_rows = torch.tensor([[3.0, 4.0], [5.0, 8.0], [0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]) / divisor
    torch.testing.assert_close(rows, expected_rows)
    expected = torch.tensor([[0.0, 0.0], [13.0, 16.0], [0.0, 0.0], [13.0, 16.0], [0.0, 0.0]]) / divisor
    torch.testing.assert_close(pooled, expected)
    again = Both(kind, 5, 2, weight, mode=mode, sparse=sparse)
    pooled, rows = again.check(ids.view(2, 3), None, None, gradient[[1, 3]])
    torch.testing.assert_close(pooled, expected[[1, 3]])
    torch.testing.assert_close(rows, expected_rows)
    again.check_often(ids[:0], torch.zeros(4, dtype=offsets_type))


@each_kind
@each_mode
def test_bags_of_one_length_in_every_small_shape(kind: str, mode: str) -> None:
    """And in larger ones: more lookups than a thousand, more rows than lookups, a long row."""
    shapes = [*itertools.product([1, 2], repeat=4), (2, 5, 53, 23), (101, 5, 3, 7), (2, 101, 3, 7), (70, 33, 41, 1)]
    for number, (rows, dim, bags, length) in enumerate(shapes):
        both = Both(kind, rows, dim, mode=mode)
        ids = torch.randint(rows, (bags, length))
        offsets = torch.arange(bags) * length
        pooled, _ = both.check(ids.view(-1), offsets)
        both.check(ids)
        assert pooled.shape == (bags, dim)
        if number % 5 == 0:
            both.check_often(ids)


@each_kind
@each_mode
def test_2d_input_without_lookups(kind: str, mode: str) -> None:
    """Of empty bags in 2-D torch knows nothing."""
    both = Both(kind, 4, 3, mode=mode)
    assert both.check(torch.empty(0, 3, dtype=torch.int64))[0].shape == (0, 3)
    if kind != "unfused":  # then it is torch's module
        pooled = both.ours(torch.empty(3, 0, dtype=torch.int64))
        assert torch.equal(pooled, torch.zeros(3, 3))


@grid(kind=KINDS, mode=["sum", "mean"], sparse=[False, True], ids_type=INTEGERS, offsets_type=INTEGERS)
def test_no_ids_at_all(kind: str, mode: str, sparse: bool, ids_type: torch.dtype, offsets_type: torch.dtype) -> None:
    both = Both(kind, 4, 3, mode=mode, sparse=sparse)
    for bags in (1, 2, 5):
        pooled, _ = both.check(torch.tensor([], dtype=ids_type), torch.zeros(bags, dtype=offsets_type))
        assert not pooled.any()


@each_kind
@each_mode
def test_random_jagged_bags_equal_torch(kind: str, mode: str) -> None:
    both = Both(kind, 30, 7, mode=mode)
    for seed in range(6):
        dice = torch.Generator().manual_seed(seed)
        lengths = torch.randint(0, 6, (40,), generator=dice)
        ids = (30 * torch.rand(int(lengths.sum()), generator=dice) ** 3).long()
        both.check_often(ids, lengths.cumsum(0) - lengths)


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_and_double_precision_equal_torch(kind: str, dtype: torch.dtype) -> None:
    both = Both(kind, 12, 6, dtype=dtype, mode="sum")
    assert both.ours.weight.dtype == dtype
    scale = torch.rand(4, 3, dtype=dtype, requires_grad=True)
    pooled, _ = both.check(torch.randint(12, (4, 3)), None, scale)
    assert pooled.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize("kind", ["hot", "cold"])
def test_other_precisions_are_refused_by_name(kind: str, dtype: torch.dtype) -> None:
    with pytest.raises(AdaptiveRecError, match=str(dtype).removeprefix("torch.")):
        AdaptiveEmbeddingBag(12, 6, dtype=dtype, mode="sum", **fused(kind))


# The last offset -----------------------------------------------------------------------------------------------------


@grid(kind=KINDS, mode=["sum", "mean"], integers=INTEGERS)
def test_offsets_may_include_the_last_one(kind: str, mode: str, integers: torch.dtype) -> None:
    ids = torch.tensor([3, 1, 1, 1, 4, 0], dtype=integers)
    offsets = torch.tensor([0, 0, 3, 3, 6], dtype=integers)
    last = torch.cat([offsets, torch.tensor([6], dtype=integers)])
    weight = torch.randn(5, 2)
    without, with_last = (Both(kind, 5, 2, weight, mode=mode, include_last_offset=last) for last in (False, True))
    torch.testing.assert_close(without.check(ids, offsets)[0], with_last.check(ids, last)[0])
    with_last.check_often(ids[:0], torch.tensor([0], dtype=integers))
    with_last.check_often(ids[:0], torch.tensor([0, 0, 0], dtype=integers))


@each_kind
def test_ids_after_the_last_offset_are_ignored(kind: str) -> None:
    """torch reads the last bag to the end of the ids all the same, or leaves them over, as its version has it; neither is
    asked for here. What must not be: rows outside of all bags that are updated, or memory read that is nobody's."""
    ours = AdaptiveEmbeddingBag(10, 3, mode="sum", include_last_offset=True, **fused(kind))
    ids, offsets = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 3, 3])
    before = ours.weight.detach().clone()
    try:
        pooled = ours(ids, offsets)
    except ERRORS as error:
        assert "offsets" in str(error)  # noqa: PT017
        return
    assert pooled.shape == (2, 3)
    torch.testing.assert_close(pooled[0], before[:3].sum(0))
    assert torch.equal(pooled[1], torch.zeros(3)) or torch.equal(pooled[1], before[3])


@grid(
    kind=KINDS, mode=["sum", "mean"], padding_idx=[7, 3, -1],
    offsets=[[0, 3, 3], [0, 3, 4], [0, 5], [0, 5, 5], [0, 2, 2, 5]],
)  # fmt: skip
def test_with_a_padding_id_the_last_bag_has_all_ids_that_are_left(
    kind: str, mode: str, padding_idx: int, offsets: list[int]
) -> None:
    """Torch reads the last offset then only where it ends the ids; without a padding id it is what it says."""
    both = Both(kind, 10, 3, mode=mode, include_last_offset=True, padding_idx=padding_idx)
    both.check(torch.tensor([0, 1, 2, 3, 9]), torch.tensor(offsets))


# Weights of lookups --------------------------------------------------------------------------------------------------


@grid(kind=KINDS, trained=[True, False], last=[True, False], ids_type=INTEGERS, offsets_type=INTEGERS)
def test_weights_of_lookups(
    kind: str, trained: bool, last: bool, ids_type: torch.dtype, offsets_type: torch.dtype
) -> None:
    both = Both(kind, 5, 2, mode="sum", include_last_offset=last)
    ids = torch.tensor([3, 1, 1, 1, 4, 0], dtype=ids_type)
    offsets = torch.tensor([0, 0, 3, 3, 6, *([6] if last else [])], dtype=offsets_type)
    both.check_often(ids, offsets, torch.randn(6).requires_grad_(trained))
    both.check_often(ids[:0], torch.zeros_like(offsets), torch.randn(0).requires_grad_(trained))
    both.check_often(ids, offsets)  # and without them


@each_kind
@pytest.mark.parametrize("sparse", [False, True])
def test_weights_of_lookups_in_2d(kind: str, sparse: bool) -> None:
    for rows, dim, bags, length in [(2, 3, 5, 7), (2, 5, 53, 23), (101, 5, 3, 7), (2, 101, 3, 7)]:
        both = Both(kind, rows, dim, mode="sum", sparse=sparse)
        scale = torch.randn(bags, length).softmax(dim=-1).requires_grad_()
        both.check_often(torch.randint(rows, (bags, length)), None, scale)


@grid(kind=KINDS, bag_learns=[True, False], scale_learns=[True, False])
def test_gradients_reach_rows_and_weights_of_lookups_as_required(
    kind: str, bag_learns: bool, scale_learns: bool
) -> None:
    """Rows, weights of lookups, both or neither; those come out of a softmax."""
    ours = AdaptiveEmbeddingBag(16, 4, mode="sum", **fused(kind))
    ours.requires_grad_(bag_learns)
    raw = torch.rand(3, 4, requires_grad=scale_learns)
    pooled = ours(torch.arange(1, 5).expand(3, -1), per_sample_weights=raw.softmax(-1))
    assert pooled.requires_grad == (scale_learns or bag_learns)
    before = ours.weight.detach().clone()
    if pooled.requires_grad:
        pooled.square().sum().backward()
    if scale_learns:
        assert raw.grad is not None
        assert raw.grad.abs().sum() > 0
    if kind != "unfused":
        assert torch.equal(before, ours.weight.detach()) != bag_learns


@each_kind
def test_weights_of_lookups_have_a_gradient_only_on_request(kind: str) -> None:
    both = Both(kind, 9, 3, mode="sum")
    scale = torch.randn(2, 4)
    both.check(torch.randint(9, (2, 4)), None, scale)
    assert scale.grad is None


# Padding -------------------------------------------------------------------------------------------------------------


@grid(kind=KINDS, mode=["sum", "mean"], last=[True, False], padding=[0, 3, 11, -1, -12])
def test_lookups_of_the_padding_row_are_ignored(kind: str, mode: str, last: bool, padding: int) -> None:
    both = Both(kind, 12, 3, mode=mode, padding_idx=padding, include_last_offset=last)
    dice = torch.Generator().manual_seed(padding % 12)
    lengths = torch.randint(0, 5, (10,), generator=dice)
    ids = torch.randint(12, (int(lengths.sum()),), generator=dice)
    ids[::3] = padding % 12
    offsets = lengths.cumsum(0) - lengths
    both.check_often(ids, torch.cat([offsets, lengths.sum()[None]]) if last else offsets)
    both.check_often(torch.full((7,), padding % 12), torch.tensor([0, 2, 2, 7] if last else [0, 2, 2]))
    ids = torch.randint(12, (6, 4), generator=dice)
    ids[2] = padding % 12
    both.check_often(ids)
    if mode == "sum":
        both.check_often(ids, None, torch.randn(6, 4).requires_grad_())
    assert both.ours.padding_idx == both.theirs.padding_idx


@pytest.mark.parametrize("padding", [-7, -6, 5, 6])
def test_a_padding_row_outside_the_table_is_refused(padding: int) -> None:
    with pytest.raises(ERRORS, match="padding_idx"):
        AdaptiveEmbeddingBag(5, 3, padding_idx=padding)


def test_the_padding_row_starts_as_zeros() -> None:
    for options in ({}, fused("cold")):
        bag = AdaptiveEmbeddingBag(5, 3, padding_idx=-2, **options)
        assert not bag.weight[3].any()
        assert bag.weight[2].any()


# Memory layouts ------------------------------------------------------------------------------------------------------


@each_kind
@each_mode
def test_inputs_that_are_not_contiguous(kind: str, mode: str) -> None:
    both = Both(kind, 20, 3, torch.randn(20, 9)[:, ::3], mode=mode)
    ids, offsets = torch.randint(20, (24,)), torch.tensor([0, 9, 1, 9, 4, 9, 4, 9])
    both.check_often(ids[::2], offsets[::2])
    both.check_often(torch.randint(20, (6, 4)).T)
    both.check_often(torch.randint(20, (1, 3)).expand(5, 3))
    if mode == "sum":
        both.check_often(torch.randint(20, (4, 6)).T, None, torch.randn(4, 6).T.requires_grad_())
    both.check(torch.randint(20, (4, 2)), None, None, torch.randn(3, 4).T)
    both.check(torch.randint(20, (4, 2)), None, None, torch.randn(1, 1).expand(4, 3))


@each_kind
def test_inputs_may_be_overwritten_after_the_forward(kind: str) -> None:
    """A loader that fills the same memory again: the gradients are of the ids that were read."""
    if kind == "unfused":
        pytest.skip("torch keeps the tensors themselves, so there it must not be done")
    both = Both(kind, 8, 2, mode="sum")
    ids = torch.tensor([[1, 2], [2, 3]])
    before = both.ours.weight.clone()
    pooled = both.ours(ids)
    ids.fill_(7)
    try:
        pooled.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
        return
    lost = before - both.ours.weight
    torch.testing.assert_close(lost[:, 0], torch.tensor([0.0, 1, 2, 1, 0, 0, 0, 0]))


@pytest.mark.parametrize("kind", ["cold", "hot"])
def test_offsets_may_be_overwritten_after_the_forward(kind: str) -> None:
    ours = Both(kind, 8, 2, mode="sum", include_last_offset=True).ours
    ids, offsets = torch.tensor([1, 2, 2, 3]), torch.tensor([0, 1, 4])
    before = ours.weight.clone()
    pooled = ours(ids, offsets)
    offsets.copy_(torch.tensor([0, 4, 4]))
    pooled.backward(torch.tensor([[1.0, 1.0], [10.0, 10.0]]))
    torch.testing.assert_close((before - ours.weight)[:, 0], torch.tensor([0.0, 1, 20, 10, 0, 0, 0, 0]))
