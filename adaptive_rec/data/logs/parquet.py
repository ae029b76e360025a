"""Parquet files as raw rows: scalar columns, and list columns as bags. Needs pyarrow (the extra `data`).

Keys: an integer is itself with its sign bit turned, so that 0 stays free for what is missing; a text is its BLAKE2b hash of
8 bytes. A null is missing, a null list an empty bag, a null inside a list a missing value.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from adaptive_rec.config.knobs import Frozen, describe
from adaptive_rec.data.prepare.raw import MISSING_KEY, RawBlock, SparseColumn
from adaptive_rec.errors import DataError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_ROWS = 1 << 15
SIGN = np.uint64(1 << 63)
CONSTANT = "constant"
"""Name of the single dense feature of a schema without dense columns."""


class DenseColumn(Frozen):
    """A dense column of the schema: a number of each row."""

    column: str = Field(min_length=1)
    transform: Literal["none", "log"] = "none"
    """log is log(1 + max(x, 0)), for counts."""
    missing: float = 0.0
    """The value of a null, after the transform."""


class SparseSchema(Frozen):
    """A sparse column of the schema: a category of each row, or a list of them."""

    column: str = Field(min_length=1)
    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    """The name of the feature, by default that of the column."""
    table: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    """The table, whose columns share its ids; by default a table with the feature's name."""

    @property
    def feature(self) -> str:
        return self.name or self.column


class Schema(Frozen):
    """The TOML file that names the label, the dense and the sparse columns. Without dense columns a sample has one dense
    feature, the constant 1."""

    label: str = Field(min_length=1)
    """A column of 0 and 1, or of booleans."""
    dense: tuple[DenseColumn, ...] = Field((), strict=False)
    sparse: tuple[SparseSchema, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _check_names(self) -> Schema:
        names = [column.feature for column in self.sparse]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"sparse columns must have different names, two are called {twice}")
        for column in self.sparse:
            if not column.name and not all(c.isalnum() or c in "_.-" for c in column.column):
                raise ValueError(f"sparse column {column.column!r} needs a name of letters, digits, _, . and -")
        return self


def load_schema(path: Path) -> Schema:
    """Read a schema; raises UsageError for what breaks its rules."""
    try:
        return Schema.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"--schema {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--schema {path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise UsageError(f"--schema {path}: {describe(error)}") from None


