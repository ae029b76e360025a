"""Rows in the memory of a program (pandas, polars, Arrow, NumPy, a dictionary of columns), written to a file for the commands."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.canonical import canonical_batch, canonical_schema
from adaptive_rec.data.tabular.label import parse_label
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.units import whole

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_ROWS = 1 << 13
"""Rows that are turned into Arrow, and written, at a time: a frame is never copied whole."""
TAKEN = (
    "a pandas or polars frame, an Arrow table or record batch, a dictionary of columns, a NumPy array of rows and columns, or "
    "the path of a file or folder"
)


class ArgumentError(UsageError, ValueError):
    """An argument of a method of `ClickModel` that does not fit; the message names the rule and the value."""


@dataclass(frozen=True)
class AddedColumn:
    """Values for a column that is added to a frame, one for each row."""

    values_R: NDArray[Any]
    argument: str
    """What the user calls them."""


@dataclass(frozen=True)
class Frame:
    """Rows in memory, some at a time."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    is_named: bool = True
    """Whether the columns have names of their own; those of a NumPy array are numbered."""

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.schema.names]


def is_path(X: Any) -> bool:
    """Return whether an argument names a file or a folder."""
    return isinstance(X, str | os.PathLike)


def frame_of(X: Any, names: Sequence[str] | None = None) -> Frame:
    """Return rows in memory as Arrow batches that are made one after another. `names`: those of the columns of a NumPy array.
    Raises ArgumentError for anything else than `TAKEN` names, and for two columns of one name."""
    try:
        import pyarrow as pa
    except ImportError:
        raise UsageError("reading frames needs pyarrow: pip install pyarrow", faq="pyarrow") from None
    try:
        found = _found(X, names)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"X must have columns that Arrow can hold: {error}") from None
    twice = next((name for name in found.names if found.names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"X must have columns of different names, two are called {twice!r}")
    return found


def _found(X: Any, names: Sequence[str] | None) -> Frame:
    import pyarrow as pa

    if isinstance(X, pa.Table):
        return Frame(X.schema, X.to_batches(max_chunksize=BLOCK_ROWS))
    if isinstance(X, pa.RecordBatch):
        return Frame(X.schema, (X.slice(start, BLOCK_ROWS) for start in range(0, max(1, X.num_rows), BLOCK_ROWS)))
    if (pandas := sys.modules.get("pandas")) is not None and isinstance(X, pandas.DataFrame):
        return _of_pandas(X)
    if isinstance(X, Mapping) and not hasattr(X, "toarray"):
        return _found(pa.table({str(name): _column(values, name) for name, values in X.items()}), None)
    is_one_column = isinstance(X, pa.ChunkedArray) or len(getattr(X, "shape", (0, 0))) == 1
    if hasattr(X, "__arrow_c_stream__") and not is_one_column:  # polars, duckdb and others
        reader = pa.RecordBatchReader.from_stream(X)
        return Frame(reader.schema, _cut(reader))
    is_other = hasattr(X, "toarray") or hasattr(X, "collect")
    array = np.empty(0) if is_other else X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    if array.ndim != 2:
        hint = "; sparse input is not supported, call toarray() first" if hasattr(X, "toarray") else ""
        hint = "; collect() it first" if hasattr(X, "collect") else hint
        hint = f" of shape {array.shape}; Reshape your data: rows and columns" if isinstance(X, np.ndarray) else hint
        raise ArgumentError(f"X must be {TAKEN}, got {type(X).__name__}{hint}")
    return _of_array(array, names)


def _of_pandas(X: Any) -> Frame:
    """Return a pandas frame with the types that its `to_parquet` gives it. Its index is no column."""
    import pyarrow as pa

    try:
        schema = pa.Schema.from_pandas(X, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError):
        for position, name in enumerate(X.columns if X.columns.is_unique else ()):
            _column(X.iloc[:, position], name)  # names the column
        raise

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, max(1, len(X)), BLOCK_ROWS):
            rows = X.iloc[start : start + BLOCK_ROWS].set_axis(schema.names, axis=1)
            yield from pa.Table.from_pandas(rows, schema=schema, preserve_index=False).to_batches()  # texts may be in chunks

    return Frame(schema, batches())


def _of_array(array_RX: NDArray[Any], names: Sequence[str] | None) -> Frame:
    """Return the columns of an array, called x0, x1 and so on unless they have names."""
    import pyarrow as pa

    if array_RX.dtype.kind == "c":
        raise ArgumentError("X must hold numbers or texts. Complex data not supported")
    names = names or [f"x{column}" for column in range(array_RX.shape[1])]
    if not names:
        raise ArgumentError(f"X must have a column: 0 feature(s) (shape={array_RX.shape}) while a minimum of 1 is required.")
    if len(names) != array_RX.shape[1]:
        raise ArgumentError(f"X has {array_RX.shape[1]} features, but ClickModel is expecting {len(names)} features as input")
    columns = [_column(array_RX[:, column], names[column]) for column in range(array_RX.shape[1])]
    return Frame(pa.schema([(n, c.type) for n, c in zip(names, columns, strict=True)]), _found(
        pa.table(columns, names=list(names)), None).batches, is_named=False)


def _column(values: Any, name: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ArgumentError(f"X must have columns that Arrow can hold, {name} is none: {error}") from None


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches, fewer at a time."""
    for batch in batches:
        yield from (batch.slice(start, BLOCK_ROWS) for start in range(0, max(1, batch.num_rows), BLOCK_ROWS))


def write_frame(frame: Frame, path: Path, added: Mapping[str, AddedColumn] | None = None) -> str:
    """Write a frame to a Parquet file, with columns that are `added`, each of as many values as there are rows. Returns a digest
    of the file, whose time is always the same. Raises ArgumentError for other numbers of values, and for no row; DataError for
    values that a file cannot hold or where it cannot be written."""
    import pyarrow as pa
    from pyarrow import parquet

    added, rows = added or {}, 0
    schema = canonical_schema(frame.schema)
    lengths = {each.argument: len(each.values_R) for each in added.values()}
    for name, each in added.items():
        schema = schema.append(pa.field(name, pa.array(each.values_R[:0]).type))
    texts = [field.name for field in schema if not _is_number(field.type)]
    packed = {field.name: "snappy" if field.name in texts else "none" for field in schema}
    try:
        with parquet.ParquetWriter(path, schema, use_dictionary=texts, compression=packed) as writer:
            for batch in frame.batches:
                canonical, end = canonical_batch(batch), rows + batch.num_rows
                parts = [pa.array(each.values_R[rows:end]) for each in added.values()]
                check_lengths(end, {name: length for name, length in lengths.items() if length < end})
                writer.write_batch(pa.RecordBatch.from_arrays([*canonical.columns, *parts], schema=schema))
                rows = end
        os.utime(path, (0, 0))  # what is prepared from these rows is known by path, size and time
    except pa.ArrowException as error:
        raise DataError(f"X must hold columns of types that a Parquet file can hold: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
    if not rows:
        raise ArgumentError("X must have a row: Found array with 0 sample(s) while a minimum of 1 is required.")
    check_lengths(rows, lengths)
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()[:16]


def _is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers, which are as long in a file as in memory: reading them then takes no more."""
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def check_lengths(rows: int, lengths: Mapping[str, int]) -> None:
    """Raise ArgumentError where a column beside a frame has another number of values than it has rows."""
    for name, length in lengths.items():
        if length != rows:
            raise ArgumentError(f"{name} must have a value for each of the {whole(rows)} rows of X, got {whole(length)} values")


# Labels and weights beside a frame ------------------------------------------------------------------------------------


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
