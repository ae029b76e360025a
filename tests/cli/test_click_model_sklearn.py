"""`ClickModel` in scikit-learn: cloned, cross-validated, in a pipeline and a grid search, and under its own checks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptive_rec
from tests.cli.test_click_model import ROWS, model


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learn_clones_validates_and_chains_it(tmp_path: Path) -> None:
    base = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils.validation import check_is_fitted

    made = model(tmp_path, epochs=2)
    again = base.clone(made)
    assert again.get_params() == made.get_params()
    assert base.is_classifier(made)
    with pytest.raises(NotFittedError):
        check_is_fitted(made)
    array = np.stack([ROWS["user"].combine_chunks().indices.to_numpy(), ROWS["item"].to_numpy()], axis=1)
    y_R = ROWS["click"].to_numpy()
    scores = cross_val_score(made, array, y_R, scoring="roc_auc", cv=2, error_score="raise")
    assert scores.min() > 0.5
    pipe = make_pipeline(FunctionTransformer(), made).fit(array, y_R)
    assert pipe.classes_.tolist() == [0, 1]
    check_is_fitted(pipe)
    assert pipe.predict_proba(array).shape == (900, 2)


DO_NOT_APPLY = {
    "check_sample_weight_equivalence": "a row of weight 2 and two rows are in different batches",
    "check_dtype_object": "numbers with fractions are no categories, and a model needs one",
    "check_sample_weights_not_an_array": "numbers with fractions are no categories",
    "check_sample_weights_pandas_series": "numbers with fractions are no categories",
    "check_estimators_pickle": "numbers with fractions are no categories",
    "check_classifier_data_not_an_array": "numbers with fractions are no categories",
    "check_classifiers_train": "numbers with fractions are no categories",
    "check_supervised_y_2d": "numbers with fractions are no categories",
}
"""scikit-learn's checks that do not apply, by their names or parts of them."""


class WholeNumbers(adaptive_rec.ClickModel):
    """Takes the numbers of scikit-learn's checks as categories, where the check gives an array."""

    def fit(self, X: Any, y: Any = None, label: str | None = None, sample_weight: Any = None) -> Any:
        return super().fit(whole_numbers(X), y, label, sample_weight)

    def _scores(self, X: Any) -> Any:
        return super()._scores(whole_numbers(X))


def whole_numbers(X: Any) -> Any:
    whole = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "fiu" and X.size > 0 and bool(np.isfinite(X).all())
    return (X * 4).astype(np.int64) if whole else X


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(tmp_path: Path) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    settings = {"run.steps": 3, "model.embedding_dim": 2, "model.bottom_mlp": [2], "model.top_mlp": [2]}
    made = WholeNumbers(verbose=False, runs=str(tmp_path), settings=settings)
    if "on_fail" not in inspect.signature(checks.check_estimator).parameters:
        pytest.skip("scikit-learn reports single checks from 1.6 on")
    found = checks.check_estimator(made, on_skip=None, on_fail=None)
    failed = {each["check_name"] for each in found if each["status"] == "failed"}
    assert not {name for name in failed if not any(part in name for part in DO_NOT_APPLY)}
    assert sum(each["status"] == "passed" for each in found) >= 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_grid_is_searched_in_two_processes(tmp_path: Path) -> None:
    selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed")
    array = np.stack([ROWS["user"].combine_chunks().indices.to_numpy(), ROWS["item"].to_numpy()], axis=1)
    how = {"scoring": "neg_log_loss", "cv": 2, "n_jobs": 2, "error_score": "raise"}
    search = selection.GridSearchCV(model(tmp_path), {"epochs": [1, 4]}, **how)
    search.fit(array, ROWS["click"].to_numpy())
    assert search.best_params_ == {"epochs": 4}
    assert search.predict_proba(array).shape == (900, 2)
    prepared = [path for path in (tmp_path / "runs" / "data").iterdir() if (path / "meta.json").exists()]
    assert len(prepared) == 3, "rows of a fold, and all rows, are prepared once"
