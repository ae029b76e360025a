"""The calls of kernels/cuda.py, in each of their forms, against their plain twins in float64 over drawn batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels.record import add_to_record, record_of_sums
from adaptive_rec.kernels.update_rules import LAZY_ADAM, NAMED_RULES, SGD
from tests.kernels.conftest import FORMS
from tests.kernels.reference import cuda as reference_device
from tests.kernels.reference import rows16
from tests.kernels.reference import staging as reference_staging
from tests.kernels.reference import step as reference
from tests.matrix import always, grid, pairwise

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DIMS = [1, 3, 16, 64, 128]
RULES = [rule.code for rule in NAMED_RULES.values()]
EXACTNESS = {torch.float32: 3e-6, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""A few roundings: what is added up is added up in float32 or better, and rounded to the dtype once."""
LR, EPS, BETA1, BETA2, STEP = 0.05, 1e-8, 0.9, 0.999, 7
SEED = 12345678901


def form_grid(**axes: Any) -> pytest.MarkDecorator:
    """Each form of the calls with some values; see ``tests.matrix.grid``."""
    return grid(always, pairwise, ["form"], form=FORMS, **axes)


class Drawn:
    """A batch of `samples` with bags of up to `longest` rows, hot and cold ones, drawn from a seed; in NumPy arrays."""

    def __init__(
        self, seed: int, samples: int = 13, features: int = 4, longest: int = 7, piece_lookups: int = 6
    ) -> None:
        self.random = random = np.random.default_rng(seed)
        self.samples, self.features = samples, features
        self.lengths = (
            random.integers(0, longest + 1, samples * features) if longest > 1 else np.ones(samples * features)
        )
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self.rows, self.hot_rows, self.cold_rows = 17, 40, 25
        rows = np.minimum(
            random.integers(0, self.rows, self.offsets[-1]), random.integers(0, self.rows, self.offsets[-1])
        )
        self.inverse_N = rows.astype(np.int32)
        cold = random.random(self.rows) < 0.5
        slots, places = random.permutation(self.hot_rows)[: self.rows], random.permutation(self.cold_rows)[: self.rows]
        self.source_U = np.where(cold, ~places, slots)
        order = np.argsort(rows, kind="stable")
        self.segment_bag_N = np.repeat(np.arange(samples * features), np.diff(self.offsets))[order]
        self.segments_U1 = np.searchsorted(rows[order], np.arange(self.rows + 1))
        self.piece_U1, self.piece_P1 = reference_staging.cut_pieces(self.segments_U1, piece_lookups)
        self.mean_F = random.random(features) < 0.5
        self.pool_features = random.permutation(features)[: max(1, features - 1)]
        self.column_F = np.zeros(features, dtype=np.int64)
        self.column_F[self.pool_features] = np.arange(len(self.pool_features))

    def numbers(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.from_numpy(self.random.normal(size=shape)).to(dtype)

    def states(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """Not negative, as sums of squares are not."""
        return self.numbers(dtype, *shape).abs()


def exact(tensor: Tensor) -> NDArray[np.float64]:
    """A copy for a twin to work on."""
    return tensor.detach().cpu().to(torch.float64, copy=True).numpy()


def assert_close(mine: Tensor, twin: NDArray[np.float64], dtype: torch.dtype) -> None:
    np.testing.assert_allclose(exact(mine), twin, rtol=EXACTNESS[dtype], atol=EXACTNESS[dtype] * 4)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def index(form: Any, array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(form.device)


def flags(form: Any, array: Any, dtype: torch.dtype = torch.bool) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(form.device, dtype)


def gather(form: Any, drawn: Drawn, samples_S: Any, hot: Tensor, cold: Tensor, flag_dtype: Any = torch.bool) -> Tensor:
    shape = (len(samples_S), len(drawn.pool_features), hot.shape[1])
    out = torch.full(shape, torch.nan, dtype=hot.dtype, device=form.device)
    form.kernels.gather_pooled(
        index(form, samples_S), index(form, drawn.pool_features), drawn.features, index(form, drawn.offsets),
        index(form, drawn.inverse_N), index(form, drawn.source_U), flags(form, drawn.mean_F, flag_dtype),
        hot.to(form.device), cold.to(form.device), out,
    )  # fmt: skip
    return out


def sum_up(
    form: Any, drawn: Drawn, position_B: Any, grad: Tensor, span: slice = slice(None), active_P: Any = None
) -> Tensor:
    piece_P1 = drawn.piece_P1[span]
    pieces = len(piece_P1) - 1
    partial = torch.full((pieces + 2, grad.shape[2]), torch.nan, dtype=sum_dtype(grad.dtype), device=form.device)
    form.kernels.sum_pieces(
        index(form, piece_P1), index(form, drawn.segment_bag_N), drawn.features, index(form, drawn.offsets),
        index(form, drawn.column_F), flags(form, drawn.mean_F), index(form, position_B), grad.to(form.device), partial,
        None if active_P is None else flags(form, active_P),
    )  # fmt: skip
    assert bool(partial[pieces:].isnan().all()), "memory behind the pieces stays as it is"
    return partial[:pieces]


def hyper(form: Any, rule: int) -> Tensor:
    correction = RowRule(rule, EPS, BETA1, BETA2).bias_correction(STEP)
    return torch.tensor([LR, EPS, BETA1, BETA2, correction], dtype=torch.float64, device=form.device)


def draw_tiers(drawn: Drawn, rule: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Hot rows, their state, cold rows, their state, the movement record of hot rows."""
    hot, cold = drawn.hot_rows, drawn.cold_rows
    return [
        drawn.numbers(dtype, hot, dim), drawn.states(dtype, hot, RowRule(rule).state_width(dim)),
        drawn.numbers(dtype, cold, dim), drawn.states(dtype, cold, RowRule(rule).state_width(dim)),
        draw_record(drawn, hot, dim),
    ]  # fmt: skip


def draw_record(drawn: Drawn, slots: int, dim: int) -> Tensor:
    """Records of movement (int8) of some scales, one of them without a displacement."""
    sums = drawn.numbers(torch.float32, slots, dim) * torch.exp2(drawn.numbers(torch.float32, slots, 1).round())
    sums[0] = 0
    return record_of_sums(sums, (sums * sums).sum(dim=1))


def draw_positions(drawn: Drawn) -> Any:
    """Lines of the samples in mixed order; a third of them skipped."""
    kept = drawn.random.random(drawn.samples) < 0.7
    position_B = np.full(drawn.samples, -1)
    position_B[kept] = drawn.random.permutation(np.count_nonzero(kept))
    return position_B


@form_grid(longest=[1, 7], dim=DIMS, dtype=DTYPES)
def test_gather_pooled_equals_its_twin(form: Any, dim: int, dtype: torch.dtype, longest: int) -> None:
    """One row to a bag, and jagged bags with empty ones; samples in any order, lines of padding anywhere."""
    drawn = Drawn(dim + longest, longest=longest)
    samples_S = drawn.random.permutation(drawn.samples)[: drawn.samples - 2]
    samples_S[[3, -1]] = -1
    hot, cold = drawn.numbers(dtype, drawn.hot_rows, dim), drawn.numbers(dtype, drawn.cold_rows, dim)
    out = gather(form, drawn, samples_S, hot, cold)
    twin = reference.gather_pooled(
        samples_S, drawn.pool_features, drawn.features, drawn.offsets, drawn.source_U[drawn.inverse_N], drawn.mean_F,
        exact(hot), exact(cold),
    )  # fmt: skip
    assert_close(out, twin, dtype)
    assert bool((out[[3, -1]] == 0).all())


@form_grid(longest=[1, 7], dim=DIMS, dtype=DTYPES)
def test_sum_pieces_equals_its_twin(form: Any, dim: int, dtype: torch.dtype, longest: int) -> None:
    drawn = Drawn(dim + longest, longest=longest)
    position_B = draw_positions(drawn)
    grad = drawn.numbers(dtype, int(position_B.max()) + 1, len(drawn.pool_features), dim)
    some_P = drawn.random.random(len(drawn.piece_P1) - 1) < 0.6
    for active_P in (None, some_P):  # pieces that are left out keep what their memory holds, here no number
        twin = reference_device.sum_pieces(
            drawn.piece_P1, drawn.segment_bag_N, drawn.features, drawn.offsets, drawn.column_F, drawn.mean_F, position_B,
            exact(grad), active_P,
        )  # fmt: skip
        # Features outside the pool are read as their column says, here as if they were the pool's first: no matter.
        assert_close(sum_up(form, drawn, position_B, grad, active_P=active_P), twin, sum_dtype(dtype))


def apply(
    form: Any, drawn: Drawn, rule: int, partial: Tensor, active_U: Any, tiers: list[Tensor], touches: Any,
    changed: Tensor | None = None, *rounded: Tensor,
) -> None:  # fmt: skip
    *four, movement = tiers
    longer_U = np.append(active_U, [True] * 3)
    form.kernels.apply_rows(
        rule, hyper(form, rule), index(form, drawn.piece_U1), partial.to(form.device), index(form, drawn.source_U),
        flags(form, longer_U), *four, movement if touches is not None else None, touches, changed, *rounded,
    )  # fmt: skip


@form_grid(rule=RULES, dim=DIMS, dtype=DTYPES)
def test_apply_rows_equals_its_twin(form: Any, dim: int, dtype: torch.dtype, rule: int) -> None:
    """Some rows of a dim have many pieces, and some dims a movement record."""
    drawn, measured = Drawn(dim + rule, piece_lookups=2 if dim in (3, 16) else 6), dim != 64
    active_U = drawn.random.random(drawn.rows) < 0.7
    partial = drawn.numbers(sum_dtype(dtype), len(drawn.piece_P1) - 1, dim)
    before = draw_tiers(drawn, rule, dim, dtype)
    started = [tier.clone() for tier in before]
    tiers = [tier.to(form.device, copy=True) for tier in before]
    touches = torch.arange(drawn.hot_rows, dtype=torch.int32, device=form.device) if measured else None
    changed = torch.zeros(drawn.hot_rows, dtype=torch.bool, device=form.device) if dim != 3 else None
    apply(form, drawn, rule, partial, active_U, tiers, touches, changed)

    twins, twin_touches = [exact(tier) for tier in before[:4]], np.arange(drawn.hot_rows)
    twins.append(before[4].numpy().copy())
    record = (twins[4], twin_touches) if measured else (None, None)
    twin_changed = np.zeros(drawn.hot_rows, np.bool_)
    reference_device.apply_rows(
        rule, LR, EPS, BETA1, BETA2, STEP, drawn.piece_U1, exact(partial), drawn.source_U, active_U, *twins[:4], *record,
        twin_changed,
    )  # fmt: skip
    assert changed is None or changed.tolist() == twin_changed.tolist()
    for mine, twin in zip(tiers[:4], twins[:4], strict=True):
        assert_close(mine, twin, dtype)
    if measured:  # every bit of what the row really moved by, but for the order of a sum
        hot_U = active_U & (drawn.source_U >= 0)
        slots, wide = torch.from_numpy(drawn.source_U[hot_U]).long(), sum_dtype(dtype)
        moved = tiers[0].cpu()[slots].to(wide) - before[0][slots].to(wide)
        add_to_record(before[4], slots, slots, moved)
        assert torch.equal(tiers[4].cpu()[:, :-4], before[4][:, :-4])
        assert_close(*(each.cpu().view(torch.float32)[:, -1] for each in (tiers[4], before[4])), torch.float32)
    assert touches is None or touches.tolist() == twin_touches.tolist()
    moved = drawn.source_U[active_U]
    for mine, old, rows in zip(tiers, started, [moved, moved, ~moved, ~moved, moved], strict=True):
        still = np.setdiff1d(np.arange(len(old)), rows[rows >= 0])
        assert torch.equal(mine[still].cpu(), old[still]), (
            "a row that is not active, or in the other tier, stays as it was"
        )


def rounding(form: Any, numbers: list[int]) -> list[Tensor]:
    step_bits = np.array([rows16.step_dice(SEED, STEP)], np.uint64).view(np.int64)
    given = torch.tensor(numbers, dtype=torch.int64), torch.from_numpy(step_bits), torch.zeros(1, dtype=torch.int32)
    return [each.to(form.device) for each in given]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_of_16_bits_are_rounded_by_the_dice_of_the_cpu(form: Any, dtype: torch.dtype) -> None:
    """A row of zeros minus its gradient is any number of float32, without an error: then every bit is that of the plain twin."""
    random = np.random.default_rng(5)
    sizes = np.exp2(random.uniform(-149, 127.9, 240)) * random.choice([-1, 1], 240)
    edges = [0, 65504, 65519, 65536, 3.4e38, 2.0**-14, 2.0**-24, 2.0**-25, 2.0**-126, np.inf, -np.inf, np.nan]
    values = np.concatenate([sizes, random.uniform(-1e-4, 1e-4, 239), edges]).astype(np.float32)[: 7 * 70].reshape(70, 7)
    numbers = [*range(60), *(int(n) for n in random.integers(0, 2**62, 10))]
    source_U = np.where(np.arange(70) % 2, ~(np.arange(70) // 2), np.arange(70) // 2)
    hot, cold = (torch.zeros((35, 7), dtype=dtype, device=form.device) for _ in range(2))
    state, scaled = torch.zeros((35, 0), device=form.device), hyper(form, SGD)
    scaled[0] = -1.0
    overflow = rounding(form, numbers)
    form.kernels.apply_rows(
        SGD, scaled, index(form, range(71)), torch.from_numpy(values).to(form.device), index(form, source_U),
        flags(form, np.ones(70, bool)), hot, state, cold, state, None, None, None, *overflow,
    )  # fmt: skip
    patterns = np.dtype(np.uint16 if dtype == torch.bfloat16 else np.int16)
    step_bits = rows16.step_dice(SEED, STEP)
    throws = np.array([[rows16.dice(rows16.row_dice(step_bits, n), d) for d in range(7)] for n in numbers], np.uint32)
    wanted = rows16.narrowed(values, throws, patterns)
    for mine, rows in ((hot, slice(0, None, 2)), (cold, slice(1, None, 2))):
        assert mine.cpu().view(torch.int16).numpy().tolist() == wanted[rows].view(np.int16).tolist()
    assert overflow[2].item() == 1


@form_grid(rule=RULES, dtype=[torch.bfloat16, torch.float16], sums=[torch.float32, torch.float64])
def test_rows_of_16_bits_are_updated_in_more(form: Any, dtype: torch.dtype, rule: int, sums: torch.dtype) -> None:
    """State is not rounded, a row is one of the two neighbours of the twin's, and the record has what it moved by."""
    drawn, dim = Drawn(rule), 16
    active_U = drawn.random.random(drawn.rows) < 0.7
    partial = drawn.numbers(sums, len(drawn.piece_P1) - 1, dim)
    before = draw_tiers(drawn, rule, dim, sums)
    before[0], before[2] = before[0].to(dtype), before[2].to(dtype)
    tiers = [tier.to(form.device, copy=True) for tier in before]
    touches = torch.zeros(drawn.hot_rows, dtype=torch.int32, device=form.device)
    given = rounding(form, list(range(drawn.rows)))
    apply(form, drawn, rule, partial, active_U, tiers, touches, None, *given)

    twins = [exact(tier) for tier in before[:4]]
    reference_device.apply_rows(
        rule, LR, EPS, BETA1, BETA2, STEP, drawn.piece_U1, exact(partial), drawn.source_U, active_U, *twins, None, None
    )
    gap = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10
    for which in (0, 2):
        np.testing.assert_array_less(np.abs(exact(tiers[which]) - twins[which]), np.abs(twins[which]) * gap + 1e-6)
        assert_close(tiers[which + 1], twins[which + 1], sums)
    slots = torch.from_numpy(drawn.source_U[active_U & (drawn.source_U >= 0)]).long()
    add_to_record(before[4], slots, slots * 0, tiers[0].cpu()[slots].float() - before[0][slots].float())
    assert torch.equal(tiers[4].cpu()[:, :-4], before[4][:, :-4])
    assert given[2].item() == 0


@form_grid(dim=DIMS, dtype=DTYPES)
def test_movement_equals_its_twin(form: Any, dim: int, dtype: torch.dtype) -> None:
    drawn = Drawn(dim)
    record, weights = draw_record(drawn, 37, dim), drawn.numbers(dtype, 37, dim)
    weights[4] = record[4] = 0
    record.view(torch.float32)[5:7, -1] = torch.tensor([torch.nan, torch.inf])  # the row moved by no number
    out = torch.full((37, 4), torch.nan, dtype=sum_dtype(dtype), device=form.device)
    form.kernels.movement(record.to(form.device), weights.to(form.device), out)
    twin = reference_device.movement(record.numpy(), exact(weights))
    assert_close(out, twin, torch.float32)
    assert np.isfinite(twin[:, 0]).tolist() == [slot not in (5, 6) for slot in range(37)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [256, 512, 1000, 1024])
def test_wide_rows_equal_their_twins(form: Any, dim: int, dtype: torch.dtype) -> None:
    test_gather_pooled_equals_its_twin(form, dim, dtype, longest=7)
    test_sum_pieces_equals_its_twin(form, dim, dtype, longest=7)
    for rule in RULES:
        test_apply_rows_equals_its_twin(form, dim, dtype, rule)
    test_movement_equals_its_twin(form, dim, dtype)


def test_nothing_to_do_is_no_launch(form: Any) -> None:
    """A launch of no programs is an error on a device."""
    kernels, none, flag = form.kernels, index(form, []), flags(form, np.zeros(2, bool))
    rows = torch.ones((0, 4), device=form.device)
    kernels.gather_pooled(none, index(form, [0]), 2, index(form, [0]), none, none, flag, rows, rows, rows.view(0, 1, 4))
    kernels.sum_pieces(index(form, [0]), none, 2, index(form, [0]), none, flag, none, rows.view(0, 1, 4), rows)
    kernels.apply_rows(
        SGD, hyper(form, SGD), index(form, [0]), rows, none, flag[:0], rows, rows[:, :0], rows, rows[:, :0], None, None
    )
    kernels.movement(torch.empty((0, 12), dtype=torch.int8, device=form.device), rows, rows.new_empty((0, 4)))


def test_a_tier_may_be_empty(form: Any) -> None:
    drawn = Drawn(5)
    drawn.source_U = np.arange(drawn.rows)
    hot, none = drawn.numbers(torch.float32, drawn.hot_rows, 16), torch.zeros((0, 16))
    samples_S = np.arange(drawn.samples)
    all_hot = gather(form, drawn, samples_S, hot, none, torch.uint8)
    drawn.source_U = ~drawn.source_U
    assert torch.equal(gather(form, drawn, samples_S, none, hot), all_hot)


@pytest.mark.parametrize("dim", [3, 16])
def test_what_a_row_gets_depends_on_nothing_beside_it(form: Any, dim: int) -> None:
    """Neither on its place among the programs of a launch, nor on the launch: the same bits again."""
    drawn = Drawn(11, samples=70, longest=9)
    hot, cold = drawn.numbers(torch.float32, drawn.hot_rows, dim), drawn.numbers(torch.float32, drawn.cold_rows, dim)
    samples_S = drawn.random.permutation(70)
    out = gather(form, drawn, samples_S, hot, cold)
    assert torch.equal(gather(form, drawn, samples_S, hot, cold), out)
    assert torch.equal(gather(form, drawn, samples_S[::-1], hot, cold), out.flip(0))
    assert torch.equal(gather(form, drawn, samples_S[5:50], hot, cold), out[5:50])

    grad = drawn.numbers(torch.float32, 70, len(drawn.pool_features), dim)
    partial = sum_up(form, drawn, np.arange(70), grad)
    assert torch.equal(sum_up(form, drawn, np.arange(70), grad), partial)
    assert torch.equal(sum_up(form, drawn, np.arange(70), grad, slice(3, 20)), partial[3:19])

    active_U, first = np.ones(drawn.rows, bool), draw_tiers(drawn, LAZY_ADAM, dim, torch.float32)
    once, again = ([tier.to(form.device, copy=True) for tier in first] for _ in range(2))
    apply(form, drawn, LAZY_ADAM, partial, active_U, once, None)
    for chosen in (active_U & (drawn.source_U < 0), active_U & (drawn.source_U >= 0)):  # in two launches
        apply(form, drawn, LAZY_ADAM, partial, chosen, again, None)
    assert all(torch.equal(*tiers) for tiers in zip(once, again, strict=True))
