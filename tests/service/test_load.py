"""A page out of millions of rows costs milliseconds."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from adaptive_rec.live.shared_state import StateReader
from adaptive_rec.live.state_writer import StateWriter, Tier
from adaptive_rec.service.hello import Table
from adaptive_rec.service.placement import Class
from adaptive_rec.service.placement_api import Sort, page, read_cursor

pytestmark = pytest.mark.alone

ROWS, HOT = 8_000_000, 800_000


@pytest.fixture(scope="module")
def reader() -> StateReader:
    dice = np.random.default_rng(0)
    writer = StateWriter([ROWS], 4 << 20, 2)
    hot = dice.choice(ROWS, HOT, replace=False)
    slot_of_row = np.full(ROWS, -1, dtype=np.int32)
    slot_of_row[hot] = np.arange(HOT)
    stale, movement = dice.random(HOT) < 0.3, dice.random(HOT).astype(np.float32)
    tier = Tier(hot, stale, dice.integers(0, 400, HOT).astype(np.float32), movement)
    sketch = (dice.integers(0, 99, (1 << 18, 16)).astype(np.uint32), np.array([3], dtype=np.uint64), 16)
    writer.write_placement(1, 1, slot_of_row, [tier], sketch)
    return StateReader(writer.fd, writer.layout)


@pytest.mark.parametrize(
    ("wanted", "sort"),
    [("hot", "id"), ("stale", "id"), ("cold", "id"), ("hot", "estimate"), ("stale", "estimate")],
)
def test_a_page_of_a_thousand(reader: StateReader, wanted: Class, sort: Sort) -> None:
    table = Table(1, "big", ROWS - 1000, 16, 0, 1000, 72)
    after, spent = None, []
    for _ in range(7):
        began = time.thread_time()
        answer = reader.placement(lambda arrays, after=after: page(arrays, table, wanted, sort, 1000, after))
        json.dumps(answer)
        spent.append(time.thread_time() - began)
        assert len(answer["rows"]) == 1000
        after = read_cursor(answer["cursor"], wanted, sort)
    assert sorted(spent)[3] < 0.05
