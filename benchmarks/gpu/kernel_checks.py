"""The device's kernels against the same calls on host memory, on random problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.kernels import row_update
from benchmarks.common.contestants import Where

RULES = {
    "sgd": row_update.SGD,
    "rowwise_adagrad": row_update.ROWWISE_ADAGRAD,
    "adagrad": row_update.ADAGRAD,
    "lazy_adam": row_update.LAZY_ADAM,
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
DIMS: dict[torch.dtype, tuple[int, ...]] = {
    torch.float64: (24,),
    torch.float32: (16, 128),
    torch.bfloat16: (16,),
    torch.float16: (16,),
}
REHEARSED_DIMS: dict[torch.dtype, tuple[int, ...]] = {torch.float64: (8,), torch.bfloat16: (8,)}
PIECE = 4
"""Bags of a piece at the most, so that popular rows have several."""

Call = Callable[[ModuleType, dict[str, Tensor]], None]


def problem(dtype: torch.dtype, dim: int, state_width: int, seed: int, samples: int) -> dict[str, Tensor]:
    """One pool's batch: bags of 0 to 4 lookups, hot and cold rows, some samples skipped, some lines padding."""
    dice = np.random.default_rng(seed)
    features, hot, cold = 6, 37, 53
    offsets = np.concatenate([[0], np.cumsum(dice.integers(0, 5, samples * features))])
    source_U = np.concatenate([dice.permutation(hot)[:31], ~dice.permutation(cold)[:47]])
    dice.shuffle(source_U)
    inverse_N = np.minimum(dice.zipf(1.3, offsets[-1]) - 1, len(source_U) - 1)
    bag_N = np.repeat(np.arange(samples * features), np.diff(offsets))
    order = np.argsort(inverse_N, kind="stable")
    counts_U = np.bincount(inverse_N, minlength=len(source_U))
    pieces_U = -(-counts_U // PIECE)
    sizes = [
        min(PIECE, count - PIECE * k) for count, pieces in zip(counts_U, pieces_U, strict=True) for k in range(pieces)
    ]
    position_B = np.where(dice.random(samples) < 0.2, -1, 0)
    lines = dice.permutation(np.flatnonzero(position_B == 0))
    position_B[lines] = np.arange(len(lines))
    ints = {
        "samples_S": np.concatenate([lines, [-1, -1, -1]]),
        "pool_features_T": np.array([4, 0, 1, 5]),
        "offsets": offsets,
        "inverse_N": inverse_N,
        "source_U": source_U,
        "segment_bag_N": bag_N[order],
        "piece_P1": np.concatenate([[0], np.cumsum(sizes)]),
        "piece_U1": np.concatenate([[0], np.cumsum(pieces_U)]),
        "column_F": np.array([2, 3, 0, 1, 5, 4]),
        "position_B": position_B,
        "touches_H": dice.integers(0, 3, hot),
        "rows_C": dice.permutation(cold)[:20],
        "slots_C": dice.permutation(hot)[:20],
    }
    floats = {
        "hot_HD": (hot, dim), "hot_state_HK": (hot, state_width), "cold_CD": (cold, dim), "cold_state_CK": (cold, state_width),
        "record_HR": (hot, dim + 2), "grad_STD": (len(lines), features, dim),
    }  # fmt: skip
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = {name: torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)) for name, values in ints.items()}
    found |= {name: torch.from_numpy(dice.random(shape)).to(dtype) for name, shape in floats.items()}
    found["grad_STD"] -= 0.5
    found["mean_F"] = torch.from_numpy(dice.random(features) < 0.5)
    found["active_U"] = torch.from_numpy(dice.random(len(source_U)) < 0.8)
    found["hyper_5"] = torch.tensor([0.05, 1e-8, 0.9, 0.999, 0.7], dtype=torch.float64)
    found["out_STD"] = torch.full((len(lines) + 3, 4, dim), 7.0, dtype=dtype)
    found["partial_PD"] = torch.full((len(sizes), dim), 7.0, dtype=wide)
    found["moved_H5"] = torch.full((hot, 5), 7.0, dtype=wide)
    return found


def gather_pooled(kernels: ModuleType, p: dict[str, Tensor]) -> None:
    kernels.gather_pooled(
        p["samples_S"], p["pool_features_T"], 6, p["offsets"], p["inverse_N"], p["source_U"], p["mean_F"], p["hot_HD"],
        p["cold_CD"], p["out_STD"],
    )  # fmt: skip


