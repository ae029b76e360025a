"""Train a client twice from one seed, plain and wrapped, and compare the losses of all steps and what was learnt."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.modules.tensors.weight import TieredWeight
from tests.clients.client import Client

STEPS = 20
LOSS_TOLERANCE = 1e-10
STATE_TOLERANCE = 1e-9
KNOBS = {"reclassify_every": 5, "sample_ratio": 1.0, "hysteresis": 0.0}
"""Rows change their tiers every five steps."""
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float]] = {
    "adagrad": (torch.optim.Adagrad, 0.05),
    "adam": (torch.optim.Adam, 1e-3),
}
"""Classes of torch.optim, with learning rates."""


@dataclass
class Trained:
    """What a loop leaves."""

    losses: list[float]
    state: dict[str, Tensor]
    dice: tuple[Any, ...]
    """States of the generators of torch, NumPy and Python."""
    hot_rows: int = 0
    lookups: int = 0
    tables: int = 0
    left: tuple[tuple[str, str], ...] = ()
    whole: set[str] = field(default_factory=set)
    """Tables that were read whole in the loop."""


@dataclass
class Outcome:
    """A client under one optimizer. `verdict`: equal, refused, differs, broken without us, no tables."""

    library: str
    name: str
    optimizer: str
    verdict: str
    lr: float = 0.0
    note: str = ""
    loss_difference: float = 0.0
    state_difference: float = 0.0
    smaller_lr: bool = False
    """Whether `lr` is smaller than usual, because plain training is chaotic at the usual one."""
    chaotic: str = ""
    """Says so where plain training from other last places has other losses."""
    undetermined: int = 0
    """Values of the state dict that plain training does not determine: another rounding moves them as far."""
    changed_lines: int = 0
    tables: int = 0
    hot_rows: int = 0
    lookups: int = 0
    left: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def holds_tables(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in model.modules())


def try_client(client: Client, rule: str, steps: int = STEPS) -> Outcome:
    """Train a client plain and wrapped under an optimizer of `OPTIMIZERS`, and compare.

    A learning rate at which plain training is chaotic compares nothing: there, first values that differ in the last place lead
    plain training itself to other losses. Such a client is tried at a tenth of the rate, and the note says so.
    """
    started, rate = time.perf_counter(), OPTIMIZERS[rule][1]
    out = _try_at(client, rule, rate, steps)
    while out.chaotic and rate > OPTIMIZERS[rule][1] / 1000:
        rate /= 10
        smaller = _try_at(client, rule, rate, steps)
        smaller.smaller_lr = True
        smaller.note = "; ".join(filter(None, (f"lr {rate:g}: {out.chaotic}", smaller.note)))
        out = smaller
    out.seconds = round(time.perf_counter() - started, 2)
    return out


def _try_at(client: Client, rule: str, lr: float, steps: int) -> Outcome:
    out = Outcome(client.library, client.name, rule, "broken without us", lr, changed_lines=client.changed_lines)
    try:
        _seed(7)
        if not holds_tables(client.make()):
            out.verdict = "no tables"
            return out
        batches = client.batches(steps)
        plain = train(client, rule, lr, batches, wrapped=False)
    except Exception as error:  # any fault of the library
        out.note = _told(error)
        return out
    try:
        wrapped = train(client, rule, lr, batches, wrapped=True)
    except AdaptiveRecError as error:
        out.verdict, out.note = "refused", _told(error)
    except Exception as error:  # a fault of ours
        out.verdict, out.note = "differs", _told(error)
    else:
        _compare(out, plain, wrapped, lambda: train(client, rule, lr, batches, wrapped=False, rounded=True))
    return out


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def train(client: Client, rule: str, lr: float, batches: Any, wrapped: bool, rounded: bool = False) -> Trained:
    """Train from the first seed on. The two loops differ by the call of `wrap`. `rounded`: first values are rounded otherwise."""
    _seed(7)
    model = client.make().train()
    if rounded:
        _round_otherwise(model)
    optimizer = OPTIMIZERS[rule][0]([one for one in model.parameters() if one.requires_grad], lr=lr)
    _seed(8)
    runtime = adaptive_rec.wrap(model, budget=_budget(model), optimizer=optimizer, knobs=KNOBS) if wrapped else None
    whole: set[str] = set()
    with _whole_reads(whole):
        if client.loop is not None:
            losses = client.loop(model, optimizer, copy.deepcopy(batches))
        else:
            losses = [_step(client, model, optimizer, copy.deepcopy(batch)) for batch in batches]
    out = Trained(losses, {name: value.clone() for name, value in model.state_dict().items()}, _dice(), whole=whole)
    if runtime is not None:
        stats = runtime.stats()
        out.hot_rows, out.lookups, out.tables = stats.hot_rows, stats.lookups, len(stats.tables)
        out.left = runtime.report.left
        runtime.close()
    return out


def _budget(model: nn.Module) -> int:
    """Return a third of the bytes of all tables."""
    found = {id(m.weight): m.weight for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    return max(1024, sum(weight.numel() * weight.element_size() for weight in found.values()) // 3)


def _step(client: Client, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    loss = client.loss(model, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@contextmanager
def _whole_reads(found: set[str]) -> Iterator[None]:
    """Collect the names of tables that are read whole."""
    read = TieredWeight.whole

    def whole(weight: TieredWeight) -> Tensor:
        found.add(weight.name)
        return read(weight)

    with patch.object(TieredWeight, "whole", whole):
        yield


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _dice() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def _round_otherwise(model: nn.Module) -> None:
    """Change first values by one unit in the last place, up or down."""
    dice = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dtype == torch.float64:
                signs = torch.randint(2, parameter.shape, generator=dice) * 2 - 1
                parameter.mul_(1 + signs * 2.0**-52)


def _compare(out: Outcome, plain: Trained, ours: Trained, other_rounding: Callable[[], Trained]) -> None:
    """Judge by losses, by all values learnt, and by the state of random generators.

    A value whose gradient is zero but for rounding (a bias before a batch norm, say) is moved by Adagrad's and Adam's division as
    far as any other. So where values differ by more than the tolerance, `other_rounding` trains the plain loop from first values
    that differ in the last place: a value may differ by ten times as much as it does there.
    """
    out.tables, out.hot_rows, out.lookups = ours.tables, ours.hot_rows, ours.lookups
    out.left, out.whole = [f"{name}: {reason}" for name, reason in ours.left], sorted(ours.whole)
    faults = []
    if not all(map(np.isfinite, plain.losses)):
        faults.append("the plain losses are not finite")
    twin = cache(other_rounding)
    out.loss_difference, first = _loss_gap(plain.losses, ours.losses)
    if not out.loss_difference <= LOSS_TOLERANCE:
        faults.append(f"losses differ by {out.loss_difference:.1e} from step {first} on")
        without_us, _ = _loss_gap(plain.losses, twin().losses)
        if not without_us * 10 <= out.loss_difference:
            out.chaotic = f"at {out.lr:g} plain losses differ by {without_us:.0e} from another rounding alone"
    if plain.state.keys() != ours.state.keys():
        faults.append(f"state dicts have other names: {sorted(plain.state.keys() ^ ours.state.keys())[:4]}")
    else:
        gaps = {name: _gap(plain.state[name], ours.state[name]) for name in plain.state}
        if loose := [name for name, gap in gaps.items() if not gap <= STATE_TOLERANCE]:
            free = [name for name in loose if gaps[name] <= 10 * _gap(plain.state[name], twin().state[name])]
            out.undetermined = len(free)
            gaps = {name: gap for name, gap in gaps.items() if name not in free} or {"": 0.0}
        worst = max(gaps, key=lambda name: gaps[name])
        out.state_difference = gaps[worst]
        if not out.state_difference <= STATE_TOLERANCE:
            faults.append(f"{worst} differs by {out.state_difference:.1e}")
    if plain.dice != ours.dice:
        faults.append("wrapping draws random numbers")
    if ours.lookups and not ours.hot_rows:
        faults.append("no row was hot")
    out.verdict, out.note = ("differs", "; ".join(faults)) if faults else ("equal", "")


def _loss_gap(plain: list[float], ours: list[float]) -> tuple[float, int]:
    """Return the largest relative difference, and the first step with one above the tolerance."""
    gaps = [abs(a - b) / max(abs(a), 1e-300) if a != b else 0.0 for a, b in zip(plain, ours, strict=True)]
    return max(gaps), next((step for step, gap in enumerate(gaps) if not gap <= LOSS_TOLERANCE), len(gaps))


def _gap(plain: Tensor, ours: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the larger of 1 and the largest value."""
    if plain.shape != ours.shape or plain.dtype != ours.dtype:
        return float("inf")
    if not plain.numel():
        return 0.0
    a, b = (one.to(torch.float64) for one in (plain, ours))
    return float((a - b).abs().max() / a.abs().max().clamp(min=1.0))
