"""The first values of a column, by which a schema is inferred."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptive_rec.data.tabular.values import MISSING_WORDS

if TYPE_CHECKING:
    import pyarrow as pa


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

    @property
    def words(self) -> set[str]:
        """The words of the column's name, in lower case."""
        parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", self.name)
        return set(re.split(r"[^a-z0-9]+", parted.lower()))


def present(column: pa.Array) -> pa.Array:
    """Return the values that are not missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.filter(pc.invert(pc.is_in(column, pa.array(MISSING_WORDS, column.type))))
    elif pa.types.is_floating(column.type):
        column = column.filter(pc.invert(pc.is_nan(column)))
    return column.drop_null()
