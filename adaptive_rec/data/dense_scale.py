"""Warns about dense columns of large numbers in a prepared folder: unscaled, they can make training diverge."""

from __future__ import annotations

import numpy as np

from adaptive_rec.data.left_out import with_all_parts
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.source import Source

LOOKED_AT_ROWS = 1 << 14
LARGE = 100.0
"""Root mean square of a column from which on it is named: the first loss is then about twice what it should be."""


def large_columns(source: Source) -> dict[str, float]:
    """Return the dense columns of a prepared folder that are large as training reads them, with their root mean square."""
    source = with_all_parts(source)
    if not isinstance(source, PreparedSource):
        return {}
    size_X = np.sqrt(np.mean(np.square(source.first_dense(LOOKED_AT_ROWS), dtype=np.float64), axis=0))
    return {name: float(size) for name, size in zip(source.meta.dense_names, size_X, strict=True) if size > LARGE}


def remark(source: Source) -> str:
    """Return a warning that names the large columns and the way out; empty where there are none."""
    found = sorted(large_columns(source).items(), key=lambda pair: -pair[1])
    if not found:
        return ""
    named = ", ".join(f"{name} (about {size:,.0f})" for name, size in found[:5]) + (", ..." if len(found) > 5 else "")
    rule = "dense columns should be of the order of 1, or the first losses are absurd"
    return f'{rule}: {named}; give them transform = "standard" or "log" in a schema, and prepare the data with it'
