"""Compares trained runs with scikit-learn's logistic regression and LightGBM on the same rows, columns and split.

    python -m benchmarks.other_learners runs/a runs/b

Runs on one prepared folder are one line: their mean and standard deviation, of several seeds. The regression gets
each category as a column of its own (bags as counts) and the dense features as the run has them, standardised over
the training rows. LightGBM gets dense features as they are, columns of one category as `categorical_feature`, and
bags as counts. What is chosen (the regression's strength C of 0.01, 0.1 and 1, by AUC; the number of trees, by log
loss, at most 2,000, 50 without a better one end the search) is chosen on the last tenth of the training rows, by a
model of all rows before it. Then all training rows are fitted with it. Data must be prepared from CSV, TSV, Parquet
or a public log.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepared import PreparedSource

STRENGTHS = (0.01, 0.1, 1.0)
CHOSEN_ON_RATIO = 0.1
TREES = {"objective": "binary", "learning_rate": 0.05, "num_leaves": 31, "seed": 1, "verbose": -1}
MOST_TREES = 2000
PATIENCE = 50


class Rows(NamedTuple):
    """Rows as other learners take them."""

    dense_BX: NDArray[np.float64]
    ids_BC: NDArray[np.float64]
    """Ids of the columns that have one a row."""
    ones: Any
    """A sparse matrix (B, rows of all features' tables): how often each row has each id."""
    counts: Any
    """Its part for the columns of bags."""
    labels_B: NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories with a summary")
    args = parser.parse_args()
    columns = ("data", 24), ("training", 9), ("held out", 8), ("seeds", 5), ("ours: AUC, logloss", 34), ("regression", 22)
    head = "  ".join(f"{name:<{width}}" for name, width in (*columns, ("LightGBM", 0)))
    print(head)
    for folder, runs in _by_data(args.runs).items():
        quality = [json.loads((run / "summary.json").read_text())["eval"] for run in runs]
        auc, loss = ([each[name] for each in quality] for name in ("auc", "logloss"))
        ours = f"{np.mean(auc):.4f} ± {np.std(auc):.4f}, {np.mean(loss):.4f} ± {np.std(loss):.4f}"
        training, held_out = _rows_of(runs[0])
        regression, trees = _regression(training, held_out), _trees(training, held_out)
        print(
            f"{folder:<24} {len(training.labels_B):>9,} {len(held_out.labels_B):>8,}  {len(runs):>5}  {ours:<34}  "
            f"{regression:<22}  {trees}",
            flush=True,
        )


def _by_data(runs: Iterable[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for run in runs:
        source = load_config(str(run / "config.toml"), {}, []).data.source
        found.setdefault(Path(source).name, []).append(run)
    return found


def _rows_of(run: Path) -> tuple[Rows, Rows]:
    """Return a run's training rows, in order, those that it validates on among them, and its held-out rows."""
    settings = ["data.shuffle=false", "data.epochs=1", "eval.mode=held_out", "eval.patience=0"]
    source = PreparedSource(load_config(str(run / "config.toml"), {}, settings))
    training, held_out = source.train_batches(Position(), 1 << 16), source.test_batches(1 << 16)
    return _rows(source, list(training)), _rows(source, list(held_out))


def _rows(source: PreparedSource, batches: list[Batch]) -> Rows:
    from scipy.sparse import csc_matrix, csr_matrix, hstack, vstack

    rows_F = np.array([source.tables[feature.table].rows for feature in source.features])
    first_F = np.concatenate([[0], np.cumsum(rows_F)])
    parts, is_bag_F = [], np.zeros(len(rows_F), dtype=bool)
    for batch in batches:
        lengths = np.diff(batch.offsets)
        is_bag_F |= (lengths.reshape(batch.size, -1) != 1).any(axis=0)
        feature_N = np.repeat(np.tile(np.arange(len(rows_F)), batch.size), lengths)
        columns_N = batch.ids_N + first_F[feature_N]
        starts = batch.offsets[:: len(rows_F)]
        ones_N = np.ones(len(columns_N), np.float32)
        parts.append(csr_matrix((ones_N, columns_N, starts), shape=(batch.size, first_F[-1])))
    ones = csc_matrix(vstack(parts))
    by_feature = [ones[:, first:last] for first, last in zip(first_F[:-1], first_F[1:], strict=True)]
    ids = [of @ np.arange(of.shape[1]) for of, bag in zip(by_feature, is_bag_F, strict=True) if not bag]
    counts = [of for of, bag in zip(by_feature, is_bag_F, strict=True) if bag]
    return Rows(
        np.concatenate([batch.dense_BX for batch in batches]).astype(np.float64),
        np.stack(ids, axis=1) if ids else np.zeros((ones.shape[0], 0)),
        ones.tocsr(),
        hstack(counts).tocsr() if counts else None,
        np.concatenate([batch.labels_B for batch in batches]),
    )


def _regression(training: Rows, held_out: Rows) -> str:
    """Fit a logistic regression and return its figures on the held-out rows."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    mean_X, deviation_X = training.dense_BX.mean(0), np.maximum(training.dense_BX.std(0), 1e-9)
    matrices = [
        hstack([csr_matrix((of.dense_BX - mean_X) / deviation_X), of.ones]).tocsr() for of in (training, held_out)
    ]
    first = len(training.labels_B) - round(CHOSEN_ON_RATIO * len(training.labels_B))

    def scores(rows: slice, strength: float, of: Any) -> NDArray[np.float64]:
        model = LogisticRegression(C=strength, max_iter=300).fit(matrices[0][rows], training.labels_B[rows])
        found: NDArray[np.float64] = model.predict_proba(of)[:, 1]
        return found

    def judged(strength: float) -> float:
        return float(roc_auc_score(training.labels_B[first:], scores(slice(first), strength, matrices[0][first:])))

    strength = max(STRENGTHS, key=judged)
    return _figures(held_out.labels_B, scores(slice(None), strength, matrices[1])) + f" C={strength:g}"


def _trees(training: Rows, held_out: Rows) -> str:
    """Boost trees with early stopping and return their figures on the held-out rows."""
    import lightgbm

    tables = [np.hstack([of.dense_BX, of.ids_BC]) for of in (training, held_out)]
    categories = list(range(training.dense_BX.shape[1], tables[0].shape[1]))
    if training.counts is not None:
        from scipy.sparse import csr_matrix, hstack

        tables = [
            hstack([csr_matrix(table), of.counts]).tocsr()
            for table, of in zip(tables, (training, held_out), strict=True)
        ]
    first = len(training.labels_B) - round(CHOSEN_ON_RATIO * len(training.labels_B))

    def data(rows: slice, reference: Any = None) -> Any:
        return lightgbm.Dataset(tables[0][rows], training.labels_B[rows], reference, categorical_feature=categories)

    begun = data(slice(first))
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    judged = data(slice(first, None), begun)
    trees = lightgbm.train(TREES, begun, MOST_TREES, valid_sets=[judged], callbacks=[stop]).best_iteration
    scores = lightgbm.train(TREES, data(slice(None)), trees).predict(tables[1])
    return _figures(held_out.labels_B, scores) + f" trees={trees}"


def _figures(labels_B: NDArray[np.float32], scores_B: NDArray[np.float64]) -> str:
    from sklearn.metrics import log_loss, roc_auc_score

    return f"{roc_auc_score(labels_B, scores_B):.4f}, {log_loss(labels_B, scores_B):.4f}"


if __name__ == "__main__":
    main()
