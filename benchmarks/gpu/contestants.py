"""The contestants of a cell by their names, its batches and its settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from benchmarks.common.contestants import Contestant, Ours, Where, budget_bytes
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload
from benchmarks.gpu.fbgemm import FbgemmCaching, FbgemmDevice, TorchRecDevice
from benchmarks.gpu.plan import RIVALS, GpuCell
from benchmarks.gpu.rivals import PlainDevice, PlainHybrid, Rival
from benchmarks.gpu.shared_batches import Awaited

Note = Callable[[str], None]

BIG_BATCH_REPORT_STEPS = 10
PRELOADED_STEPS = 1500
PRELOADED_BYTES = 3 << 30
"""Made once for all contestants of a cell; each rival has them in its own form besides."""


@dataclass(frozen=True)
class Context:
    """What every cell needs besides its own description."""

    where: Where
    deadline: float
    """Of `time.perf_counter`."""
    data: str | None
    """A Criteo TSV file, or none: synthetic samples."""
    out: str
    note: Note
    save: Callable[[dict[str, Any]], None]
    """Given what is known so far, again and again: a cell that is killed leaves that much."""
    apart: list[str] | None = None
    """Arguments for the processes of rivals; none: they run in this one."""
    batches: Awaited | None = None
    """In a rival's process: those that the cell's process makes for all."""


def where_of(args: argparse.Namespace) -> Where:
    return Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)


def settings_of(cell: GpuCell, where: Where, **more: Any) -> tuple[str, ...]:
    chosen = {"optimizer.embedding": cell.rule, **more}
    if where.rehearsal:
        chosen |= {"knobs.report_every": 2, "knobs.reclassify_every": 6, "run.split": "always"} | more
    elif cell.batch_size >= 8192:
        chosen |= {"knobs.report_every": BIG_BATCH_REPORT_STEPS}
    return (*where.settings, *(f"{key}={value}" for key, value in chosen.items()))


def config_of(cell: GpuCell, context: Context, **more: Any) -> Config:
    shape = SHAPES[cell.shape]
    return configure(shape, cell.batch_size, settings_of(cell, context.where, **more), context.data)


def source_of(cell: GpuCell, context: Context) -> Source:
    config = config_of(cell, context)
    source = open_shape(SHAPES[cell.shape], config)
    if not cell.preloaded:
        return source
    if context.batches is not None:
        return Preloaded(source, context.batches)
    return preload(source, config, 20 if context.where.rehearsal else PRELOADED_STEPS, PRELOADED_BYTES)


RIVAL_CLASSES: dict[str, type[Rival]] = dict(
    zip(RIVALS, (PlainHybrid, PlainDevice, FbgemmCaching, FbgemmDevice, TorchRecDevice), strict=True)
)


@dataclass(frozen=True)
class Name:
    """A contestant's name, `POLICY[:ACTION][/SPLIT][+RULE][@KEY=VALUE,...]` or a rival's, taken apart."""

    policy: str
    action: str
    rule: str
    settings: dict[str, Any]

    @staticmethod
    def of(name: str, cell: GpuCell) -> Name:
        word, _, settings = name.partition("@")
        word, _, rule = word.partition("+")
        word, _, split = word.partition("/")
        policy, _, action = word.partition(":")
        more: dict[str, Any] = {"optimizer.embedding": rule or cell.rule}
        more |= dict(setting.split("=", 1) for setting in settings.split(",") if setting)
        return Name(policy, action, rule or cell.rule, {**more, "run.split": split} if split else more)


def maker(
    name: str, cell: GpuCell, context: Context, source: Callable[[], Source], **settings: Any
) -> tuple[Callable[..., Contestant], str]:
    """How a contestant is made in this process, with these settings besides its own, or why it cannot take part."""
    of = Name.of(name, cell)
    more = of.settings | settings
    if of.policy in RIVALS:
        rival, config = RIVAL_CLASSES[of.policy], config_of(cell, context, **more)
        cached = {"cached_ratio": cell.rows_ratio} if rival is FbgemmCaching else {}
        return lambda: rival(name, config, source(), context.where, **cached), rival.why_not(context.where, config)
    more["knobs.policy"] = of.policy
    if of.action:
        more["knobs.action"] = of.action

    def ours(**named: Any) -> Contestant:
        budget = None
        if of.policy not in ("device_only", "hybrid"):
            as_reckoned = config_of(cell, context, **{**more, "optimizer.embedding": cell.budget_rule or of.rule})
            budget = budget_bytes(as_reckoned, source(), cell.rows_ratio)
        return Ours(name, config_of(cell, context, **more), source(), context.where, budget, **named)

    return ours, ""


def make_rival(name: str, cell: GpuCell, context: Context) -> Contestant:
    """A rival in the process that was started for it."""
    source = source_of(cell, context)
    make, why_not = maker(name, cell, context, lambda: source)
    if why_not:
        raise RuntimeError(why_not)
    return make()
