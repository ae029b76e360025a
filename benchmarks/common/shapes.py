"""What is trained on: the shapes of tables, bags and model, and batches that are made as they are read or lie in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source, Wrapped, feature_tables
from adaptive_rec.data.synthetic import SyntheticSource

ENDLESS_SAMPLES = 1 << 40
PRELOADED_BYTES = 6 << 30

MLPERF_BAGS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids of each feature's bag in MLPerf's multi-hot Criteo 1TB benchmark: 214 lookups a sample."""


@dataclass(frozen=True)
class Shape:
    """Tables, bags and model of a benchmark."""

    preset: str
    settings: tuple[str, ...] = ()
    bags: tuple[int, ...] = ()
    """Ids of each feature's bag; empty: one each."""
    about: str = ""


SHAPES = {
    "kaggle": Shape("criteo_kaggle", about="Criteo Kaggle: 26 one-hot features, 33.8 M rows of dim 16"),
    "mlperf": Shape(
        "criteo_terabyte",
        ("data.max_table_rows=2000000",),
        MLPERF_BAGS,
        "Criteo 1TB as MLPerf's multi-hot benchmark: 26 features, 214 lookups a sample, dim 128; tables cut to 2 M rows "
        "(13.6 M rows in all) so that several runs fit host memory at once; DLRM's dot interaction, not DCNv2's",
    ),
    "mlperf4m": Shape(
        "criteo_terabyte",
        ("data.max_table_rows=4000000",),
        MLPERF_BAGS,
        "as mlperf, tables cut to 4 M rows (24.1 M rows in all)",
    ),
    "tiny": Shape("tiny", about="REHEARSAL: four tables of 1,012 rows, dim 8"),
    "tiny_bags": Shape("tiny", (), (3, 1, 2, 4), "REHEARSAL: four tables of 1,012 rows, dim 8, multi-hot"),
}


def configure(shape: Shape, batch_size: int, settings: tuple[str, ...], data: str | None) -> Config:
    """The configuration of a run on a shape, without an end."""
    endless = ["run.steps=0", f"run.batch_size={batch_size}", f"data.synthetic.samples={ENDLESS_SAMPLES}"]
    if data is not None and not shape.bags:
        endless += [f"data.source={data}", "data.ids=hash", "data.epochs=1000000"]
    else:
        endless += ["data.source=synthetic"]
    return load_config(shape.preset, {}, [*shape.settings, *endless, *settings])


class FixedBags(SyntheticSource):
    """Synthetic samples whose bags have the same length in every sample, another one for each feature."""

    def __init__(self, config: Config, bags: tuple[int, ...]) -> None:
        self._bags = np.resize(np.array(bags, dtype=np.int64), len(feature_tables(config)))
        super().__init__(config)

    def _bag_offsets(self, first: int, samples: int) -> NDArray[np.int64]:
        offsets = np.zeros(samples * len(self._bags) + 1, dtype=np.int64)
        np.cumsum(np.tile(self._bags, samples), out=offsets[1:])
        return offsets


def open_shape(shape: Shape, config: Config) -> Source:
    """Batches made as they are read: loading is part of what is measured."""
    return FixedBags(config, shape.bags) if shape.bags else open_source(config)


class Preloaded(Wrapped):
    """Batches that lie in memory, handed out round and round."""

    def __init__(self, source: Source, batches: Sequence[Batch]) -> None:
        super().__init__(source)
        self.train_samples, self.epochs, self.malformed_rows = ENDLESS_SAMPLES, 1, 0
        self.batches = batches

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return cycle(self.batches)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return iter(())

    def __len__(self) -> int:
        return len(self.batches)


def preload(source: Source, config: Config, most_batches: int, most_bytes: int = PRELOADED_BYTES) -> Preloaded:
    """Make batches beforehand, at most 6 GiB of them or `most_bytes`; synthetic ones on all cores."""
    size, seed = config.run.batch_size, config.run.seed
    first = next(iter(source.train_batches(Position(seed=seed), size)))
    each = sum(part.nbytes for part in (first.dense_BX, first.ids_N, first.offsets, first.labels_B))
    count = max(1, min(most_batches, most_bytes // each))
    if not isinstance(source, SyntheticSource):
        batches = list(islice(source.train_batches(Position(seed=seed), size), count))
        return Preloaded(source, [batch for batch in batches if batch.size == size] or batches)

    def make(number: int) -> Batch:
        return next(iter(source.train_batches(Position(seed=seed, offset=number * size), size)))

    with ThreadPoolExecutor(cores()) as pool:
        return Preloaded(source, [replace(batch, position=Position()) for batch in pool.map(make, range(count))])


def cores() -> int:
    return len(os.sched_getaffinity(0))


# Tables --------------------------------------------------------------------------------------------------------------

CHUNK_ROWS = 1 << 16


def touch(memory: NDArray[Any]) -> None:
    """Write zeros once over fresh memory, so that its pages need not be found while the clock runs."""

    def zero(start: int) -> None:
        memory[start : start + CHUNK_ROWS] = 0

    on_all_cores(zero, range(0, len(memory), CHUNK_ROWS))


def on_all_cores(work: Callable[[int], None], parts: range) -> None:
    if len(parts) <= 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(work, parts))
