"""The rows of a batch judged by a schema, column by column: their values, and which rows break a rule."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.bags import is_text, lists_of
from adaptive_rec.data.tabular.kinds import RULES, remedy
from adaptive_rec.data.tabular.label import Label
from adaptive_rec.data.tabular.schema import ClassWeight
from adaptive_rec.data.tabular.schema_columns import DenseColumn, GroupColumn, SparseColumnSchema, TimeColumn
from adaptive_rec.data.tabular.times import check_unit, rule_of, sine_or_cosine, times
from adaptive_rec.data.tabular.values import LARGEST, Categories, Numbers, categories, label_numbers, numbers, raw_keys
from adaptive_rec.data.tabular.written_numbers import format_hint, written_numbers
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

LIST_RULE = """must be a list such as [27, 9] or ['a', 'b'] where list = "brackets" (separator = "|" is for 27|9)"""

WEIGHT_RULE = "must be a number of at least 0, finite in 32 bits, as it weights the row"


class JudgedRows:
    """The rows of a batch, and which of them were bad in the columns read so far. All methods raise DataError for a column of a
    type that cannot be read, and for the first bad row unless bad rows are skipped."""

    def __init__(
        self, batch: pa.RecordBatch, path: Path, first_row: int, skip_bad_rows: bool, bad_of: Counter[str]
    ) -> None:
        """`first_row`: the number of the first row in the file. `bad_of` counts bad rows by the column that makes them so."""
        self._batch, self._path, self._first_row = batch, path, first_row
        self._skip_bad_rows, self._bad_of = skip_bad_rows, bad_of
        self.bad_B = np.zeros(batch.num_rows, dtype=bool)

    def labels(self, label: Label) -> NDArray[np.float32]:
        """Return the labels."""
        found = self._numbers(label.column, label.equals)
        label_B = label.of(found.values_B)
        hint = "; a label can be a comparison too, such as 'rating >= 4'" if label.rule.endswith("1") else ""
        self._reject(label.column, found.bad_B | ~((label_B == 0) | (label_B == 1)), label.rule, hint)
        return label_B.astype(np.float32)

    def dense(self, column: DenseColumn) -> NDArray[np.float64]:
        """Return finite numbers; missing ones of columns that are standardised stay NaN."""
        if column.is_clock:
            return self._clock(column)
        array, rule = self._batch.column(column.column), "must be a number, finite in 32 bits"
        if column.format and is_text(array.type):
            found = written_numbers(array, column.format)
            rule += f', written as format = "{column.format}" says'
        else:
            found = self._numbers(column.column)
        values_B = transformed(found.values_B, column)
        bad_B = found.bad_B | np.isinf(values_B) | (np.abs(values_B) > LARGEST)
        if not bad_B.any():
            return values_B
        self._reject(column.column, bad_B, rule, format_hint(array[int(np.argmax(bad_B))].as_py()))
        return np.where(bad_B, 0.0, values_B)

    def _clock(self, column: DenseColumn) -> NDArray[np.float64]:
        """Return the sine or cosine of times."""
        array = self._batch.column(column.column)
        found, as_numbers = times(array, column.unit), numbers(array, truths=False)
        if found is None:
            raise DataError(f"{self._where(column.column)}: must hold times, got {array.type}")
        missing_B = array.is_null().to_numpy(zero_copy_only=False)
        if as_numbers is not None:
            missing_B = missing_B | (np.isnan(as_numbers.values_B) & ~as_numbers.bad_B)
        self._reject(column.column, found[1] & ~missing_B, rule_of(column.unit, "unit of the dense column"))
        return np.where(missing_B, column.missing, sine_or_cosine(found[0], column.transform))

    def categories(self, column: SparseColumnSchema) -> Categories:
        """Return categories, or lists of them."""
        name, array = column.column, self._batch.column(column.column)
        if column.list:
            array, wrong_B = lists_of(array, self._where(name))
            self._reject(name, wrong_B, LIST_RULE)
        found = categories(array, column.type, column.separator, self._where(name))
        wrong_B = found.bad_rows(len(self.bad_B))
        if wrong_B.any():
            value = self._batch.column(name)[int(np.argmax(wrong_B))].as_py()
            value = next(iter(value), None) if isinstance(value, list) else value
            self._reject(name, wrong_B, RULES[column.type], remedy(column.type, value, name))
        return found

    def times(self, column: TimeColumn, is_first: bool) -> NDArray[np.int64]:
        """Return the times. `is_first`: no rows of the file come before, so these show whether the unit is right."""
        array, where = self._batch.column(column.column), self._where(column.column)
        if not column.unit and is_first:
            check_unit(array, where, column.column)
        found = times(array, column.unit)
        if found is None:
            raise DataError(f"{where}: must hold times, got {array.type}")
        times_B, bad_B = found
        self._reject(column.column, bad_B, rule_of(column.unit))
        return times_B

    def weights(self, column: str, class_weight: ClassWeight, label_B: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how much each row counts: the number of a column, if it is named, times the weight of the row's class."""
        weight_B = np.where(label_B > 0, class_weight.get("1", 1.0), class_weight.get("0", 1.0))
        if not column:
            return weight_B.astype(np.float32)
        found = self._numbers(column)
        fits_B = (found.values_B >= 0) & (found.values_B <= LARGEST)  # NaN does not
        product_B = np.where(fits_B, found.values_B, 0.0) * weight_B
        self._reject(column, found.bad_B | ~fits_B | (product_B > LARGEST), WEIGHT_RULE)
        return np.minimum(product_B, LARGEST).astype(np.float32)

    def groups(self, column: GroupColumn) -> NDArray[np.int64]:
        """Return the raw key of each row's group."""
        found = categories(self._batch.column(column.column), column.type, "", self._where(column.column))
        if found.lengths_B is not None:
            raise DataError(f"{self._where(column.column)}: groups must be single values, got lists")
        hint = f"; group takes another type in the schema: group = {{ column = {json.dumps(column.column)}, type = \"float\" }}"
        self._reject(column.column, found.bad_rows(len(self.bad_B)), RULES[column.type], hint)
        return raw_keys(found.keys_N)

    def _where(self, column: str) -> str:
        return f"{self._path}, column {column}"

    def _numbers(self, column: str, equals: str = "") -> Numbers:
        array = self._batch.column(column)
        found = label_numbers(array, equals)
        if found is None:
            raise DataError(f"{self._where(column)}: must hold numbers, got {array.type}")
        return found

    def _reject(self, column: str, wrong_B: NDArray[np.bool_], rule: str, hint: str = "") -> None:
        """Count rows that break a column's rule as bad ones."""
        if not wrong_B.any():
            return
        if not self._skip_bad_rows:
            wrong = int(np.argmax(wrong_B))
            value = self._batch.column(column)[wrong].as_py()
            got = "nothing" if value is None or value == "" else ascii(value)[:60]
            raise DataError(f"{self._path}, row {self._first_row + wrong}, column {column}: {rule}, got {got}{hint}")
        if new := int(np.count_nonzero(wrong_B & ~self.bad_B)):
            self._bad_of[column] += new
        self.bad_B |= wrong_B


def transformed(values_B: NDArray[np.float64], column: DenseColumn) -> NDArray[np.float64]:
    """Return a dense column as a prepared folder holds it: null and NaN are missing, and stay NaN where it is standardised later.
    Infinite numbers, which are malformed, are not clipped."""
    if column.clip:
        low, high = column.clip
        values_B = np.where(np.isinf(values_B), values_B, np.clip(values_B, low, high))
    dense_B = np.log1p(np.maximum(values_B, 0.0)) if "log" in column.transform else values_B
    return dense_B if column.is_standard else np.where(np.isnan(values_B), column.missing, dense_B)
