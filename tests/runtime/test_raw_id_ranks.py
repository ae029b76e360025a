"""Runs of several ranks on raw ids that are saved, resumed by any number of ranks, steered and exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.checkpoint.saved_state import saved_by
from adaptive_rec.cli import main
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.errors import CheckpointError, DataError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.run.resume import trained_runtime
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_threads import LateThreads
from tests.runtime.conftest import Pace
from tests.runtime.test_processes import config
from tests.runtime.test_resumed_ranks import trained
from tests.settings import AS_IN_MEMORY

pytestmark = pytest.mark.usefixtures("small_segments")

RAW = ["data.ids=raw", "knobs.admit_after=2", "data.shared_rows=3", "knobs.prefetch_depth=4", "checkpoint.every_steps=7"]

ON_DISK = ["run.host_memory=1MiB", *AS_IN_MEMORY]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a run over a file of clicks with more ids than rows."""
    random, path = np.random.default_rng(3), tmp_path_factory.mktemp("clicks") / "clicks.tsv"
    ids_BF = random.zipf(1.3, (2400, 3)) % 500
    lines = ["\t".join(["1" if ids[0] % 3 == 0 else "0", "5", "7", *(f"{id_:08x}" for id_ in ids)]) for ids in ids_BF]
    path.write_text("\n".join(lines) + "\n")
    return [*RAW, f"data.source={path}", "data.max_table_rows=40", "data.test_range=[0.8,1.0]", "data.train_range=[0,0.8]"]


