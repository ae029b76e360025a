"""Compares trained runs with scikit-learn's logistic regression on the same rows, columns and split.

    python -m benchmarks.logistic runs/a runs/b

The regression gets each category as a column of its own (bags as counts) and the dense features as the run has them, standardised
over the training rows. It is fitted for each strength C in 0.01, 0.1 and 1 on all but the last tenth of the training rows; the
C with
the best AUC on that tenth is fitted on all of them. Data must be prepared from CSV, TSV, Parquet or a public log.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Position
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepared import PreparedSource

STRENGTHS = (0.01, 0.1, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories with a summary")
    args = parser.parse_args()
    print(
        f"{'run':<28} {'training':>9} {'held out':>9}  {'ours AUC':>8} {'logloss':>8}  {'LR AUC':>7} {'logloss':>8}  C"
    )
    for run in args.runs:
        quality = json.loads((run / "summary.json").read_text())["eval"]
        rows = regression(run)
        print(
            f"{run.name:<28} {rows['training']:>9,} {rows['held_out']:>9,}  {quality['auc']:>8.4f} {quality['logloss']:>8.4f}  "
            f"{rows['auc']:>7.4f} {rows['logloss']:>8.4f}  {rows['strength']:g}",
            flush=True,
        )


def regression(run: Path) -> dict[str, Any]:
    """Fit a logistic regression to a run's data and score its held-out rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score

    config = load_config(str(run / "config.toml"), {}, ["data.shuffle=false", "data.epochs=1"])
    source = PreparedSource(config)
    train, train_labels = features(source, source.train_batches(Position(), 1 << 16))
    held_out, labels = features(source, source.test_batches(1 << 16))
    first = int(0.9 * len(train_labels))

    def fitted(rows: int, strength: float) -> Any:
        return LogisticRegression(C=strength, max_iter=300).fit(train[:rows], train_labels[:rows])

    def judged(strength: float) -> float:
        scores = fitted(first, strength).predict_proba(train[first:])[:, 1]
        return float(roc_auc_score(train_labels[first:], scores))

    strength = max(STRENGTHS, key=judged)
    scores = fitted(len(train_labels), strength).predict_proba(held_out)[:, 1]
    return {
        "training": len(train_labels),
        "held_out": len(labels),
        "strength": strength,
        "auc": float(roc_auc_score(labels, scores)),
        "logloss": float(log_loss(labels, scores)),
    }


def features(source: PreparedSource, batches: Any) -> tuple[Any, NDArray[np.float32]]:
    """Return all rows of some batches as a sparse matrix (B, dense + rows of all features' tables), and their labels."""
    from scipy.sparse import csr_matrix, hstack

    rows_F = np.array([source.tables[feature.table].rows for feature in source.features])
    first_F = np.concatenate([[0], np.cumsum(rows_F)])
    dense, ones, labels = [], [], []
    for batch in batches:
        lengths = np.diff(batch.offsets)
        feature_N = np.repeat(np.tile(np.arange(len(rows_F)), batch.size), lengths)
        starts = batch.offsets[:: len(rows_F)]
        columns_N = batch.ids_N + first_F[feature_N]
        ones.append(
            csr_matrix((np.ones(len(columns_N), np.float32), columns_N, starts), shape=(batch.size, first_F[-1]))
        )
        dense.append(batch.dense_BX)
        labels.append(batch.labels_B)
    dense_BX = np.concatenate(dense).astype(np.float64)
    scaled_BX = (dense_BX - dense_BX.mean(0)) / np.maximum(dense_BX.std(0), 1e-9)
    from scipy.sparse import vstack

    return hstack([csr_matrix(scaled_BX), vstack(ones)]).tocsr(), np.concatenate(labels)


if __name__ == "__main__":
    main()