def sum_pieces(kernels: ModuleType, p: dict[str, Tensor]) -> None:
    kernels.sum_pieces(
        p["piece_P1"], p["segment_bag_N"], 6, p["offsets"], p["column_F"], p["mean_F"], p["position_B"], p["grad_STD"],
        p["partial_PD"],
    )  # fmt: skip


def apply_rows(rule: int, measured: bool) -> Call:
    def call(kernels: ModuleType, p: dict[str, Tensor]) -> None:
        sum_pieces(kernels, p)
        kernels.apply_rows(
            rule, p["hyper_5"], p["piece_U1"], p["partial_PD"], p["source_U"], p["active_U"], p["hot_HD"], p["hot_state_HK"],
            p["cold_CD"], p["cold_state_CK"], p["record_HR"] if measured else None, p["touches_H"] if measured else None,
        )  # fmt: skip

    return call


def movement(kernels: ModuleType, p: dict[str, Tensor]) -> None:
    kernels.movement(p["record_HR"], p["hot_HD"], p["moved_H5"])


def copy_rows(kernels: ModuleType, p: dict[str, Tensor]) -> None:
    kernels.copy_rows(p["cold_CD"], p["rows_C"], p["hot_HD"], p["slots_C"])
    kernels.copy_rows(p["cold_state_CK"], p["rows_C"], p["hot_state_HK"], p["slots_C"])
    kernels.copy_rows(p["hot_HD"], p["slots_C"], p["cold_CD"][:20], None)


def calls() -> Iterator[tuple[str, Call, int | None, tuple[torch.dtype, ...]]]:
    """(name, call, rule or none, dtypes)."""
    every = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    yield "gather_pooled", gather_pooled, None, every
    yield "sum_pieces", sum_pieces, None, every
    for name, rule in RULES.items():
        for measured in (False, True):
            yield f"apply_rows {name}{', measured' if measured else ''}", apply_rows(rule, measured), rule, every[:2]
    yield "movement", movement, None, every[:2]
    yield "copy_rows", copy_rows, None, every[:3]


def state_width(rule: int | None, dim: int) -> int:
    return {
        None: 1,
        row_update.SGD: 0,
        row_update.ROWWISE_ADAGRAD: 1,
        row_update.ADAGRAD: dim,
        row_update.LAZY_ADAM: 2 * dim,
    }[rule]


def check_kernels(where: Where, deadline: float, left_out: list[str]) -> list[dict[str, Any]]:
    """Every call on every dtype: the greatest difference, and whether it is within bounds. Each compiles a kernel of its own,
    so what the deadline does not leave time for is named in `left_out`."""
    from adaptive_rec.kernels import cuda, host

    found = []
    for name, call, rule, dtypes in calls():
        sizes = REHEARSED_DIMS if where.rehearsal else DIMS
        for dtype, dim in [(each, dim) for each in dtypes for dim in sizes.get(each, ())]:
            what = f"kernel {name}, {str(dtype).removeprefix('torch.')}, dim {dim}"
            if time.perf_counter() > deadline and not where.rehearsal:
                left_out.append(what)
                continue
            mine = problem(dtype, dim, state_width(rule, dim), seed=dim, samples=6 if where.rehearsal else 300)
            theirs = {key: tensor.clone() for key, tensor in mine.items()}
            there = {key: tensor.to(where.device) for key, tensor in mine.items()}
            worst, error = float("inf"), ""
            try:
                call(cuda, there)
                call(host, theirs)
                worst = max(difference(there[key].cpu(), theirs[key]) for key in theirs)
            except Exception as fault:
                error = f"{type(fault).__name__}: {fault}"
            bound = BOUNDS[dtype]
            found.append({"check": what, "difference": worst, "bound": bound, "passed": worst <= bound, "error": error})
    return found


def difference(one: Tensor, other: Tensor) -> float:
    """Greatest difference relative to the greatest value; infinite where one is no number and the other is."""
    if one.numel() == 0:
        return 0.0
    a, b = one.double(), other.double()
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return float("inf")
    finite = torch.isfinite(a)
    if not finite.any():
        return 0.0
    return float((a - b)[finite].abs().max() / max(1.0, float(b[finite].abs().max())))
