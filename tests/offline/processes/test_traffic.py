"""Bytes that a forecast counts, beside those that ranks really send."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.offline.forecast.replay import stream
from adaptive_rec.offline.forecast.traffic import (
    COUNTED_RANKS,
    GATHERS,
    SUMS,
    Nodes,
    Sent,
    count_sent,
    counted_ranks,
    exchanges,
)
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Group
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY

STEPS = 6
BAGS = ["data.table_rows=[6000, 4000, 9]", "data.synthetic.feature_lookups=[40, 30, 1]", "data.synthetic.head_ratio=0.5"]
DIMS = ["model.table_dims=[4, 8, 4]", "run.precision=float32"]


def config(*changes: str) -> Config:
    return load_config(None, {}, [*TINY, "knobs.policy=hotline", f"run.steps={STEPS}", *changes])


def counted(settings: Config, layouts: list[Nodes], dense_bytes: int = 0) -> list[Sent]:
    source = open_source(settings)
    space = RowSpace.of(source.tables, source.features)
    vector_bytes = 8 if settings.run.precision == "float64" else 4
    return count_sent(space, stream(settings, source), layouts, vector_bytes, dense_bytes, settings.whole_tables)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("changes", [[], BAGS, DIMS])
def test_as_many_bytes_are_counted_as_ranks_send(ranks: int, changes: list[str]) -> None:
    def sent(group: Group) -> tuple[Counter[str], int]:
        runtime = assemble(config(*changes), group=group)
        for _ in runtime.run():
            pass
        return group.meter.sent_bytes, sum(each.nbytes for each in runtime.dense.parameters)

    found = LateThreads.train(ranks, sent)
    [one] = counted(config(*changes), [Nodes(ranks, 1)], found[0][1])
    for kind in ("requests", "rows", "gradients"):
        assert getattr(one, kind) == pytest.approx(np.mean([bytes_[kind] for bytes_, _ in found]) / STEPS, rel=1e-12)
    assert one.dense == pytest.approx(found[0][0]["dense"] / STEPS, rel=0.1)  # a run also adds up two sums of losses
    assert one.outside == pytest.approx(one.exchanged)


def test_owners_pool_long_bags() -> None:
    """What the case of long bags above is for."""
    settings = config(*BAGS)
    source = open_source(settings)
    space = RowSpace.of(source.tables, source.features)
    distinct = [len(ClassifiedBatch(batch, space).distinct_U) for batch in islice(stream(settings, source), STEPS)]
    assert counted(settings, [Nodes(2, 2)])[0].lines * 2 < np.mean(distinct) / 2


def test_ranks_of_one_machine_use_no_network() -> None:
    one, two, four = counted(config(), [Nodes(4, 4), Nodes(4, 2), Nodes(4, 1)])
    assert one.outside == 0 < two.outside < four.outside == one.exchanged
    assert two.exchanged == one.exchanged


def test_one_rank_sends_nothing_and_many_ranks_are_sampled() -> None:
    one, many, all_ = counted(config(), [Nodes(1, 1), Nodes(32, 8), Nodes(100, 8)])
    assert one.exchanged == one.dense == one.outside == 0
    assert many.samples == 1
    assert all_.samples < 1
    assert counted_ranks(1024)[0] == 0
    assert counted_ranks(1024)[-1] == 1023
    assert len(counted_ranks(1024)) == COUNTED_RANKS


def test_a_step_has_as_many_operations_as_its_time_is_predicted_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Counter[str] = Counter()
    for name in ("_add", "_all_to_all", "_all_gather"):
        whole = getattr(LateThreads, name)

        def counting(group: LateThreads, *words: Any, name: str = name, whole: Any = whole) -> Any:
            done[name] += group.rank == 0
            return whole(group, *words)

        monkeypatch.setattr(LateThreads, name, counting)

    def operations(steps: int) -> Counter[str]:
        def train(group: Group) -> None:
            quiet = config(f"run.steps={steps}", "knobs.reclassify_every=500", "knobs.report_every=500")
            options = RunOptions(tmp_path / str(steps))
            for _ in assemble(quiet, group=group, options=options).run():
                pass

        done.clear()
        LateThreads.train(2, train)
        return Counter(done)

    gained = operations(30)
    gained.subtract(operations(20))
    assert gained == {"_all_gather": 10 * GATHERS, "_add": 10 * SUMS, "_all_to_all": 10 * exchanges(pools=1)}
