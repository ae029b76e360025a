"""Runs of several ranks, each of which owns some tables whole, with rows on a disk: as in ``test_disk_ranks``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.embedding.peers import whole_tables as owners_of_tables
from adaptive_rec.run.resume import trained_runtime
from tests.cells import own_some
from tests.runtime.test_disk_ranks import OFTEN, ON_DISK, STOPS, assert_goes_on, rows_of
from tests.runtime.test_resumed_ranks import trained

pytestmark = pytest.mark.usefixtures("small_segments", "some_own_tables")


@pytest.fixture
def some_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_of_tables, "choose_homes", own_some)


@STOPS
def test_owners_of_tables_go_on_bit_by_bit_on_a_disk_in_memory_and_elsewhere(
    tmp_path: Path, stops: tuple[int, ...], every: str
) -> None:
    assert_goes_on(tmp_path, stops, every)


def test_other_owners_read_a_copy_on_the_disk(tmp_path: Path) -> None:
    out, steps = tmp_path / "run", [*ON_DISK, OFTEN]
    trained(tmp_path / "whole", 1, "run.steps=16")
    for end, changes in ((4, []), (8, ["run.whole_tables=false"]), (12, []), (16, [])):
        trained(out, 2, *steps, *changes, f"run.steps={end}", resume=end > 4)
        for one in rows_of(out):
            assert np.isfinite(one).all()
    for one, other in zip(rows_of(tmp_path / "whole"), rows_of(out), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


def test_one_process_reads_a_copy_on_the_disk(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(out, 3, *ON_DISK, OFTEN, "run.steps=8")
    store = trained_runtime(out).store
    assert store.cold.on_disk
    tables = [part for table in range(len(store.space.tables)) for part in store.contents.export(table)]
    for one, other in zip(tables, rows_of(out), strict=True):
        np.testing.assert_array_equal(one, other)
    store.close()
