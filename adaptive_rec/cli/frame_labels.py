"""Labels and weights that a program gives beside a frame, as columns of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.cli.frames import AddedColumn, ArgumentError, Frame
from adaptive_rec.data.tabular.label import parse_label


def labels_beside(frame: Frame, y: Any, label: str | None) -> tuple[NDArray[Any] | None, dict[str, AddedColumn]]:
    """Return the classes of `y` and the column of 0 and 1 that it becomes, named by `label`, by itself, or "label"; nothing of
    both where the label is in the frame. Raises ArgumentError."""
    if y is None:
        if label is None:
            raise ArgumentError("fit needs y, or label=COLUMN: requires y to be passed, but the target y is None")
        return None, {}
    if isinstance(y, str):
        raise ArgumentError(f"y must be a value for each row of X, got {y!r}; a column of X is label={y!r}")
    if np.ma.is_masked(y):
        raise ArgumentError("y must hold no missing values: Input y contains NaN")
    y_R = np.asarray(y)
    if y_R.ndim == 2 and y_R.shape[1] == 1:
        kind = getattr(sys.modules.get("sklearn.exceptions"), "DataConversionWarning", UserWarning)
        warnings.warn("A column-vector y was passed when a 1d array was expected; its values are taken", kind, stacklevel=3)
        y_R = y_R.ravel()
    if y_R.ndim != 1:
        raise ArgumentError(f"y must be one label, a value for each row of X, got an array of shape {y_R.shape}")
    if y_R.dtype.kind == "f" and not np.isfinite(y_R).all():
        raise ArgumentError("y must hold no missing or infinite values: Input y contains NaN or infinity")
    if y_R.dtype.kind == "O":
        y_R = np.array([_plain(value) for value in y_R], dtype=object)
    if y_R.dtype.kind not in "biufUO":
        raise ArgumentError(f"y must hold numbers, truth values or texts, got values of type {y_R.dtype}")
    kinds = sorted({type(value).__name__ for value in y_R}) if y_R.dtype.kind == "O" else []
    if len(kinds) > 1 and "str" in kinds:
        raise ArgumentError(f"y must hold numbers, truth values or texts, got a mixture: {', '.join(kinds)}")
    classes, codes_R = np.unique(y_R, return_inverse=True)
    if len(classes) != 2:
        unlike = "Unknown label type: continuous; " * bool(y_R.dtype.kind == "f" and (y_R != np.floor(y_R)).any())
        hint = "Only binary classification is supported." if len(classes) > 2 else "there is nothing to learn"
        raise ArgumentError(f"y must have two classes, got {len(classes)} class{'es' * (len(classes) != 1)}; {unlike}{hint}")
    return classes, {label_name(frame, y, label): AddedColumn(codes_R.astype(np.int8), "y")}


def _plain(value: Any) -> bool | int | float | str:
    """Return a value of `y` as Python's own, which a run keeps as JSON. Raises ArgumentError for missing ones and other types."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value).__name__ in ("NAType", "NaTType") or isinstance(value, float) and np.isnan(value):
        raise ArgumentError("y must hold no missing values: Input y contains NaN")
    if not isinstance(value, bool | int | float | str):
        raise ArgumentError(f"y must hold numbers, truth values or texts, got {value!r}")
    return value


def label_name(frame: Frame, y: Any, label: str | None) -> str:
    """Return the name of the label's column: one that is given, that of a series, or "label", whichever no other column has."""
    own = getattr(y, "name", None)
    if label is not None:
        if label in frame.names or parse_label(label).column != label:
            raise ArgumentError(f"label must be left out where y is given and X has that column, got {label!r}")
        return label
    is_plain = isinstance(own, str) and own and parse_label(own).column == own and own not in frame.names
    return str(own) if is_plain else new_name("label", frame.names)


def new_name(name: str, taken: Sequence[str]) -> str:
    """Return a name, with a number behind it where it is taken."""
    numbered = (name if n == 1 else f"{name}_{n}" for n in range(1, len(taken) + 2))
    return next(each for each in numbered if each not in taken)


def weights_beside(frame: Frame, sample_weight: Any, taken: Sequence[str]) -> dict[str, AddedColumn]:
    """Return the column of weights; none where there are no weights. `taken`: names of columns beside the frame's. Raises
    ArgumentError."""
    if sample_weight is None:
        return {}
    try:
        weights_R = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("sample_weight must be a number of at least 0 for each row of X, got other values") from None
    if weights_R.ndim != 1:
        raise ArgumentError(f"sample_weight must be a number for each row of X, got an array of shape {weights_R.shape}")
    if not (np.isfinite(weights_R).all() and (weights_R >= 0).all()):
        raise ArgumentError("sample_weight must be finite and at least 0 for each row of X, got other values")
    if not weights_R.any():
        raise ArgumentError("sample_weight must not be zero for all rows: there is nothing to learn from")
    return {new_name("weight", [*frame.names, *taken]): AddedColumn(weights_R, "sample_weight")}