def keys_of(out: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows of each table that have a key in a run's newest checkpoint, and their keys, as one process reads them."""
    runtime = trained_runtime(out)
    runtime.store.close()
    raw_ids = runtime.state.input.raw_ids
    assert raw_ids is not None
    return [raw_ids.keys.keys_of(table) for table in range(len(raw_ids.tables))]


def known_rows(out: Path) -> list[np.ndarray]:
    """The rows of a run's newest checkpoint that keys have, and their optimizer state."""
    newest = checkpoint.newest(out / "checkpoints")
    assert newest is not None
    saved = SavedRows(DISK, newest)
    rows = zip(saved.tables, keys_of(out), strict=True)
    return [part[row_K] for table, (row_K, _) in rows for part in saved.read(table, 0, table.rows)]


def assert_same_keys(one: Path, other: Path) -> None:
    for mine, theirs in zip(keys_of(one), keys_of(other), strict=True):
        np.testing.assert_array_equal(np.stack(mine), np.stack(theirs))


@pytest.mark.parametrize(
    ("where", "turn"),
    [(ON_DISK, 7), *(pytest.param(where, 15, marks=pytest.mark.slow) for where in ([], ON_DISK))],
    ids=["disk-short", "memory", "disk"],
)
def test_ids_keep_their_rows_under_any_number_of_ranks(tmp_path: Path, full: list[str], where: list[str], turn: int) -> None:
    whole = trained(tmp_path / "whole", 1, *full, f"run.steps={4 * turn}")
    out = tmp_path / "run"
    for number, ranks in enumerate((2, 3, 1, 2), start=1):
        summary = trained(out, ranks, *full, *where, f"run.steps={number * turn}", resume=number > 1)
    assert summary["keys"] == whole["keys"]
    assert whole["keys"]["refused"] > 0
    assert whole["keys"]["lookups_shared"] > 0
    assert summary["train_logloss"] == pytest.approx(whole["train_logloss"], rel=1e-12)
    assert summary["eval"]["auc"] == pytest.approx(whole["eval"]["auc"], rel=1e-9)
    assert_same_keys(out, tmp_path / "whole")
    for mine, theirs in zip(known_rows(out), known_rows(tmp_path / "whole"), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("policy", "stops"),
    [
        ("slipstream", (6, 14, 26)),
        pytest.param("slipstream", (11, 33, 60), marks=pytest.mark.slow),
        pytest.param("hotline", (11, 33, 60), marks=pytest.mark.slow),
    ],
    ids=["slipstream-short", "slipstream", "hotline"],
)
def test_the_same_ranks_go_on_bit_by_bit(tmp_path: Path, policy: str, stops: tuple[int, ...]) -> None:
    changes = [*RAW, f"knobs.policy={policy}", "knobs.hot_budget_bytes=1000"]
    whole = trained(tmp_path / "whole", 2, *changes, f"run.steps={stops[-1]}")
    for steps in stops:
        again = trained(tmp_path / "run", 2, *changes, f"run.steps={steps}", resume=steps > stops[0])
    for name in ("keys", "samples_trained", "row_updates", "hot_rows", "eval"):
        assert again[name] == whole[name], name
    assert_same_keys(tmp_path / "run", tmp_path / "whole")
    for mine, theirs in zip(known_rows(tmp_path / "run"), known_rows(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("where", [[], ON_DISK], ids=["memory", "disk"])
def test_each_rank_draws_and_saves_the_rows_that_it_owns(tmp_path: Path, where: list[str]) -> None:
    """Rows 10 to 29 of the second table get first values of ids, as in one process, and are saved though no step changes them."""
    row_C, key_C = np.arange(10, 30), 7 ** np.arange(20)

    def of_rank(group: Group) -> Any:
        store = assemble(config(*where), options=RunOptions(rows=tmp_path / str(group.ranks)), group=group).store
        store.index.changed_R[:] = False
        before = [store.contents.export(table)[0] for table in range(3)]
        store.contents.draw_rows(1, row_C, key_C, 40)
        store.contents.flag_changed(1, row_C)
        after = [store.contents.export(table)[0] for table in range(3)]
        return store, before, after, np.flatnonzero(store.index.changed_R)

    _, _, drawn, flagged = of_rank(Alone())
    saved = []
    for store, before, after, own_flagged in LateThreads.train(3, of_rank):
        ids = store.peers.ownership.owned_ids(1)
        np.testing.assert_array_equal(after[1][ids < 40], drawn[1][ids[ids < 40]])
        for table in (0, 2):
            np.testing.assert_array_equal(after[table], before[table])
        assert (before[1] != after[1]).any()
        saved.append(store.peers.ownership.joint_rows(own_flagged))
    np.testing.assert_array_equal(np.sort(np.concatenate(saved)), flagged)
    assert len(flagged) == 20


def test_keys_are_saved_once_and_exported_with_their_rows(tmp_path: Path, full: list[str]) -> None:
    out = tmp_path / "run"
    summary = trained(out, 2, *full, "run.steps=30")
    newest = checkpoint.newest(out / "checkpoints")
    assert newest is not None
    assert saved_by(newest, 0, DISK).maybe("keys") is not None
    assert saved_by(newest, 1, DISK).maybe("keys") is None
    for words in (["eval"], ["checkpoint", "verify"], ["report"]):
        assert main([*words, str(out)]) == 0
    assert main(["checkpoint", "export", str(out), "--out", str(tmp_path / "tables"), "--as", "npy"]) == 0
    exported = load_file(tmp_path / "tables/keys.safetensors")
    assert sum(len(each) for name, each in exported.items() if name.endswith(".key")) == summary["keys"]["keys"]
    for table, (row_K, key_K) in enumerate(keys_of(out)):
        weights = np.load(tmp_path / f"tables/C{table + 1}.npy")
        np.testing.assert_array_equal(exported[f"C{table + 1}.row"], row_K)
        np.testing.assert_array_equal(exported[f"C{table + 1}.key"], key_K)
        np.testing.assert_array_equal(weights[row_K], known_rows(out)[2 * table])


def test_a_changed_knob_takes_effect_with_the_same_batch_on_all_ranks(pace: Pace) -> None:
    def of_rank(group: Group, depth: int) -> Any:
        changes = ["data.ids=raw", f"run.steps={pace(160)}", "data.synthetic.samples=8000", "data.table_rows=[9000, 40, 9]"]
        runtime, losses = assemble(config(*changes, f"knobs.prefetch_depth={depth}"), group=group), []
        for report in runtime.run():
            if isinstance(report, Snapshot):
                losses.append(report.loss)
                if report.step == pace(20) and group.rank == 0:
                    runtime.mailbox.change_knobs(admit_after=40)
        raw_ids = runtime.state.input.raw_ids
        assert raw_ids is not None
        return losses, raw_ids.counts(), raw_ids.state()["admit_after"].tolist()

    alone = of_rank(Alone(), 0)
    assert alone[1]["lookups_shared"] > 0
    for several in LateThreads.train(2, lambda group: of_rank(group, 6)):
        np.testing.assert_allclose(several[0], alone[0], rtol=1e-12)
        assert several[1:] == alone[1:]


def test_a_checkpoint_without_raw_ids_is_refused_by_all_ranks(tmp_path: Path) -> None:
    trained(tmp_path / "run", 2, "run.steps=10")
    shutil.copytree(tmp_path / "run", tmp_path / "raw")
    for ranks in (1, 2):
        with pytest.raises(CheckpointError, match=r"data\.ids of checkpoint"):
            trained(tmp_path / "raw", ranks, "data.ids=raw", resume=True)


def test_ranks_that_read_other_samples_end_by_name(memory_source: Any) -> None:
    """Their first batches are equal. Ids would have other rows on each rank."""
    whole = assemble(config("data.table_rows=[3000, 40, 9]"))
    batches = list(whole.batches())

    def of_rank(group: Group) -> str:
        own = batches if group.rank == 0 else [*batches[:9], batches[40], *batches[10:]]
        settings = config("data.ids=raw", "knobs.report_every=20")
        source = RawIds(memory_source(own, whole.source.tables, whole.source.features), settings)
        with pytest.raises(DataError) as caught:
            list(assemble(settings, source, group=group).run())
        return str(caught.value)

    rule = "data.source must have the same samples on all ranks, rank 1 has given rows to other ids than rank 0 by step 20"
    assert LateThreads.train(2, of_rank) == [rule] * 2