class ParquetReader:
    """A reader of a Parquet file, in blocks of rows; it reads only the columns of the schema."""

    def __init__(self, path: Path, schema: Path, skip_bad_rows: bool) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UsageError("reading Parquet needs pyarrow: pip install 'adaptive-rec[data]'") from None
        self._path, self._schema, self._skip_bad_rows = path, load_schema(schema), skip_bad_rows
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} must be a Parquet file: {error}") from None
        s = self._schema
        self._check_columns([s.label, *(c.column for c in s.dense), *(c.column for c in s.sparse)])
        self.dense_names = tuple(column.column for column in s.dense) or (CONSTANT,)
        self.dense_transform = ", ".join(f"{c.column}: {c.transform}" for c in s.dense) or "the constant 1"
        self.columns = tuple(SparseColumn(c.feature, c.table or c.feature, self._is_list(c)) for c in s.sparse)
        self.sequence = None
        self.bad_rows = 0
        self.read_ratio = 0.0

    def _check_columns(self, columns: list[str]) -> None:
        known = self._file.schema_arrow.names
        for column in columns:
            if column not in known:
                raise DataError(f"{self._path} must have the column {column} of the schema, it has {', '.join(known)}")

    def _is_list(self, column: SparseSchema) -> bool:
        import pyarrow as pa

        kind = self._file.schema_arrow.field(column.column).type
        if pa.types.is_nested(kind) and not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise DataError(f"{self._path}, column {column.column}: must hold scalars or lists of them, got {kind}")
        return bool(pa.types.is_nested(kind))

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order; one without a label, or with an infinite dense feature, is a bad one."""
        import pyarrow

        s = self._schema
        columns = list(dict.fromkeys([s.label, *(c.column for c in s.dense), *(c.column for c in s.sparse)]))
        total, done = max(1, self._file.metadata.num_rows), 0
        try:
            for batch in self._file.iter_batches(BLOCK_ROWS, columns=columns):
                yield self._block(batch, done)
                done += batch.num_rows
                self.read_ratio = done / total
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self._path} must be a complete Parquet file: {error}") from None

    def _block(self, batch: pa.RecordBatch, rows_before: int) -> RawBlock:
        label = _numbers(batch.column(self._schema.label), self._path, self._schema.label)
        dense = [transformed(_numbers(batch.column(c.column), self._path, c.column), c) for c in self._schema.dense]
        good_B = self._judge(label, self._schema.label, (label == 0) | (label == 1), "must be 0 or 1", rows_before)
        for values_B, column in zip(dense, self._schema.dense, strict=True):
            finite_B = np.isfinite(values_B.astype(np.float32))
            good_B &= self._judge(values_B, column.column, finite_B, "must be finite in 32 bits", rows_before)
        bad = int(np.count_nonzero(~good_B))
        if bad:
            import pyarrow as pa

            self.bad_rows += bad
            batch = batch.filter(pa.array(good_B))
        rows = batch.num_rows
        dense_BX = np.ones((rows, max(1, len(dense))), dtype=np.float32)
        for x, values_B in enumerate(dense):
            dense_BX[:, x] = values_B[good_B]
        pairs = [keys_and_lengths(batch.column(c.column), self._path, c.column) for c in self._schema.sparse]
        return RawBlock(dense_BX, label[good_B].astype(np.float32), [p[0] for p in pairs], [p[1] for p in pairs])

    def _judge(
        self, values_B: NDArray[np.float64], column: str, good_B: NDArray[np.bool_], rule: str, rows_before: int
    ) -> NDArray[np.bool_]:
        """Return which rows are good; the first bad one is an error unless bad rows are skipped."""
        wrong = np.flatnonzero(~good_B)
        if len(wrong) and not self._skip_bad_rows:
            row, value = rows_before + int(wrong[0]) + 1, values_B[wrong[0]]
            raise DataError(f"{self._path}, row {row}, column {column}: {rule}, got {value}")
        return good_B


def _numbers(array: pa.Array, path: Path, column: str) -> NDArray[np.float64]:
    """Return a column as float64, with NaN for null."""
    import pyarrow as pa

    try:
        return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowException:
        raise DataError(f"{path}, column {column}: must hold numbers, got {array.type}") from None


def transformed(values_B: NDArray[np.float64], column: DenseColumn) -> NDArray[np.float64]:
    """Return a dense column as the model sees it; null and NaN are missing."""
    dense_B = np.log1p(np.maximum(values_B, 0.0)) if column.transform == "log" else values_B
    return np.where(np.isnan(values_B), column.missing, dense_B)


def keys_and_lengths(array: pa.Array, path: Path, column: str) -> tuple[NDArray[np.uint64], NDArray[np.int32] | None]:
    """Return the keys of a column, and the lengths of the bags of a list column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return scalar_keys(array, path, column), None
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return scalar_keys(array.flatten(), path, column), lengths.astype(np.int32)


def scalar_keys(array: pa.Array, path: Path, column: str) -> NDArray[np.uint64]:
    """Return a key for each value, MISSING_KEY for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind: Any = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        null_N = array.is_null().to_numpy(zero_copy_only=False)
        wide = pa.uint64() if kind == pa.uint64() else pa.int64()
        values_N = pc.fill_null(array.cast(wide), 0).to_numpy(zero_copy_only=False)
        keys_N: NDArray[np.uint64] = values_N.astype(np.uint64) ^ SIGN
        keys_N[null_N] = SIGN
        clash_N = keys_N == MISSING_KEY
        if clash_N.any():
            raise DataError(f"{path}, column {column}: must not hold {values_N[clash_N][0]}, whose key says missing")
        keys_N[null_N] = MISSING_KEY
        return keys_N
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
        raise DataError(f"{path}, column {column}: must hold integers, booleans or texts, got {kind}")
    return hashed(array.dictionary_encode())


def hashed(array: pa.DictionaryArray) -> NDArray[np.uint64]:
    """Return the keys of texts; each distinct text is hashed once."""
    import pyarrow.compute as pc

    texts = array.dictionary.to_pylist()
    digests = (hashlib.blake2b(t if isinstance(t, bytes) else t.encode(), digest_size=8).digest() for t in texts)
    keys_U = np.array([int.from_bytes(digest, "little") for digest in digests] + [MISSING_KEY], dtype=np.uint64)
    return keys_U[pc.fill_null(array.indices, len(texts)).to_numpy(zero_copy_only=False)]
