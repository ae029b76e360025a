"""Regular expressions on columns of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED_AT, FIRST = 10_000, 100
"""Values, evenly spread, by which lists are found, and the first ones, which must not say otherwise."""


def evenly(values: pa.Array) -> pa.Array:
    """Return some values from everywhere."""
    import pyarrow as pa

    if len(values) <= LOOKED_AT:
        return values
    return values.take(pa.array(np.arange(LOOKED_AT) * len(values) // LOOKED_AT))


def all_match(values: pa.Array, pattern: str) -> bool:
    """Whether all values match. The first ones mostly say no."""
    import pyarrow.compute as pc

    parts = (values.slice(0, FIRST), values.slice(FIRST))
    return all(pc.all(pc.match_substring_regex(part, pattern)).as_py() is not False for part in parts)


def any_match(values: pa.Array, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def match_ratio(values: pa.Array, pattern: str) -> float:
    import pyarrow.compute as pc

    return float(pc.mean(pc.match_substring_regex(values, pattern).cast("int8")).as_py() or 0.0)


def matched(values: pa.Array, pattern: str) -> list[str]:
    """Return the different texts that the group `found` matches."""
    import pyarrow.compute as pc

    found = pc.struct_field(pc.extract_regex(values, pattern), "found")
    return [text for text in pc.unique(found).to_pylist() if text]
