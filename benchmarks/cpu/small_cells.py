"""Cells without whole steps: the sketch, reading of data, updates that are left out."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adaptive_rec.batch import Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.lines import chunks
from adaptive_rec.data.open import open_source
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.tracking.count_min import CountMinSketch
from benchmarks.common.shapes import Preloaded
from benchmarks.common.turns import take_turns
from benchmarks.cpu.parts import Work

SKETCH_BATCH = 2048 * 26
RIVAL_ROWS = 20_000
FROZEN_RATIO = 0.5


def result(made: dict[str, Any], absent: dict[str, str], rounds: int, steps: int = 1) -> dict[str, Any]:
    for contestant in made.values():
        contestant.turn(steps)
    runs = take_turns(made, rounds, steps)
    return {"runs": runs, "absent": absent, "checks": [], "rounds": rounds, "steps": steps}


def sketch(rounds: int, rehearse: bool) -> dict[str, Any]:
    """Counting a batch's lookups on one core: its distinct rows with their counts, as training does, or one by one."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    size = 1000 if rehearse else SKETCH_BATCH
    lookups = (np.random.default_rng(1).zipf(1.2, 20 * size) % 1_000_000).astype(np.int64)
    batches = [lookups[at : at + size] for at in range(0, len(lookups), size)]
    distinct = [np.unique(batch, return_counts=True) for batch in batches]
    one = np.ones(size, dtype=np.int64)
    made: dict[str, Work] = {}
    absent: dict[str, str] = {}
    for bits in (16, 20):
        weighted, plain = CountMinSketch(1 << bits), CountMinSketch(1 << bits)
        rows = float(np.mean([len(rows_U) for rows_U, _ in distinct]))
        about = f"one weighted add for each of {rows:.0f} distinct rows"
        add = _over(distinct, lambda pair, to=weighted: to.add(*pair))
        made[f"ours 2^{bits}"] = Work(add, about=about, lookups=size, adds=rows)
        add = _over(batches, lambda batch, to=plain: to.add(batch, one))
        made[f"ours 2^{bits}, every lookup"] = Work(add, about="one add for each lookup", lookups=size, adds=size)
        if importlib.util.find_spec("datasketches") is None:
            absent[f"DataSketches 2^{bits}"] = "datasketches is not installed (make bench installs it)"
            continue
        import datasketches

        rival, few = datasketches.count_min_sketch(4, 1 << bits), min(size, RIVAL_ROWS)
        lists = [batch[:few].tolist() for batch in batches]
        about = "Apache DataSketches from Python, which takes one key a call"
        made[f"DataSketches 2^{bits}"] = Work(
            _over(lists, lambda keys, to=rival: [to.update(key) for key in keys]), about=about, lookups=few, adds=few
        )
    found = result(made, absent, rounds, steps=2)
    os.sched_setaffinity(0, cores)
    return found


def _over(items: list[Any], call: Callable[[Any], object]) -> Callable[[int], object]:
    return lambda step: call(items[step % len(items)])


def reading(path: Path, rounds: int, rehearse: bool) -> dict[str, Any]:
    """Rows a second: our reader gives batches with ids hashed into tables, a data frame's reader gives columns of text."""
    with tempfile.TemporaryDirectory() as folder:
        text = b"".join(chunks(path))
        text = b"".join(text.splitlines(keepends=True)[:1000]) if rehearse else text
        plain, rows = Path(folder) / "criteo.tsv", text.count(b"\n")
        plain.write_bytes(text)
        about = "lines counted, then parsed, ids hashed, in batches of 2048"
        made = {"ours": Work(lambda _: _read_through(plain), about=about, rows=_read_through(plain))}
        made["ours, synthetic"] = Work(_synthetic(rows), about="made, not read; in batches of 2048", rows=rows)
        absent: dict[str, str] = {}
        for name, read in _frames(plain).items():
            if importlib.util.find_spec(name) is None:
                absent[name] = f"{name} is not installed"
            else:
                made[name] = Work(read, about="columns of numbers and text, all rows in memory", rows=rows)
        return result(made, absent, rounds)


def _frames(path: Path) -> dict[str, Callable[[int], object]]:
    def polars(_: int) -> object:
        import polars

        return polars.read_csv(path, separator="\t", has_header=False, infer_schema_length=1000)

    def pandas(_: int) -> object:
        import pandas

        return pandas.read_csv(path, sep="\t", header=None)

    return {"polars": polars, "pandas": pandas}


def _read_through(path: Path) -> int:
    """Samples of a pass over the training range, nearly all of the file."""
    settings = [f"data.source={path}", "data.ids=hash", "data.train_range=[0.0, 0.99]", "data.test_range=[0.99, 1.0]"]
    config = load_config("criteo_kaggle", {}, settings)
    return sum(batch.size for batch in open_source(config).train_batches(Position(), 2048))


def _synthetic(rows: int) -> Callable[[int], object]:
    config = load_config("criteo_kaggle", {}, ["data.source=synthetic", "data.synthetic.samples=1000000000"])
    batches: Iterator[Any] = iter(open_source(config).train_batches(Position(seed=config.run.seed), 2048))
    return lambda _: list(islice(batches, -(-rows // 2048)))


def freeze(config: Config, source: Preloaded, rounds: int, steps: int) -> dict[str, Any]:
    """The update of a batch's rows, on given gradients, with all of its distinct rows and with half of them frozen."""
    runtime = assemble(config, source=source)
    store, dice = runtime.store, np.random.default_rng(1)
    (features, dim), size = runtime.dense.pool_shapes[0], config.run.batch_size
    gradients = [torch.randn((size, features, dim), generator=torch.Generator().manual_seed(1)) / size]
    works = [ClassifiedBatch(batch, store.space) for batch in source.batches]
    frozen = [dice.random(len(work.distinct_U)) < FROZEN_RATIO for work in works]
    samples_S = np.arange(size)

    def update(step: int, freezing: bool) -> None:
        number = step % len(works)
        left_out = frozen[number] if freezing else None
        lr = config.optimizer.embedding_lr
        store.apply(works[number], RowUpdate(gradients, samples_S, left_out, lr, step + 1, measure=False))

    for work in works:
        store.take(work)
    ratio = float(np.mean([part.mean() for part in frozen]))
    made = {
        "all rows": Work(lambda step: update(step, False), frozen=0.0),
        "half frozen": Work(lambda step: update(step, True), frozen=ratio),
    }
    found = result(made, {}, rounds, steps)
    store.close()
    return found
