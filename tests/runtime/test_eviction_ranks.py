"""Ids that lose their rows in several processes: the same ones on all ranks, whose owners clear the rows and draw them anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Group
from tests.doubles.late_threads import LateThreads
from tests.runtime.conftest import Pace
from tests.runtime.test_eviction import SETTINGS, STEPS, at_pace, replaced_ids  # noqa: F401
from tests.settings import AS_IN_MEMORY

ON_DISK = ["run.host_memory=1MiB", *AS_IN_MEMORY]


def outcome(runtime: Runtime) -> Any:
    """The losses, the counts and the keys with their rows, which all ranks have; and the weights of the rows that a rank owns, by
    table and key."""
    raw_ids, store, own = runtime.state.input.raw_ids, runtime.store, {}
    loss_sum = runtime.reports.totals()["loss_sum"]
    assert raw_ids is not None
    keys = [np.stack(raw_ids.keys.keys_of(table)).tolist() for table in range(len(raw_ids.tables))]
    for table, (ids, keys_K) in enumerate(keys):
        here, rows = store.peers.owned(store.peers.batch_space.table_first_row[table] + np.array(ids))
        weights, _ = store.contents.export(table)
        mine = weights[rows - store.space.table_first_row[table]]
        own.update({(table, key): row.tobytes() for key, row in zip(np.array(keys_K)[here].tolist(), mine, strict=True)})
    return (loss_sum, raw_ids.counts(), keys), own


def trained(folder: Path, ranks: int, *settings: str, stops: Sequence[int] = ()) -> tuple[Any, dict[Any, bytes]]:
    """Train with so many ranks, which are saved and resumed at some steps. Returns what all ranks have, and all rows."""

    def of_rank(group: Group) -> Any:
        saved = None
        for stop in [*stops, None]:
            config = load_config("tiny", {}, [*SETTINGS, "run.threads=1", *settings])
            runtime = assembling.assemble(config, options=RunOptions(rows=folder / str(stop)), group=group)
            if saved is not None:
                checkpoint.load(runtime.parts, saved)
            reports = runtime.run()
            while stop is None or runtime.step_number < stop:
                if next(reports, None) is None:
                    break
            if stop is not None:
                saved = checkpoint.save(runtime.parts, folder / "checkpoints")
                reports.close()
        return outcome(runtime)

    folder.mkdir(exist_ok=True)
    found = LateThreads.train(ranks, of_rank)
    rows: dict[Any, bytes] = {}
    for shared, own in found:
        assert shared == found[0][0]
        assert not rows.keys() & own.keys()
        rows.update(own)
    return found[0][0], rows


STOPS = 101, 121, 203


@pytest.mark.parametrize(
    "ways",
    [
        [[*ON_DISK, "knobs.prefetch_depth=9", STOPS]],
        pytest.param([[*ON_DISK, "knobs.prefetch_depth=9", ()], ["knobs.prefetch_depth=5", STOPS]], marks=pytest.mark.slow),
    ],
    ids=["both at once", "each for itself"],
)
def test_the_same_ids_leave_on_all_ranks_in_memory_on_a_disk_and_after_a_resume(
    tmp_path: Path, pace: Pace, ways: list[Any]
) -> None:
    steps = pace.settings(STEPS)
    expected = trained(tmp_path / "whole", 2, *steps, "knobs.prefetch_depth=0")
    (_, counts, _), rows = expected
    assert counts["evicted"] > 100
    assert counts["keys"] == len(rows)
    for number, (*settings, stops) in enumerate(ways):
        assert trained(tmp_path / str(number), 2, *steps, *settings, stops=list(map(pace, stops))) == expected


@pytest.mark.parametrize("where", [pytest.param([], marks=pytest.mark.slow), ON_DISK], ids=["memory", "disk"])
def test_a_row_begins_anew_with_each_id_at_its_owner(tmp_path: Path, pace: Pace, where: list[str]) -> None:
    (_, counts, _), rows = trained(tmp_path, 3, *pace.settings(190), *where, "optimizer.embedding_lr=1e-300")
    assert counts["evicted"] > 100
    for table in range(4):
        keys = np.array([key for of, key in rows if of == table])
        found = np.array([np.frombuffer(row) for (of, _), row in rows.items() if of == table])
        drawn = np.empty(found.shape)
        fill_rows(np.uint64(1), table, first_bound(60), keys, drawn)
        np.testing.assert_array_equal(found, drawn)
