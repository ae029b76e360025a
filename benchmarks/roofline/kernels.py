"""The kernels of a step on real lists of rows: what must move, its time at the roof, and the times of ours and FBGEMM's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.tracking.count_min import CountMinSketch
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload
from benchmarks.cpu.contestants import first_rows
from benchmarks.cpu.rivals import RIVALS, why_absent
from benchmarks.roofline.machine import Roof

FEW = 64
"""Rows, and bags, that all lookups are sent to where a kernel's work is measured alone: they stay in a core's first caches."""

_PARTS = 8
"""Ranges of distinct rows that get rows of their own then, as threads would otherwise write to the same lines."""


@dataclass
class Kernel:
    """A kernel's call on batch number i, and what a batch of it must move."""

    name: str
    moves: str
    roof_seconds: float
    ours: Callable[[int], object]
    in_cache: Callable[[int], object] | None = None
    """The same work with its rows in the cache."""
    rival: Callable[[int], object] | None = None
    prepare: Callable[[int], object] = field(default=lambda step: None)
    rival_name: str = "FBGEMM"


class Shape:
    """Batches of a shape, classified, with the store that has their rows."""

    def __init__(self, name: str, settings: tuple[str, ...], batches: int, small: bool) -> None:
        size = 64 if small else 2048
        more = ("run.device=cpu", "knobs.policy=hybrid", *settings)
        self.config = configure(SHAPES[name], size, more, None)
        self.source: Preloaded = preload(open_shape(SHAPES[name], self.config), self.config, batches)
        self.space = RowSpace.of(self.source.tables, self.source.features)
        self.runtime = assemble(self.config, source=self.source)
        self.store, self.size = self.runtime.store, size
        self.works = [ClassifiedBatch(batch, self.space) for batch in self.source.batches]
        for work in self.works:
            self.store.batches.take(work)
        features, self.dim = self.runtime.dense.pool_shapes[0]
        dice = torch.Generator().manual_seed(1)
        self.gradient = torch.randn((size, features, self.dim), generator=dice) / size
        self.samples_S, self.scale_S = np.arange(size), np.full(size, 1 / size)
        self.micro = self.runtime.dense.inputs(size)
        self.rival = (
            RIVALS["FBGEMM"][1](self.config, self.space, partial(first_rows, self.store))
            if not why_absent("FBGEMM")
            else None
        )

    def of(self, step: int) -> ClassifiedBatch:
        return self.works[step % len(self.works)]

    def mean(self, count: Callable[[ClassifiedBatch], int]) -> float:
        return float(np.mean([count(work) for work in self.works]))


def kernels(shape: Shape, roof: Roof) -> Iterator[Kernel]:
    """List the kernels of a step, each with its roof. Lookups that repeat a row of the batch are free at the roof."""
    threads, row = shape.store.threads, 4 * shape.dim
    speed = roof.sequential[threads]
    lookups, distinct = shape.mean(lambda work: work.batch.lookups), shape.mean(lambda work: len(work.distinct_U))
    pooled = shape.gradient.nbytes
    step_of, rival, few = shape.of, shape.rival, [_few(work) for work in shape.works]
    prepared = [rival.prepare(batch) for batch in shape.source.batches] if rival else []
    graphs: dict[int, Any] = {}

    def read(works: list[ClassifiedBatch], step: int) -> None:
        shape.store.batches.gather(works[step % len(works)], shape.samples_S, shape.scale_S, shape.micro)

    def update(works: list[ClassifiedBatch], step: int) -> None:
        change = RowUpdate([shape.gradient], shape.samples_S, None, 1e-6, step + 1, measure=False)
        shape.store.batches.apply(works[step % len(works)], change)

    def rival_read(step: int) -> None:
        graphs[0] = rival.read(prepared[step % len(prepared)])

    def rival_update(step: int) -> None:
        rival.update(graphs[0], shape.gradient.view(graphs[0].shape))

    yield Kernel(
        "distinct rows",
        f"{lookups:.0f} ids read, as many places and bags written",
        lookups * 8 / roof.sequential[1]["read"] + lookups * 8 / roof.sequential[1]["written"],
        lambda step: ClassifiedBatch(step_of(step).batch, shape.space),
    )
    yield Kernel(
        "gather",
        f"{distinct:.0f} rows of {row} bytes read, {pooled / 1e6:.1f} MB of sums written",
        distinct * roof.row(row, threads, "read") + pooled / speed["written"],
        partial(read, shape.works), partial(read, few), rival_read if rival else None,
    )  # fmt: skip
    yield Kernel(
        "segment sum and update",
        f"{distinct:.0f} rows of {row} bytes and their lines of state changed, {pooled / 1e6:.1f} MB of gradients read",
        distinct * (roof.row(row, threads, "changed") + roof.row(64, threads, "changed")) + pooled / speed["read"],
        partial(update, shape.works), partial(update, few), rival_update if rival else None,
        rival_read if rival else lambda _: None,
    )  # fmt: skip
    sketch = CountMinSketch(1 << 16)
    counts = [np.diff(work.segments_U1) for work in shape.works]
    yield Kernel(
        "sketch, one thread",
        f"{distinct:.0f} rows, {4 * distinct:.0f} cells of a sketch of 1 MiB, which a core's cache holds",
        distinct * 8 * 2 / roof.sequential[1]["read"],
        lambda step: sketch.add(step_of(step).distinct_U, counts[step % len(counts)]),
    )


def _few(work: ClassifiedBatch) -> ClassifiedBatch:
    """Return the same lists with few rows and few bags."""
    found = copy.copy(work)
    u = np.arange(len(work.distinct_U))
    found.source_U = ~(u % FEW + (u * _PARTS // max(len(u), 1)) * 2 * FEW)
    found.source_N = ~(np.arange(work.batch.lookups) % FEW)
    found.segment_bag_N = (work.segment_bag_N % FEW).astype(work.segment_bag_N.dtype)
    return found
