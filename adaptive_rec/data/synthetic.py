"""A seeded stream of samples shaped like Criteo, with planted popularity, drift and labels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import SLICE, Batch, Position, one_each
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import cut_rows, epoch_batches, epochs_left, feature_specs, feature_tables, table_specs
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.kernels import synthetic as kernels

NEVER = np.iinfo(np.int64).max
MAX_ROWS = 1 << 31
"""The bijection multiplies two numbers below the table's rows; the product must fit 63 bits."""
PILOT_DRAWS = 16
PILOT_SAMPLES = 256


@dataclass(frozen=True)
class Popularity:
    """The popularity of the ids. First axis: see `draw_ids`; last axis: features."""

    cdf_FH: NDArray[np.float64]
    """Summed popularity of a table's first ranks; popularity of rank r, from 1, is r to the minus exponent."""
    mass_2F: NDArray[np.float64]
    """Summed popularity of all ranks, and of the head's."""
    ranks_2F: NDArray[np.int64]
    """Rows of the table, and of its head."""
    multiplier_2F: NDArray[np.int64]
    shift_2F: NDArray[np.int64]


@dataclass(frozen=True)
class Teacher:
    """The planted teacher that decides the labels. First axis: before and after the jump."""

    weights_2X: NDArray[np.float64]
    keys_2F: NDArray[np.uint64]
    """A lookup's weight is the hash of its id under its table's key, nearly N(0, 1)."""
    mean_2: NDArray[np.float64]
    deviation_2: NDArray[np.float64]


