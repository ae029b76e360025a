"""How many rows tables would have, estimated from some blocks of files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from adaptive_rec.data.loaded_samples import ColumnBags, LoadedSamples
from adaptive_rec.data.looked_at import FILE_BLOCKS, FILE_ROWS, estimated_rows
from adaptive_rec.data.tabular.stream import TabularSource
from adaptive_rec.kernels.number_keys import FIRST_ID


def source_of(keys_RC: Any, bag_N: Any, bag_length: int) -> Any:
    """Rows with single columns of tables 0 and 1, and a column of bags of table 1 too, of which nine tenths are trained on."""
    rows = len(keys_RC)

    def pieces(wanted: list[range], most_passed: int) -> list[tuple[int, LoadedSamples]]:
        def piece(part: range) -> LoadedSamples:
            bags = bag_N[part.start * bag_length : part.stop * bag_length]
            column = ColumnBags(bags, np.arange(len(part) + 1) * bag_length)
            labels_B, dense_BX = np.zeros(len(part), np.int32), np.zeros((len(part), 1), np.float32)
            return LoadedSamples(dense_BX, labels_B, keys_RC[part.start : part.stop], (column,))

        return [(part.start, piece(part)) for part in wanted]

    features = [SimpleNamespace(name=name, table=table) for name, table in (("a", 0), ("tags", 1), ("b", 1))]
    ranges = (range(rows * 9 // 10), range(rows * 9 // 10, rows))
    return SimpleNamespace(ranges=ranges, pieces=pieces, tables=[0, 1], features=features, single_names=("a", "b"))


def counted(keys_N: Any, min_count: int) -> int:
    return FIRST_ID + int(np.count_nonzero(np.unique(keys_N, return_counts=True)[1] >= min_count))


@pytest.mark.parametrize("min_count", [1, 2])
def test_few_rows_are_counted(min_count: int) -> None:
    dice = np.random.default_rng(1)
    keys_RC, bag_N = dice.integers(0, 300, (900, 2)), dice.integers(0, 400, 1800)
    found = estimated_rows(cast(TabularSource, source_of(keys_RC, bag_N, 2)), min_count)
    assert found == [counted(keys_RC[:, 0], min_count), counted(np.concatenate([keys_RC[:, 1], bag_N]), min_count)]


@pytest.mark.parametrize("min_count", [1, 2])
def test_many_rows_are_estimated_from_blocks(min_count: int) -> None:
    """Within a third of the number for even values, within a factor of 2.5 for a long tail."""
    dice, rows = np.random.default_rng(2), 10 * FILE_BLOCKS * FILE_ROWS
    even, tail = dice.integers(0, 30_000, rows), dice.zipf(1.3, rows) % 200_000
    keys_RC = np.stack([even, tail], axis=1)
    found = estimated_rows(cast(TabularSource, source_of(keys_RC, tail[:0], 0)), min_count)
    assert found[0] == pytest.approx(counted(even, min_count), rel=0.33)
    assert 0.4 < found[1] / counted(tail, min_count) < 2.5
