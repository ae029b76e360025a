"""Raw ids under policies that arrange the stream: `cdlrm` and `oracle` train as `hybrid` does, those that reorder it as they do
on ids that are rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.knobs import KnobError
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.raw import raw_ids as raw_ids_module
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Wrapped
from adaptive_rec.errors import ConfigError, TrainingError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.policies.cdlrm import CDLRM
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.matrix import always, each, grid
from tests.settings import TINY

ORDERED = ("cdlrm", "oracle")
REORDERING = tuple(name for name in BUILT_IN if load_policy(name).reorders_stream)
WORLD = [
    *TINY, "data.ids=raw", "data.table_rows=[300, 200]", "model.table_dims=[4, 2]", "data.shared_rows=3",
    "data.synthetic.drift_ranks=400", "run.batch_size=8", "run.steps=40", "knobs.admit_after=2", "knobs.prefetch_depth=3",
    "knobs.hot_budget_bytes=3000",
]  # fmt: skip
EPOCHS = ["run.steps=0", "data.epochs=2", "data.synthetic.samples=110", "policy.sampling_ratio=0.5"]
AGEING = ["knobs.evict_after=20", "run.steps=150", "knobs.reclassify_every=10"]
MAKING_ROOM = ["knobs.evict_ratio=0.4", "run.steps=150", "knobs.reclassify_every=10", "data.max_table_rows=100"]
LEAVING = {"nobody": [], "by age": AGEING, "for room": MAKING_ROOM}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids leave a fifth as many steps after they are chosen."""
    monkeypatch.setattr(raw_ids_module, "LATER", 14)


def run_of(policy: str, folder: Path, *settings: str, source: Any = None, chosen: Policy | None = None) -> Runtime:
    more = EPOCHS if policy in REORDERING else []
    config = load_config("tiny", {}, [*WORLD, *more, f"knobs.policy={policy}", *settings])
    return assemble(config, source, policy=chosen, options=RunOptions(rows=folder / "rows"))


def losses(runtime: Runtime, at: dict[int, dict[str, Any]] | None = None, stop: int | None = None) -> list[float]:
    """Train, to the end or to a step. `at`: changes of knobs after some steps."""
    found, reports = [], runtime.run()
    for report in reports:
        if isinstance(report, Snapshot):
            found.append(report.loss)
            if at is not None and report.step in at:
                runtime.mailbox.change_knobs(**at[report.step])
            if report.step == stop:
                break
    return found


def raw_ids_of(runtime: Runtime) -> RawIds:
    found = runtime.state.input.raw_ids
    assert found is not None
    found.counts()  # settles all steps
    return found


