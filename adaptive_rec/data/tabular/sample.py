"""The first values of a column, by which a schema is inferred."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from adaptive_rec.data.tabular.bags import MISSING_WORDS
from adaptive_rec.data.tabular.values import Numbers, numbers

if TYPE_CHECKING:
    import pyarrow as pa

Judged = tuple[str, dict[str, Any], str]
"""What a column is to a model: dense, sparse or unused; its settings in the schema; and why."""


@dataclass
class Sample:
    """One column of the first rows."""

    name: str
    values: pa.Array
    """Without missing values."""
    rows: int
    distinct: int
    """Different values, words such as NA and null among them."""
    unique: pa.Array
    """Those values, of lists the values in them; none of a column that holds neither."""

    @classmethod
    def of(cls, name: str, column: pa.Array) -> Sample:
        """Return a column's sample."""
        import pyarrow as pa

        values = column.flatten() if pa.types.is_list(column.type) else column
        nested = pa.types.is_nested(values.type) or pa.types.is_null(values.type)
        unique = values.slice(0, 0) if nested else values.dictionary_encode().dictionary
        if len(unique) == len(values):
            unique = values  # which is in memory already
        return cls(name, present(column), len(column), len(unique), unique)

    @cached_property
    def numbers(self) -> Numbers | None:
        """The values as numbers; None of a type that has none. They stay in memory until `forget_numbers`."""
        return numbers(self.values)

    def forget_numbers(self) -> None:
        vars(self).pop("numbers", None)

    @property
    def words(self) -> set[str]:
        return words_of(self.name)


def words_in_order(name: str) -> list[str]:
    """Return the words of a column's name, in lower case."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return re.split(r"[^a-z0-9]+", parted.lower())


def words_of(name: str) -> set[str]:
    return set(words_in_order(name))


def present(column: pa.Array) -> pa.Array:
    """Return the values that are not missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = None
    if pa.types.is_string(column.type):
        missing = pc.is_in(column, pa.array(MISSING_WORDS, column.type))
    elif pa.types.is_floating(column.type):
        missing = pc.is_nan(column)
    if missing is not None and pc.any(missing).as_py():
        column = column.filter(pc.invert(missing))
    return column.drop_null() if column.null_count else column
