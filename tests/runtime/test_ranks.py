"""Figures of each rank, and which of them the others wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.source import Wrapped
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.ranks import COUNTS, KINDS, REPORTS, find_straggler, rank_reports
from adaptive_rec.system.group import Alone, Group
from tests.doubles import late_threads
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY


def counts(*work_ms: list[float], step_ms: float = 100) -> Any:
    """Counts at the start and after each report of 10 steps, in which the ranks' own work took so long (one list a report)."""
    gained = np.zeros((len(work_ms), len(work_ms[0]), len(COUNTS)), np.int64)
    gained[:, :, 0] = 10
    gained[:, :, 1] = 10 * 1000 * np.array(work_ms)
    gained[:, :, 2] = 10 * 1000 * step_ms - gained[:, :, 1]
    gained[:, :, 3] = 10 * 64
    return np.concatenate([np.zeros_like(gained[:1]), gained.cumsum(axis=0)])


@pytest.mark.parametrize(
    ("work_ms", "named"),
    [
        ([[40, 40, 40]] * 5, None),
        ([[40, 40, 70]] * 5, 2),
        ([[70, 40]] * 5, 0),
        ([[40, 40, 59]] * 5, None),  # a step would be 19 % shorter
        ([[40, 40, 61]] * 5, 2),
        ([[1, 1, 5]] * 5, None),  # five times as long, but a step hardly depends on it
        ([[40, 60, 70]] * 5, 2),
        ([[40, 70, 70, 70]] * 5, None),  # most of them are slow
        ([[40, 40, 70]] * 2, None),  # too early to tell
        ([[900, 40, 40]] * 2 + [[40, 40, 40]] * 3, None),  # two pauses
        ([[40, 40, 70], [40, 70, 40]] + [[40, 40, 70]] * 3, 2),
    ],
)
def test_a_rank_is_named_where_steps_would_be_a_fifth_shorter_without_it(
    work_ms: list[list[float]], named: int | None
) -> None:
    found = find_straggler(counts(*work_ms))
    assert (found and found.rank) == named


def test_a_straggler_is_named_in_a_sentence() -> None:
    found = find_straggler(counts(*[[41, 43.06, 79.44]] * 5))
    assert found is not None
    assert found.text == "rank 2 holds up the others: its own work takes 79.4 ms a step, theirs 42.0 ms"


def test_figures_are_sums_since_the_start_and_of_the_last_reports() -> None:
    made = counts([500, 40], [40, 40], [44, 40], step_ms=1000)
    made[:, 0, COUNTS.index("rows")] = [0, 6400, 12800, 19200]
    made[:, 0, COUNTS.index("lookups")] = [0, 100, 200, 300]
    made[:, 0, COUNTS.index("lookups_hot")] = [0, 0, 50, 150]
    whole, lately = rank_reports(made)[0], rank_reports(made[1:])[0]
    assert (whole.work_seconds, whole.wait_seconds) == (pytest.approx(5.84), pytest.approx(30 - 5.84))
    assert whole.work_seconds_per_step == pytest.approx(0.044)
    assert lately.work_seconds_per_step == pytest.approx(0.042)
    assert lately.work_seconds == whole.work_seconds
    assert whole.sent_bytes == {**dict.fromkeys(KINDS, 0), "rows": 19200}
    assert whole.sent_bytes_per_sample["rows"] == 10
    assert (whole.hot_lookup_ratio, lately.hot_lookup_ratio) == (0.5, 0.75)


class SlowReader(Wrapped):
    """A source whose batches take long to read."""

    def train_batches(self, *where: Any) -> Iterator[Batch]:
        for batch in self._source.train_batches(*where):
            time.sleep(0.08)
            yield batch


def snapshots(group: Group, slow: int | None, *changes: str) -> list[Snapshot]:
    settings = load_config(None, {}, [*TINY, "knobs.policy=hotline", "run.steps=24", "knobs.report_every=4", *changes])
    source = assemble(settings).source
    runtime = assemble(settings, SlowReader(source) if group.rank == slow else source, group=group)
    return [report for report in runtime.run() if isinstance(report, Snapshot)]


@pytest.mark.parametrize("changes", [["knobs.prefetch_depth=0"], ["knobs.prefetch_depth=2", "run.classify_threads=1"]])
def test_a_rank_that_reads_slowly_is_named_whichever_thread_reads(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of the steps, the others wait for it in the thread that stages batches."""
    monkeypatch.setattr(late_threads, "MOST_LATE_SECONDS", 0.0)
    found = LateThreads.train(3, lambda group: snapshots(group, 1, *changes))
    compiled, last = found[0][2], found[0][-1]  # kernels are compiled in the first steps, by all ranks in turn
    assert last.straggler is not None
    assert last.straggler.rank == 1
    pairs = list(zip(compiled.ranks, last.ranks, strict=True))
    work = [end.work_seconds - start.work_seconds for start, end in pairs]
    wait = [end.wait_seconds - start.wait_seconds for start, end in pairs]
    assert work[1] > 1.5 * max(work[0], work[2])
    assert wait[1] < min(wait[0], wait[2]) / 1.5
    for rank, own in zip(last.ranks, found, strict=True):
        assert rank.work_seconds + rank.wait_seconds == pytest.approx(own[-1].seconds, rel=0.02)
    assert found[0][-1].ranks == found[2][-1].ranks


def test_bytes_are_those_of_each_rank_and_kind() -> None:
    def of_rank(group: Group) -> tuple[list[Snapshot], dict[str, int]]:
        return snapshots(group, None), dict(group.meter.sent_bytes)

    found = LateThreads.train(2, of_rank)
    shown = found[0][0][-1].ranks
    parameters = sum(p.nbytes for p in assemble(load_config(None, {}, TINY)).dense.parameters)
    for rank, (_, sent) in zip(shown, found, strict=True):
        assert set(rank.sent_bytes) == set(KINDS)
        assert {kind: rank.sent_bytes[kind] for kind in KINDS[:-1]} == {kind: sent[kind] for kind in KINDS[:-1]}
        assert rank.sent_bytes["dense"] == 24 * (parameters + 16), "2 (W - 1) / W is 1 for two ranks; 16: loss and micro-batches"
        assert 0 < rank.hot_lookup_ratio < 1
    assert REPORTS < 24 // 4, "the last reports are not all of them"


def test_a_run_of_one_process_says_nothing_of_ranks() -> None:
    last = snapshots(Alone(), None)[-1]
    assert last.ranks == ()
    assert not {"ranks", "straggler"} & set(last.as_dict())
