"""Which held-out samples raw ids predict better or worse than ids folded by a hash: by what their ids without a row of their own
had been in training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Position
from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.dense.metrics import quality
from adaptive_rec.runtime.loop import Runtime

GROUPS = (
    "all ids have a row of their own",
    "without one: a new id",
    "without one: seen once",
    "without one: seen more often",
)
COLUMNS = [
    "stream",
    "ids",
    "training lookups of a shared row",
    "held-out samples",
    "share",
    "AUC",
    "hashing's",
    "part of the log loss's difference",
]


@dataclass(frozen=True)
class Scores:
    """Logits of the held-out samples, and their groups by `GROUPS`; of folded ids all are of the first one."""

    logit_B: NDArray[np.float64]
    label_B: NDArray[np.int32]
    group_B: NDArray[np.int8]
    shared_ratio: float
    """Part of the lookups in training that read a shared row."""

    def write(self, path: Path) -> None:
        np.savez_compressed(
            path, logit_B=self.logit_B, label_B=self.label_B, group_B=self.group_B, shared_ratio=self.shared_ratio
        )

    @classmethod
    def read(cls, path: Path) -> Scores:
        with np.load(path) as found:
            return cls(found["logit_B"], found["label_B"], found["group_B"], float(found["shared_ratio"]))

    @property
    def loss_B(self) -> NDArray[np.float64]:
        return np.logaddexp(0, self.logit_B) - self.label_B * self.logit_B


def scores(runtime: Runtime) -> Scores:
    """Score the held-out samples of a run that has ended, one by one."""
    logits, labels = [], []
    for batch in runtime.source.test_batches(runtime.config.eval.batch_size):
        logits.append(logits_of(batch, runtime.store, runtime.dense).astype(np.float64))
        labels.append(batch.labels_B.astype(np.int32))
    label_B = np.concatenate(labels)
    if (raw_ids := raw_ids_of(runtime.source)) is None:
        return Scores(np.concatenate(logits), label_B, np.zeros(len(label_B), np.int8), 0.0)
    tables = [feature.table for feature in raw_ids.features]
    counts: dict[int, Counter[int]] = {table: Counter() for table in tables}
    for batch in raw_ids.origin.train_batches(Position(seed=runtime.config.run.seed), runtime.config.run.batch_size):
        for table, key_B in zip(tables, batch.ids_N.reshape(batch.size, -1).T, strict=True):
            counts[table].update(key_B.tolist())
    groups = []
    for batch in raw_ids.origin.test_batches(runtime.config.eval.batch_size):
        group_B = np.zeros(batch.size, np.int8)
        for table, key_B in zip(tables, batch.ids_N.reshape(batch.size, -1).T, strict=True):
            seen_B = np.array([min(counts[table][key], 2) for key in key_B.tolist()])
            group_B = np.maximum(group_B, np.where(raw_ids.find(table, key_B).own_N, 0, seen_B + 1).astype(np.int8))
        groups.append(group_B)
    counted = raw_ids.counts()
    return Scores(
        np.concatenate(logits), label_B, np.concatenate(groups), counted["lookups_shared"] / counted["lookups"]
    )


def rows(stream: str, kind: str, hashed: list[Path], raw: list[Path]) -> list[str]:
    """Return a row of the table for each group, means over the seeds. Parts of the difference add up to all of it."""
    pairs = [(Scores.read(mine), Scores.read(theirs)) for mine, theirs in zip(raw, hashed, strict=True)]
    shared = np.mean([mine.shared_ratio for mine, _ in pairs])
    found = []
    for number, name in enumerate(GROUPS):
        in_group = [mine.group_B == number for mine, _ in pairs]
        if not any(group_B.any() for group_B in in_group):
            continue
        share = np.mean([group_B.mean() for group_B in in_group])
        part = np.mean(
            [
                ((mine.loss_B - other.loss_B) * group_B).mean()
                for (mine, other), group_B in zip(pairs, in_group, strict=True)
            ]
        )
        aucs = [
            np.mean(
                [
                    quality(one.label_B[group_B].astype(np.float32), one.logit_B[group_B]).auc
                    for one, group_B in zip(each, in_group, strict=True)
                ]
            )
            for each in zip(*pairs, strict=True)
        ]
        shown = ["" if np.isnan(auc) else f"{auc:.4f}" for auc in aucs]  # some seed has one class alone
        cells = [stream, kind, f"{shared:.1%}", name, f"{share:.1%}", *shown, f"{part:+.4f}"]
        found.append(f"| {' | '.join(cells)} |")
    return found
