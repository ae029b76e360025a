"""Ids that leave and come back in several processes, each of which keeps the rows that have left any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import Pace
from tests.runtime.test_eviction_ranks import trained
from tests.runtime.test_kept_ids import KEPT, returning_ids, settings_of  # noqa: F401 - a fixture of all tests
from tests.settings import AS_IN_MEMORY

STOPS = 141, 200, 251


@pytest.mark.parametrize(
    "ways",
    [
        [[2, "run.host_memory=1MiB", *AS_IN_MEMORY, "knobs.prefetch_depth=9", STOPS[1:2]]],
        pytest.param([[2, "run.host_memory=1MiB", *AS_IN_MEMORY, "knobs.prefetch_depth=9", STOPS]], marks=pytest.mark.slow),
        pytest.param([[2, STOPS], [3, "knobs.prefetch_depth=0", STOPS]], marks=pytest.mark.slow),
    ],
    ids=["disk", "disk, often", "memory"],
)
def test_ids_come_back_in_several_processes_as_in_one(tmp_path: Path, pace: Pace, ways: list[Any]) -> None:
    """An id comes back to a row that another rank may own. Here ids leave by their age alone, so the same ones do as in one
    process."""
    settings = settings_of(KEPT, pace)
    (loss_sum, counts, keys), rows = trained(tmp_path / "one", 1, *settings)
    assert counts["came_back"] > 50
    for number, (ranks, *others, stops) in enumerate(ways):
        whole = trained(tmp_path / f"whole-{number}", ranks, *settings, *others)
        assert whole[0][1:] == (counts, keys)
        assert whole[0][0] == pytest.approx(loss_sum, rel=1e-12)
        assert whole[1].keys() == rows.keys()
        for of, row in rows.items():
            np.testing.assert_allclose(np.frombuffer(whole[1][of]), np.frombuffer(row), rtol=0, atol=1e-11)
        if stops:
            parts = trained(tmp_path / f"parts-{number}", ranks, *settings, *others, stops=list(map(pace, stops)))
            assert parts == whole
