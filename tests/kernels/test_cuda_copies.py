"""The calls of kernels/cuda.py that only copy, in each of their forms, against their plain twins: every bit arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.reference import cuda as reference_device
from tests.kernels.test_cuda import DTYPES, Drawn, exact, form_grid, index


@form_grid(chosen=["from", "to", "both", "neither"], dim=[0, 1, 3, 16, 128, 300], dtype=DTYPES)
def test_copy_rows_equals_its_twin(form: Any, dim: int, dtype: torch.dtype, chosen: str) -> None:
    drawn = Drawn(dim)
    source, target = drawn.numbers(dtype, 23, dim), drawn.numbers(dtype, 31, dim)
    from_rows = drawn.random.permutation(23)[:9] if chosen in ("from", "both") else None
    to_rows = drawn.random.permutation(31)[:9] if chosen in ("to", "both") else None
    mine, twin = target.to(form.device, copy=True), exact(target)
    places = [None if rows is None else index(form, rows) for rows in (from_rows, to_rows)]
    form.kernels.copy_rows(source.to(form.device), places[0], mine, places[1])
    reference_device.copy_rows(exact(source), from_rows, twin, to_rows)
    assert exact(mine).tolist() == twin.tolist()


def test_copy_rows_takes_numbers_of_64_bits(form: Any) -> None:
    """Those of rows that a device reads in host memory, of which a pool may have more than 2^31."""
    source, numbers = torch.arange(46.0).view(23, 2), torch.tensor([7, 0, 22])
    out = torch.zeros((3, 2), device=form.device)
    form.kernels.copy_rows(source.to(form.device), numbers.to(form.device), out, None)
    assert torch.equal(out.cpu(), source[numbers])


def rows_of(form: Any, random: Any, count: int, dim: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Weights and optimizer state of any bits, with patterns that are no numbers among them."""
    state = torch.float64 if dtype == torch.float64 else torch.float32
    arrays = []
    for columns, kind in ((dim, dtype), (width, state)):
        drawn = random.integers(0, 256, count * columns * kind.itemsize, dtype=np.uint8)
        arrays.append(torch.frombuffer(drawn, dtype=kind) if len(drawn) else torch.empty(0, dtype=kind))
    return [array.view(count, -1 if array.numel() else 0).to(form.device) for array in arrays]


def patterns(rows: list[Tensor]) -> list[Any]:
    """A copy of the rows' bits, for a twin to work on."""
    return [
        row.cpu().numpy(force=True).view(np.uint8)
        for row in (each.view(torch.int16).clone() for each in rows if each.numel())
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", [[(16, 1)], [(3, 0), (70, 140), (1, 1)]], ids=["one pool", "three pools"])
def test_take_rows_equals_its_twin(form: Any, dtype: torch.dtype, widths: list[tuple[int, int]]) -> None:
    """Pools of several widths, rows of each from several batches: lines of few rows beside lines of many."""
    random, first = np.random.default_rng(3), 0
    table, twins, memory, results = [], [], [], []
    from_rows, to_rows = np.zeros(0, np.int32), np.zeros(0, np.int32)
    for dim, width in widths:
        mine = rows_of(form, random, 90, dim, width, dtype)
        twin, free = patterns(mine), random.permutation(90)
        results.append((mine, twin))
        for count in (61, 1, 7):
            theirs = rows_of(form, random, 80, dim, width, dtype)
            taken, places, free = random.permutation(80)[:count], free[:count], free[count:]
            sizes = [each.shape[1] * each.itemsize for each in mine]
            addresses = [(a.data_ptr(), b.data_ptr(), size) for a, b, size in zip(theirs, mine, sizes, strict=True)]
            table.append([first, count, *addresses[0], *addresses[1]])
            twins.append((patterns(theirs), twin, taken, places))
            from_rows, to_rows = np.append(from_rows, taken), np.append(to_rows, places)
            first += count
            memory += [*theirs, *mine]
    unit_bytes = 2 if any(size % 4 for line in table for size in (line[4], line[7])) else 4
    lines = torch.tensor(table, device=form.device)
    form.kernels.take_rows(lines, index(form, from_rows), index(form, to_rows), 61, unit_bytes, memory)
    reference_device.take_rows(twins)
    for mine, twin in results:
        for now, wanted in zip(patterns(mine), twin, strict=True):
            assert now.tolist() == wanted.tolist()


@form_grid(dense=[0, 1, 13, 300], dtype=DTYPES[:2])
def test_fill_lines_equals_its_twin(form: Any, dense: int, dtype: torch.dtype) -> None:
    """Samples in any order, lines of padding behind them, and memory behind the lines that stays as it is."""
    drawn = Drawn(dense)
    dense_BX, labels_B, scale_S = (
        drawn.numbers(dtype, *shape).to(form.device) for shape in ((70, dense), (70,), (50,))
    )
    samples_S = np.append(drawn.random.permutation(70)[:47], [-1, -1, -1])
    out = [torch.full(shape, 7.0, dtype=dtype, device=form.device) for shape in ((53, dense), (53,), (53,))]
    form.kernels.fill_lines(index(form, samples_S), dense_BX, labels_B, scale_S, *(each[:50] for each in out))
    twin = [*reference_device.fill_lines(samples_S, exact(dense_BX), exact(labels_B)), exact(scale_S)]
    for mine, wanted in zip(out, twin, strict=True):
        assert exact(mine[:50]).tolist() == wanted.tolist()
        assert bool((mine[50:] == 7).all())


def test_nothing_to_copy_is_no_launch(form: Any) -> None:
    """A launch of no programs is an error on a device."""
    none, rows = index(form, []), torch.ones((0, 4), device=form.device)
    form.kernels.copy_rows(rows, none, rows, None)
    form.kernels.take_rows(torch.zeros((0, 8), dtype=torch.int64, device=form.device), none, none, 0, 4, [])
    form.kernels.fill_lines(none, rows, rows[:, 0], rows[:, 0], rows.clone(), rows[:, 0].clone(), rows[:, 0].clone())