class SyntheticSource:
    """Criteo-shaped samples; sample i depends on (run.seed, i) alone.

    - Ids: bounded Zipf over the ranks of each table. A popular sample (probability `popular_ratio`) draws every
      id from the heads of the tables, with the same relative popularity; other samples draw from whole tables.
    - Gradual drift: every 1000 samples, `drift_ranks` new rows enter the popularity order at its top; all other rows
      fall behind by as many ranks and the last ones come round to the top. Sudden drift: all ranks go to other rows.
    - Bags of `lookups_per_feature` = L > 1: lengths uniform on 0, 1, ..., 2 L, of mean L; 1 / (2 L + 1) are empty. With
      `feature_lookups` each feature's bags have a length of their own, always the same.
    - Dense features: log(1 + count) of log-normal counts, each feature with a mean and a spread of its own.
    - Labels: Bernoulli of a logistic teacher over the dense features and one weight for each row of each table;
      the logit is scaled by the mean and deviation of its sum over a few samples along the stream.
    - Epochs repeat the same samples in the same order. The held-out samples follow the training samples of the
      first epoch: under drift they show the popularity (and the teacher) of the stream's end.
    """

    sequence = None

    def __init__(self, config: Config) -> None:
        self._settings = config.data.synthetic
        self._seed = config.run.seed
        rows = cut_rows(config)
        if max(rows) > MAX_ROWS:
            raise ConfigError(f"data.max_table_rows of synthetic data must be at most {MAX_ROWS}, got {max(rows)}")
        self.tables = table_specs(config, rows)
        self.features = feature_specs(config)
        self.dense_features = config.data.dense_features
        self.validation_samples = config.eval.validation_samples(self._settings.samples)
        self.train_samples = self._settings.samples - self.validation_samples
        self.test_samples = self._settings.test_samples
        self.epochs = config.data.epochs
        self.malformed_rows = 0
        self._sudden_at = self._settings.sudden_drift_at or NEVER
        self._jump_at = self._settings.teacher_jump_at or NEVER
        self._max_bag = 1 if self._settings.lookups_per_feature == 1 else 2 * self._settings.lookups_per_feature
        self._popularity = self._make_popularity(feature_tables(config))
        self._mean_X = 3.0 * _units(self._seed, "dense mean", self.dense_features)
        self._spread_X = 0.5 + _units(self._seed, "dense spread", self.dense_features)
        self._teacher = self._make_teacher(feature_tables(config))

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` on; its seed must be that of the run, from which the whole stream is drawn."""
        if position.seed != self._seed:
            raise DataError(
                f"seed of a reader position of synthetic data must be run.seed, {self._seed}, got {position.seed}"
            )
        for epoch in epochs_left(position, self.epochs):
            first, samples = (self.train_samples, self.validation_samples) if epoch == SLICE else (0, self.train_samples)
            for start, stop, after in epoch_batches(position, epoch, samples, batch_size):
                yield self._draw(first + start, stop - start, after)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield the samples that follow the training stream, or those of the validation slice, which ends it."""
        there = self.validation_samples if validation else self._settings.test_samples
        first = self.train_samples if validation else self._settings.samples
        for start, stop, _ in epoch_batches(Position(), 0, min(there, max_samples or there), batch_size):
            yield self._draw(first + start, stop - start, Position())

    def _draw(self, first: int, samples: int, position: Position) -> Batch:
        dense_BX, ids_N, offsets = self._draw_inputs(first, samples)
        phase_B = (np.arange(first, first + samples) >= self._jump_at).astype(np.intp)
        sums_B = self._teacher_sums(self._teacher, first, dense_BX, ids_N, offsets)
        scaled_B = (sums_B - self._teacher.mean_2[phase_B]) / self._teacher.deviation_2[phase_B]
        base = math.log(self._settings.label_ratio / (1.0 - self._settings.label_ratio))
        chance_B = 1.0 / (1.0 + np.exp(-(base + self._settings.teacher_scale * scaled_B)))
        units_B1 = np.empty((samples, 1))
        kernels.draw_units(first, _key(self._seed, "labels"), units_B1)
        return Batch(dense_BX, ids_N, offsets, (units_B1[:, 0] < chance_B).astype(np.float32), position)

    def _draw_inputs(
        self, first: int, samples: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        dense_BX = np.empty((samples, self.dense_features), dtype=np.float32)
        kernels.draw_counts(first, _key(self._seed, "dense"), self._mean_X, self._spread_X, dense_BX)
        offsets = self._bag_offsets(first, samples)
        ids_N = np.empty(offsets[-1], dtype=np.int64)
        p, s = self._popularity, self._settings
        kernels.draw_ids(
            first, _key(self._seed, "ids"), offsets, s.popular_ratio, s.zipf_exponent, s.drift_ranks / 1000.0,
            self._sudden_at, p.cdf_FH, p.mass_2F, p.ranks_2F, p.multiplier_2F, p.shift_2F, ids_N,
        )  # fmt: skip
        return dense_BX, ids_N, offsets

    def _bag_offsets(self, first: int, samples: int) -> NDArray[np.int64]:
        bags = samples * len(self.features)
        if self._settings.feature_lookups:
            return np.append(0, np.cumsum(np.tile(self._settings.feature_lookups, samples)))
        if self._max_bag == 1:
            return one_each(bags)
        units_BF = np.empty((samples, len(self.features)))
        kernels.draw_units(first, _key(self._seed, "bag lengths"), units_BF)
        offsets = np.zeros(bags + 1, dtype=np.int64)
        np.cumsum((units_BF * (self._max_bag + 1)).astype(np.int64).reshape(-1), out=offsets[1:])
        return offsets

    def _make_popularity(self, tables_F: tuple[int, ...]) -> Popularity:
        exponent, head_ratio = self._settings.zipf_exponent, self._settings.head_ratio
        rows_F = [self.tables[t].rows for t in tables_F]
        head_F = [max(1, int(head_ratio * rows)) for rows in rows_F]
        cdf_H = np.cumsum(np.arange(1, kernels.HEAD_RANKS + 1) ** -exponent)
        pairs_2F2 = np.array(
            [
                [_bijection(self._seed, f"{phase} of table {t}", self.tables[t].rows) for t in tables_F]
                for phase in ("bijection", "bijection after the sudden drift")
            ],
            dtype=np.int64,
        )
        return Popularity(
            cdf_FH=np.stack([np.where(np.arange(kernels.HEAD_RANKS) < rows, cdf_H, np.inf) for rows in rows_F]),
            mass_2F=np.array([[zipf_mass(r, exponent) for r in ranks_F] for ranks_F in (rows_F, head_F)]),
            ranks_2F=np.array([rows_F, head_F], dtype=np.int64),
            multiplier_2F=np.ascontiguousarray(pairs_2F2[:, :, 0]),
            shift_2F=np.ascontiguousarray(pairs_2F2[:, :, 1]),
        )

    def _make_teacher(self, tables_F: tuple[int, ...]) -> Teacher:
        """Draw the weights, then measure their sums on a few samples so that the logits can be scaled."""
        names = ("teacher", "teacher after the jump")
        weights_2X = np.empty((2, self.dense_features))
        for phase, name in enumerate(names):
            weights_2X[phase] = math.sqrt(12.0) * (_units(self._seed, f"{name} dense", self.dense_features) - 0.5)
        keys_2F = np.array([[_key(self._seed, f"{name} table {t}") for t in tables_F] for name in names])
        teacher = Teacher(weights_2X, keys_2F, np.zeros(2), np.ones(2))
        end = self._settings.samples + self._settings.test_samples
        for phase, (low, high) in enumerate(((0, min(self._jump_at, end)), (self._jump_at, end))):
            if low < high:
                starts = np.linspace(low, max(low, high - PILOT_SAMPLES), PILOT_DRAWS, dtype=np.int64)
                sums = np.concatenate([self._pilot(teacher, int(first)) for first in starts])
                teacher.mean_2[phase] = sums.mean()
                teacher.deviation_2[phase] = sums.std() or 1.0
        return teacher

    def _pilot(self, teacher: Teacher, first: int) -> NDArray[np.float64]:
        return self._teacher_sums(teacher, first, *self._draw_inputs(first, PILOT_SAMPLES))

    def _teacher_sums(
        self,
        teacher: Teacher,
        first: int,
        dense_BX: NDArray[np.float32],
        ids_N: NDArray[np.int64],
        offsets: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        sums_B = np.empty(len(dense_BX))
        kernels.teacher_sums(
            first, self._jump_at, teacher.weights_2X, teacher.keys_2F, dense_BX, ids_N, offsets, sums_B
        )
        return sums_B


def zipf_mass(ranks: int, exponent: float) -> float:
    """Return the summed popularity of the first `ranks` ranks, as `zipf_rank` sums it."""
    head = float(np.sum(np.arange(1, min(ranks, kernels.HEAD_RANKS) + 1, dtype=np.float64) ** -exponent))
    if ranks <= kernels.HEAD_RANKS:
        return head
    start, end = kernels.TAIL_START, ranks + 0.5
    if exponent == 1.0:
        return head + math.log(end / start)
    return float(head + (end ** (1.0 - exponent) - start ** (1.0 - exponent)) / (1.0 - exponent))


def _key(seed: int, purpose: str) -> np.uint64:
    """The key of one stream of random numbers."""
    return np.uint64(int.from_bytes(hashlib.blake2b(f"{seed} {purpose}".encode(), digest_size=8).digest(), "little"))


def _units(seed: int, purpose: str, count: int) -> NDArray[np.float64]:
    units_1K: NDArray[np.float64] = np.empty((1, count))
    kernels.draw_units(0, _key(seed, purpose), units_1K)
    return units_1K.reshape(-1)


def _bijection(seed: int, purpose: str, rows: int) -> tuple[int, int]:
    """(a, c) such that rank -> (a * rank + c) mod rows hits every row once."""
    multiplier = int(_key(seed, f"{purpose} multiplier")) % rows
    while math.gcd(multiplier, rows) != 1:
        multiplier = (multiplier + 1) % rows
    return multiplier, int(_key(seed, f"{purpose} shift")) % rows
