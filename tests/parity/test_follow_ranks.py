"""Several ranks that follow a file or a folder: whatever comes when, they train as one process does on the same rows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.tabular import follow
from adaptive_rec.data.tabular.follow import FollowedSource, files_of_source
from adaptive_rec.data.tabular.handed_on import HandedOn, decode_batch, encode_batch
from adaptive_rec.errors import DataError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Evaluation, Snapshot
from adaptive_rec.runtime import loop
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Alone, Group
from tests.cells import whole_table
from tests.doubles.late_threads import LateThreads

HEAD = "clicked,user,item,seen,price\n"
WORLD = [
    "data.ids=raw", "data.follow=true", "data.epochs=1", "data.max_table_rows=40",
    "eval.count=0", "eval.every_steps=4", "run.device=cpu", "run.threads=1", "run.precision=float64", "run.batch_size=24",
    "run.steps=0", "run.linear=torch", "model.embedding_dim=4", "model.bottom_mlp=[8]", "model.top_mlp=[8]",
    "optimizer.embedding=rowwise_adagrad", "knobs.report_every=1", "knobs.reclassify_every=3", "knobs.sample_ratio=1.0",
    "knobs.hot_budget_bytes=1500", "knobs.admit_after=2", "knobs.evict_after=12", "data.shared_rows=3",
]  # fmt: skip


def lines(rows: range) -> str:
    found = []
    for row in rows:
        dice = random.Random(row)
        seen = ";".join(f"i{int(dice.paretovariate(0.7)) % 90}" for _ in range(dice.randrange(3)))
        user, item = (int(dice.paretovariate(0.6)) % most for most in (150, 90))
        found.append(f"{dice.randrange(2)},u{user},i{item},{seen},{dice.gauss(5, 2):.2f}\n")
    return "".join(found)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(loop, "WAIT_SECONDS", 0.01)


def config(folder: Path, source: Path, *settings: str) -> Any:
    lists = '{column = "seen", separator = ";"}'
    (folder / "schema.toml").write_text(f'label = "clicked"\ndense = ["price"]\nsparse = ["user", "item", {lists}]\n')
    named = [f"data.source={source}", f"data.schema_file={folder / 'schema.toml'}"]
    return load_config(None, {}, [*WORLD, *named, *settings])


class Followed:
    """What a run has made of a stream."""

    def __init__(self, runtime: Any, reports: list[Any]) -> None:
        self.losses = [each.loss for each in reports if isinstance(each, Snapshot)]
        self.scores = {each.step: each.quality for each in reports if isinstance(each, Evaluation)}
        self.runtime, self.store, self.keys = runtime, runtime.store, runtime.state.input.keys
        self.rows = [part for table in range(len(runtime.store.space.tables)) for part in runtime.store.contents.export(table)]


def train(
    ranks: int, config: Any, comes: Callable[[int, Any], object] = lambda step, runtime: None, saved: Path | None = None,
    until: int = 0, into: Path | None = None,
) -> list[Followed]:  # fmt: skip
    """Train with so many ranks. `comes` is called at each report of rank 0 with the steps made and its runtime. `saved`:
    folder of the checkpoint to go on from; `until`: step after which a signal comes to the last rank; `into`: where to save."""

    def of_rank(group: Group) -> Followed:
        runtime = assemble(config, group=group)
        if saved is not None:
            checkpoint.load(runtime.parts, checkpoint.newest(saved))
        reports = []
        for report in runtime.run():
            reports.append(report)
            if group.rank == 0 and isinstance(report, Snapshot):
                comes(report.step, runtime)
            if until and group.rank == ranks - 1 and runtime.step_number == until:
                runtime.hurry()
        if into is not None:
            checkpoint.save(runtime.parts, into)
        return Followed(runtime, [*reports, runtime.evaluate()])

    return LateThreads.train(ranks, of_rank, seed=5) if ranks > 1 else [of_rank(Alone())]


def assert_same(several: list[Followed], one: Followed) -> None:
    for rank in several:
        np.testing.assert_allclose(rank.losses, one.losses, rtol=1e-12, atol=0)
        assert rank.scores.keys() == one.scores.keys()
        for step, mine in rank.scores.items():
            theirs = one.scores[step]
            assert mine.samples == theirs.samples
            np.testing.assert_allclose((mine.auc, mine.logloss), (theirs.auc, theirs.logloss), rtol=1e-9)
        assert rank.keys.counts() == one.keys.counts()
    for number, rows in enumerate(one.rows):
        parts = [rank.rows[number] for rank in several]
        whole = whole_table([rank.store for rank in several], number // 2, parts) if len(parts) > 1 else parts[0]
        np.testing.assert_allclose(whole, rows, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("ranks", "policy", "is_folder"),
    [
        (2, "hotline", False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3, "hybrid", True), (2, "device_only", True))),
    ],
)
def test_ranks_train_on_what_comes_as_one_process_does(tmp_path: Path, ranks: int, policy: str, is_folder: bool) -> None:
    """The last batch has fewer samples than others, and the rows of one come in parts."""
    data = tmp_path / "data"
    first, *later = (range(0, 130), range(130, 250), range(250, 251), range(251, 373))

    def add(rows: range) -> None:
        if is_folder:
            draft = data.with_name("draft")
            draft.write_text(HEAD + lines(rows))
            draft.rename(data / f"{rows.start}.csv")
        else:
            with data.open("a") as file:
                file.write(lines(rows))

    def comes(step: int, runtime: Any) -> None:
        while later and step >= later[0].start // 24:
            add(later.pop(0))
        if step == 373 // 24:  # whole batches, after which the stream ends
            source = files_of_source(runtime.source)
            assert isinstance(source, FollowedSource)
            source.stop()

    data.mkdir() if is_folder else data.write_text(HEAD)
    add(first)
    settings = [f"knobs.policy={policy}", "knobs.action=drop", "knobs.alpha=0.9"]
    several = train(ranks, config(tmp_path, data, *settings), comes)
    one = train(1, config(tmp_path, data, *settings, "data.follow_idle_seconds=0.1"))[0]
    assert later == []
    assert len(one.losses) == 16
    assert set(one.scores) == {4, 8, 12, 16}
    assert_same(several, one)


def test_ranks_that_are_stopped_go_on_as_if_unbroken(tmp_path: Path) -> None:
    """Also where the files are gone that rank 0 has read, and in another number of ranks."""
    data = tmp_path / "data"
    data.mkdir()
    for number, rows in enumerate((range(100), range(100, 250), range(250, 330))):
        (data / f"{number}.csv").write_text(HEAD + lines(rows))
    settings = config(tmp_path, data, "data.follow_idle_seconds=0.1")
    whole, one = train(2, settings), train(1, settings)[0]
    train(2, settings, until=7, into=tmp_path / "saved")
    (data / "0.csv").unlink()
    for ranks in (2, 1):
        again = train(ranks, settings, saved=tmp_path / "saved")
        for unbroken in (one, *whole):  # the last steps of them
            unbroken.losses = unbroken.losses[-6:]
            unbroken.scores = {step: score for step, score in unbroken.scores.items() if step in again[0].scores}
        assert again[0].scores.keys() >= {12, 14}
        assert_same(again, one)
        for mine, unbroken in zip(again, whole, strict=True) if ranks > 1 else ():
            assert (mine.losses, mine.scores) == (unbroken.losses, unbroken.scores)
            for rows, others in zip(mine.rows, unbroken.rows, strict=True):
                np.testing.assert_array_equal(rows, others)


def test_ranks_that_wait_obey_a_stop(tmp_path: Path) -> None:
    """What has come by then without filling a batch is left for the next start."""
    data = tmp_path / "data"
    data.write_text(HEAD + lines(range(100)))
    stop = threading.Event()

    def comes(step: int, runtime: Any) -> None:
        if step == 4 and not stop.is_set():
            stop.set()
            threading.Timer(0.2, runtime.mailbox.send, [Command("stop", {})]).start()

    found = train(2, config(tmp_path, data), comes)
    assert [rank.runtime.step_number for rank in found] == [4, 4]
    assert [rank.runtime.state.position.offset for rank in found] == [96, 96]
    assert found[0].scores == found[1].scores


def test_an_error_of_the_rank_that_reads_ends_all_by_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text(HEAD + lines(range(50)))
    source = FollowedSource(config(tmp_path, data))

    def of_rank(group: Group) -> str:
        batches = HandedOn(source, group).train_batches(Position(), 24)
        next(batches)
        assert next(batches).position.offset == 48
        if group.rank == 0:
            data.write_text(HEAD)
        with pytest.raises(DataError) as error:
            next(batches)
        return str(error.value)

    found = LateThreads.train(3, of_rank)
    assert "must only grow while it is followed" in found[0]
    assert found == [found[0]] * 3


def test_a_batch_that_is_handed_on_is_the_same(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text(HEAD + lines(range(60)))
    bags = list(FollowedSource(config(tmp_path, data, "data.follow_idle_seconds=0.05")).train_batches(Position(seed=3), 24))
    singles = [Batch.one_hot(batch.dense_BX, np.arange(2 * batch.size), batch.labels_B, batch.position, 5) for batch in bags]
    timed = [replace(batch, times_B=np.arange(batch.size)) for batch in bags]
    for batch in [*bags, *singles, *timed]:
        again = decode_batch(encode_batch(batch))
        for name, value in vars(batch).items():
            np.testing.assert_array_equal(getattr(again, name), value, name)
            assert getattr(getattr(again, name), "dtype", None) == getattr(value, "dtype", None)