def assert_same_rows(one: Runtime, other: Runtime) -> None:
    for table in range(len(one.source.tables)):
        for mine, theirs in zip(one.store.contents.export(table), other.store.contents.export(table), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


# As other policies and other ids -----------------------------------------------------------------------------------------


@grid(always, each, policy=ORDERED, leaving=[*LEAVING], depth=[0, 9], kept=[0, 30])
def test_the_order_kept_trains_as_plain_steps(
    tmp_path: Path, soon: None, policy: str, leaving: str, depth: int, kept: int
) -> None:
    settings = [*LEAVING[leaving], f"data.keep_evicted={kept}", "knobs.lookahead_batches=5"]
    ours = run_of(policy, tmp_path / "ours", *settings, f"knobs.prefetch_depth={depth}")
    plain = run_of("hybrid", tmp_path / "plain", *settings)
    raw_ids_of(plain).look_ahead(ours.policy.window_batches(ours.knobs))  # so that ids leave at the same steps

    np.testing.assert_allclose(losses(ours), losses(plain), rtol=1e-12, atol=0)

    assert_same_rows(ours, plain)
    counts = raw_ids_of(ours).counts()
    assert counts == raw_ids_of(plain).counts()
    assert 0 < counts["lookups_shared"] < counts["lookups"] == ours.reports.totals()["lookups"]
    assert (counts["evicted"] > 3) == (leaving != "nobody")
    assert ours.reports.totals()["lookups_hot"] > 0


class Translated(Wrapped):
    """A stream whose ids were translated beforehand, to the rows that they have in the end."""

    def __init__(self, raw_ids: RawIds) -> None:
        super().__init__(raw_ids.origin)
        self.tables, self._raw_ids = raw_ids.tables, raw_ids

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return map(self._raw_ids.looked_up, self._source.train_batches(position, batch_size))

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return map(self._raw_ids.looked_up, self._source.test_batches(batch_size, max_samples, validation))


@pytest.mark.parametrize("policy", REORDERING)
def test_a_reordered_stream_trains_as_ids_that_were_translated_beforehand(tmp_path: Path, policy: str) -> None:
    ours = run_of(policy, tmp_path / "ours")
    found, raw_ids = losses(ours), raw_ids_of(ours)
    rows = ["data.ids=auto", "data.shared_rows=1", "knobs.admit_after=1"]
    plain = run_of(policy, tmp_path / "plain", *rows, source=Translated(raw_ids))
    for table, of_keys in enumerate(raw_ids.origin.tables):
        plain.store.contents.draw_rows(table, *raw_ids.keys.keys_of(table), of_keys.rows)

    np.testing.assert_allclose(found, losses(plain), rtol=1e-12, atol=0)

    assert_same_rows(ours, plain)
    assert ours.reports.totals()["samples_trained"] == plain.reports.totals()["samples_trained"] > 0
    counts = raw_ids.counts()
    assert counts["lookups"] == 2 * 110, "each sample of the first epoch was read for its ids once"
    assert 0 < counts["lookups_shared"] < counts["lookups"]


@pytest.mark.parametrize("admit_after", [1, 3])
def test_a_policy_that_follows_reads_the_stream_from_its_step_on(tmp_path: Path, admit_after: int) -> None:
    """The batches that cdlrm has read ahead are taken again, and are those of a run under hotline from the start."""
    settings = [f"knobs.admit_after={admit_after}", "knobs.lookahead_batches=6"]
    changed, plain = run_of("cdlrm", tmp_path / "changed", *settings), run_of("hotline", tmp_path / "plain", *settings)
    np.testing.assert_allclose(losses(changed, {10: {"policy": "hotline"}}), losses(plain), rtol=1e-12, atol=0)
    assert raw_ids_of(changed).counts() == raw_ids_of(plain).counts()
    assert_same_rows(changed, plain)


# Refused -----------------------------------------------------------------------------------------------------------------


def test_ids_that_have_their_rows_can_neither_leave_nor_wait_for_more_lookups(tmp_path: Path) -> None:
    runtime = run_of("fae", tmp_path)
    for name, rule in (
        ("admit_after", "knobs.admit_after must be 2, as policy fae gives ids their rows before it trains, got 20"),
        ("evict_after", "knobs.evict_after must be 0 under a policy that reorders the stream, got 20 under fae"),
    ):
        with pytest.raises(KnobError, match=rule):
            runtime.mailbox.change_knobs(**{name: 20})
    with pytest.raises(ConfigError, match="watch.rules must change knobs to what the run can take"):
        run_of("fae", tmp_path, 'watch.rules=["loss > 9: rollback with admit_after=9"]')
    with pytest.raises(ConfigError, match="knobs.evict_ratio must be 0 under a policy that reorders the stream"):
        run_of("fae", tmp_path, "knobs.evict_ratio=0.1")


class TwoReaders(CDLRM):
    """Reads the stream once more before it goes on with what it reads."""

    def arrange(self, stream: Any) -> Any:
        ahead = stream.rest()
        next(ahead)
        next(stream.read(0))
        next(ahead)
        return super().arrange(stream)


class FarReader(CDLRM):
    """Reads more batches than it says."""

    def window_batches(self, knobs: Any) -> int:
        return 0 if knobs.lookahead_batches == 2 else int(knobs.lookahead_batches)

    def arrange(self, stream: Any) -> Any:
        self._size = 30
        return super().arrange(stream)


def test_a_policy_that_reads_further_ahead_than_it_says_is_stopped_by_name(tmp_path: Path, soon: None) -> None:
    rule = "must read at most 0 batches ahead of those under way where data.ids=raw, it reads more; its method window_batches"
    with pytest.raises(TrainingError, match=rule):
        losses(run_of("cdlrm", tmp_path, chosen=FarReader()))


def test_two_readers_of_what_is_new_are_stopped_by_name(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"must read what is new of the stream by one reader .*, another began"):
        losses(run_of("cdlrm", tmp_path, chosen=TwoReaders()))
