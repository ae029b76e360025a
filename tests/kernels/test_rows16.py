"""16-bit rows: against the plain twin, against torch's own types, and what stochastic rounding promises."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

import adaptive_rec
from adaptive_rec.kernels import rows16
from adaptive_rec.kernels.jit import JIT
from tests.kernels.reference import rows16 as plain

TORCH = {np.uint16: (torch.uint16, torch.bfloat16), np.int16: (torch.int16, torch.float16)}
both = pytest.mark.parametrize("dtype", [np.uint16, np.int16])


def test_kernels_that_the_interpreter_calls_are_kept_for_later_runs() -> None:
    """Else each run compiles them, and says so: the dice of a step on a device, where rows have 16 bits, were not kept."""
    root, found = Path(adaptive_rec.__file__).parent, dict[str, Dispatcher]()
    for path in root.rglob("*.py"):
        if "kernels" in path.relative_to(root).parts or "adaptive_rec.kernels" not in (text := path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("adaptive_rec.kernels."):
                module = importlib.import_module(node.module or "")
                found |= {f"{node.module}.{each.name}": getattr(module, each.name) for each in node.names}
    kernels = {name: kernel for name, kernel in found.items() if isinstance(kernel, Dispatcher)}
    assert len(kernels) > 30
    assert [name for name, kernel in kernels.items() if isinstance(kernel._cache, NullCache)] == []


@njit(**JIT)
def read_all(table_RD, out_RD):
    for r in range(len(table_RD)):
        for d in range(table_RD.shape[1]):
            out_RD[r, d] = rows16.read(table_RD, r, d)


@njit(**JIT)
def write_all(table_RD, values_RD, random_RD):
    for r in range(len(table_RD)):
        for d in range(table_RD.shape[1]):
            rows16.write(table_RD, r, d, values_RD[r, d], random_RD[r, d])


@njit(**JIT)
def dice_all(seed, step, rows_R, out_RD):
    for r in range(len(rows_R)):
        row_bits = rows16.row_dice(rows16.step_dice(seed, step), rows_R[r])
        for d in range(out_RD.shape[1]):
            out_RD[r, d] = rows16.dice(row_bits, d)


@njit(**JIT)
def overflows_all(table_RD, out_R):
    for r in range(len(table_RD)):
        out_R[r] = rows16.overflows(table_RD, r)


def written(values: Any, random: Any, dtype: Any) -> Any:
    values = np.asarray(values, dtype=np.float32).reshape(1, -1)
    table = np.zeros(values.shape, dtype=dtype)
    write_all(table, values, np.broadcast_to(np.asarray(random, dtype=np.uint32), values.shape))
    return table[0]


def by_torch(patterns: Any) -> Any:
    number, kind = TORCH[patterns.dtype.type]
    return torch.from_numpy(patterns).view(kind).float().numpy()


def every_number(dtype: Any) -> Any:
    """All bit patterns, and what they stand for."""
    patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    return patterns, by_torch(patterns)


def awkward_values() -> Any:
    random = np.random.default_rng(1)
    exponents = np.exp2(random.uniform(-149, 127.9, 20_000)) * random.choice([-1, 1], 20_000)
    edges = [
        0.0,
        -0.0,
        65504.0,
        65519.0,
        65520.0,
        65536.0,
        3.4e38,
        2.0**-14,
        2.0**-24,
        2.0**-25,
        2.0**-126,
        1e-45,
        np.inf,
        -np.inf,
        np.nan,
    ]
    return np.concatenate([exponents, random.uniform(-1e-4, 1e-4, 20_000), edges]).astype(np.float32)


@both
def test_every_bit_pattern_is_read_as_torch_reads_it(dtype: Any) -> None:
    patterns, values = every_number(dtype)
    out = np.empty((1, len(patterns)), dtype=np.float32)
    read_all(patterns[None], out)
    np.testing.assert_array_equal(out[0], values)
    np.testing.assert_array_equal(np.signbit(out[0][~np.isnan(values)]), np.signbit(values[~np.isnan(values)]))
    np.testing.assert_array_equal(plain.widened(patterns), values)


@both
@pytest.mark.parametrize("random", [0, 1, 12345, 1 << 31, 2**32 - 1])
def test_what_16_bits_hold_never_changes(dtype: Any, random: int) -> None:
    patterns, values = every_number(dtype)
    same = written(values, random, dtype)
    np.testing.assert_array_equal(same[~np.isnan(values)], patterns[~np.isnan(values)])
    assert np.isnan(by_torch(same)[np.isnan(values)]).all()


@both
def test_writes_as_the_twin_does(dtype: Any) -> None:
    values = awkward_values()
    random = np.random.default_rng(2).integers(0, 1 << 32, len(values), dtype=np.uint32)
    random[:100], random[-100:] = 0, 2**32 - 1
    np.testing.assert_array_equal(written(values, random, dtype), plain.narrowed(values, random, np.dtype(dtype)))


@both
def test_rounds_to_the_nearest_without_dice(dtype: Any) -> None:
    """torch breaks ties towards even numbers, this away from 0; there are none among these values."""
    values = awkward_values()
    number, kind = TORCH[dtype]
    nearest = torch.from_numpy(values).to(kind).view(number).numpy()
    ours = written(values, rows16.NEAREST, dtype)
    low, high = (written(values, bits, dtype) for bits in (rows16.NEAREST - np.uint32(1), rows16.NEAREST))
    ties = (low != high) & ~np.isnan(values)
    assert ties.mean() < 0.1
    np.testing.assert_array_equal(ours[~ties & ~np.isnan(values)], nearest[~ties & ~np.isnan(values)])


@both
def test_only_the_two_neighbours_come_and_on_average_the_value(dtype: Any) -> None:
    numbers = np.sort(every_number(dtype)[1])
    finite = np.unique(numbers[np.isfinite(numbers)])
    draws = 1 << 16
    random = np.random.default_rng(3).integers(0, 1 << 32, draws, dtype=np.uint32)
    for value in np.float32([0.1, -0.7123, 3.14159, 1.001e-3, -3e-5, 1.7e-7, 2e-8]):
        found = by_torch(written(np.full(draws, value), random, dtype)).astype(np.float64)
        low, high = finite[finite <= value].max(), finite[finite >= value].min()
        assert set(found) <= {float(low), float(high)}
        share = (float(value) - float(low)) / (float(high) - float(low))
        deviation = (float(high) - float(low)) * np.sqrt(share * (1 - share) / draws)
        assert abs(found.mean() - float(value)) < 5 * deviation + 2.0**-13 * (float(high) - float(low)), value


@both
def test_small_updates_add_up(dtype: Any) -> None:
    """1000 steps of a hundredth of the spacing: rounded to the nearest they would all be lost."""
    rows, step = 256, np.float32(2.0**-7 / 100 if dtype == np.uint16 else 2.0**-10 / 100)
    table, nearest = np.zeros((rows, 1), dtype=dtype), np.zeros((rows, 1), dtype=dtype)
    for one in (table, nearest):
        write_all(one, np.ones((rows, 1), dtype=np.float32), np.zeros((rows, 1), dtype=np.uint32))
    bits = np.empty((rows, 1), dtype=np.uint32)
    for number in range(1000):
        dice_all(1, number, np.arange(rows), bits)
        write_all(table, plain.widened(table) + step, bits)
        write_all(nearest, plain.widened(nearest) + step, np.full((rows, 1), rows16.NEAREST))
    assert (plain.widened(nearest) == 1).all()
    assert abs(plain.widened(table).mean() - (1 + 1000 * step)) < 0.1 * 1000 * step


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_of_floats_are_plainly_indexed(dtype: Any) -> None:
    values = np.random.default_rng(4).normal(size=(3, 5)).astype(dtype)
    table, back = np.zeros_like(values), np.zeros_like(values)
    write_all(table, values, np.full(values.shape, 2**32 - 1, dtype=np.uint32))
    read_all(table, back)
    np.testing.assert_array_equal(back, values)


def test_dice_are_as_the_twin_has_them() -> None:
    rows = np.array([0, 1, 2, 199_999_999, 2**40], dtype=np.int64)
    for seed, step in ((0, 0), (1, 1), (7, 10**9)):
        found = np.empty((len(rows), 33), dtype=np.uint32)
        dice_all(seed, step, rows, found)
        for r, row in enumerate(rows.tolist()):
            assert found[r].tolist() == [plain.dice(plain.row_dice(plain.step_dice(seed, step), row), d) for d in range(33)]


def test_dice_are_fair_and_forget_row_step_and_component() -> None:
    rows, dim = 1 << 14, 16

    def throw(seed: int, step: int, first: int = 0) -> Any:
        out = np.empty((rows, dim), dtype=np.uint32)
        dice_all(seed, step, np.arange(first, first + rows), out)
        return out / 2.0**32

    values = throw(1, 5)
    assert abs(values.mean() - 0.5) < 5 * np.sqrt(1 / 12 / values.size)
    counts = np.bincount((values * 256).astype(np.int64).ravel(), minlength=256)
    assert abs(((counts - values.size / 256) ** 2).sum() / (values.size / 256) - 255) < 5 * np.sqrt(2 * 255)
    others = [np.roll(values, 1, axis=1), throw(1, 6), throw(2, 5), throw(1, 5, first=1), throw(5, 1)]
    for other in others:
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(values.size)
    # A row's own mean over its components and over steps: no row is rounded up more often than others.
    by_row = np.mean([throw(1, step) for step in range(64)], axis=(0, 2))
    assert abs(by_row.var() / (1 / 12 / (64 * dim)) - 1) < 5 * np.sqrt(2 / rows)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.float32])
def test_rows_that_overflow_half_precision_are_found_among_all_others(dtype: Any, place: int) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    table_RD = np.zeros((len(patterns), 3), dtype=dtype)
    table_RD[:, place] = np.inf if dtype == np.float32 else patterns.view(dtype)
    out_R = np.zeros(len(patterns), dtype=np.bool_)
    overflows_all(table_RD, out_R)
    expected = (
        ~np.isfinite(by_torch(patterns.view(np.int16))) if dtype == np.int16 else np.zeros(len(patterns), np.bool_)
    )
    assert np.array_equal(out_R, expected)
    chosen = [0, 1, 0x7BFF, 0x7C00, 0x7C01, 0x7FFF, 0x8000, 0xFBFF, 0xFC00, 0xFFFF]
    assert [plain.overflows(table_RD, r) for r in chosen] == expected[chosen].tolist()
