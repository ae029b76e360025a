"""Cells of the product as runs: a case of ``tests.matrix`` trained in a world of seconds, whole or saved and resumed on the
way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.row_types import as_tensor
from adaptive_rec.live.telemetry import Evaluation, Snapshot
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_streams import LateStreams
from tests.doubles.late_threads import LateThreads
from tests.matrix import SKIPPING, Case
from tests.settings import TINY

STEPS, BATCH = 14, 24
ROWS = [60, 40, 9]

WORLD = [
    *TINY, f"run.steps={STEPS}", f"run.batch_size={BATCH}", f"data.table_rows={ROWS}", "model.table_dims=[4, 2, 4]",
    "knobs.reclassify_every=3", "knobs.prefetch_depth=2", "knobs.stale_metric=max_abs", "knobs.stale_threshold=0.053",
    "knobs.alpha=0.3", "knobs.min_probe_touches=1", "knobs.min_touch_ratio=0.0", "knobs.guard_ratio=1.0", "policy.trial_steps=8",
    "knobs.guard_max_logloss_increase=10.0", "knobs.decay=0.6", "policy.sampling_ratio=0.5", "policy.small_table_bytes=200",
    "policy.search_sample_ratio=1.0", "run.split=always", "run.linear=torch", "optimizer.embedding_lr=0.05",
]  # fmt: skip
"""The threshold is no multiple of the learning rate: rows under Lion move by such, and one at the threshold falls on any side."""
REORDERING = ["run.steps=0", "data.epochs=1", f"data.synthetic.samples={STEPS * BATCH - 5}"]
"""Policies that arrange whole epochs have a whole one, whose last batch is smaller."""


def settings_of(case: Case, folder: Path) -> list[str]:
    """Return the settings of a cell. Where several ranks skip, all rows are hot, as other hot rows would be skipped otherwise;
    `slipstream_released` measures, but drops nothing: movements are rounded by the dice of each rank's own slots, and one at the
    threshold falls on either side. Where they reorder the stream by what may be hot, each rank has a part of the budget."""
    policy, several = case["policy"], case["ranks"] > 1
    budget = 1500 // case["ranks"] if policy in ("fae", "fae_released") else 1500
    if policy in (*SKIPPING, "slipstream_released") and case.get("all_hot", several):
        budget = 1 << 16
    rows = "bf16" if case["precision"] == "bf16" else "float32"
    settings = [
        *WORLD, f"knobs.policy={policy}", f"optimizer.embedding={case['optimizer']}", f"run.row_precision={rows}",
        f"run.precision={'float64' if case['precision'] == 'float64' else 'float32'}",
        f"knobs.hot_budget_bytes={budget}",
    ]  # fmt: skip
    if rows == "bf16" and case["optimizer"] in ("lion", "lazy_adam"):  # a gradient of another sign moves a row as far
        settings += ["optimizer.embedding_lr=0.01"]
    if policy == "adaptive":  # a rule without a record of movement
        settings += ["knobs.stale_metric=popularity", "knobs.stale_threshold=1.0"]
    if case["bags"] != "one-hot":
        settings += ["data.synthetic.lookups_per_feature=2", f"data.pooling={case['bags']}"]
    if case["ids"] == "raw":
        settings += ["data.ids=raw"]
    if case["home"] == "disk":
        memory = "4KiB" if case["device"] == "late" else "1MiB"
        settings += [f"run.host_memory={memory}", f"run.disk={folder / 'rows'}"]
    if policy in ("fae", "fae_released", "slipstream_released"):
        settings += REORDERING
    if policy == "slipstream_released" and case.get("all_hot", several):
        settings += ["knobs.target_skip_ratio=0"]
    return settings


def plain_cell(case: Case) -> Case:
    """Return the cell that a case must equal: all rows in memory, one process, on the CPU."""
    return {**case, "home": "memory", "device": "direct", "ranks": 1, "all_hot": case["ranks"] > 1}


def computes_alike(case: Case) -> bool:
    """Whether a cell adds up in the order of its plain cell, and so has the same numbers whatever their precision."""
    return case["device"] == "direct" and case["ranks"] == 1


@dataclass
class Trained:
    """Losses of the steps of the last life, the tables with their optimizer state, and the dense part."""

    losses: NDArray[np.float64]
    rows: list[NDArray[Any]]
    dense: list[NDArray[Any]]
    totals: dict[str, float]
    runtime: Any
    scores: dict[int, float]
    """Log loss of evaluations, by step."""


def train(
    case: Case, folder: Path, stops: Sequence[int] = (), at: Mapping[int, dict[str, Any]] | None = None,
    settings: Sequence[str] = (),
) -> Trained:  # fmt: skip
    """Train a cell; the run is saved and resumed by a fresh one after some steps. Ranks are threads, whose messages are late.
    `at`: changes of knobs after some steps; `settings`: more than the cell's."""

    def of_rank(group: Group) -> Trained:
        saved, losses, scores = None, [], {}
        for life, stop in enumerate([*stops, None]):
            streams = LateStreams(seed=3 + group.rank) if case["device"] == "late" else None
            config = load_config(None, {}, [*settings_of(case, folder / f"life-{life}"), *settings])
            options = RunOptions(rows=folder / f"life-{life}" / "rows")
            runtime = assembling.assemble(config, streams=streams, options=options, group=group)
            if saved is not None:
                checkpoint.load(runtime.parts, saved)
            reports, losses = runtime.run(), []
            for report in reports:
                if isinstance(report, Evaluation):
                    scores[report.step] = report.quality.logloss
                if not isinstance(report, Snapshot):
                    continue
                losses.append(report.loss)
                if at is not None and report.step in at and group.rank == 0:
                    runtime.mailbox.change_knobs(**at[report.step])
                if stop is not None and runtime.step_number >= stop:
                    saved = checkpoint.save(runtime.parts, folder / "checkpoints")
                    reports.close()
                    break
        return outcome(runtime, losses, scores)

    folder.mkdir(parents=True, exist_ok=True)
    if case["ranks"] == 1:
        return of_rank(Alone())
    return joined(LateThreads.train(case["ranks"], of_rank, seed=3))


def outcome(runtime: Any, losses: list[float], scores: dict[int, float]) -> Trained:
    store = runtime.store
    check_places(store)
    rows = [part for table in range(len(ROWS)) for part in store.contents.export(table)]
    store.settle()
    dense = [parameter.detach().cpu().numpy().copy() for parameter in runtime.dense.model.parameters()]
    return Trained(np.array(losses), rows, dense, runtime.reports.totals(), runtime, scores)


def check_places(store: Any) -> None:
    """A row has one authoritative copy: no two hot rows have one slot, and a slot's row is the one that has it."""
    slot_of_row = store.index.placement.slot_of_row
    for pool, spec in enumerate(store.space.pools):
        rows = np.arange(spec.first_row, spec.first_row + spec.rows)
        hot = rows[slot_of_row[rows] >= 0]
        assert len(np.unique(slot_of_row[hot])) == len(hot) <= store.hot.tier.capacities[pool]
        np.testing.assert_array_equal(store.hot.tier.row_of_slot[pool][slot_of_row[hot]], hot)


def whole_table(stores: list[Any], table: int, parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return a table of which each rank has the rows that it owns, in `parts`; those that nobody owns are not numbers."""
    count = stores[0].peers.batch_space.tables[table].rows
    whole = np.full((count, *parts[0].shape[1:]), np.nan, parts[0].dtype)
    for store, part in zip(stores, parts, strict=True):
        ids = store.peers.ownership.owned_ids(table)
        whole[ids[ids < count]] = part[ids < count]
    return whole


def own_some(space: RowSpace, batch: Batch, ranks: int, vector_bytes: int) -> tuple[int, ...]:
    """In the place of `choose_homes`: each rank owns some tables whole, and others are dealt out."""
    return tuple(table % (ranks + 1) - 1 for table in range(len(space.tables)))


def joined(ranks: list[Trained]) -> Trained:
    """Join what several ranks have: losses and dense parts are the same, and each has rows of its own."""
    first = ranks[0]
    for other in ranks[1:]:
        np.testing.assert_array_equal(first.losses, other.losses)
        for one, another in zip(first.dense, other.dense, strict=True):
            np.testing.assert_array_equal(one, another)
    stores = [rank.runtime.store for rank in ranks]
    rows = [whole_table(stores, number // 2, [rank.rows[number] for rank in ranks]) for number in range(len(first.rows))]
    return Trained(first.losses, rows, first.dense, first.totals, first.runtime, first.scores)


DRIFT = {"float32": 1e-3, "bf16": 5e-2}
"""What cells that compute in another order may drift apart in the few steps of this world; a lost update is far beyond it."""


def numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows as numbers; those of 16 bits are exported as patterns."""
    return rows if rows.dtype.kind == "f" else as_tensor(rows).float().numpy()


def assert_same(one: Trained, other: Trained, case: Case) -> None:
    """Compare a cell with another one that must equal it: to the bit where both compute alike, in float64 to a rounding, and
    in less to a rounding after one step, and then to what they may drift."""
    precision, pairs = case["precision"], list(zip([*one.rows, *one.dense], [*other.rows, *other.dense], strict=True))
    if computes_alike(case):
        np.testing.assert_array_equal(one.losses, other.losses)
        for mine, theirs in pairs:
            np.testing.assert_array_equal(mine, theirs)
    elif precision == "float64":
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-12, atol=0)
        for mine, theirs in pairs:
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)
    else:
        np.testing.assert_allclose(one.losses[:1], other.losses[:1], rtol=1e-5 if precision == "float32" else 2e-2)
        drift = DRIFT[precision]
        np.testing.assert_allclose(one.losses, other.losses, rtol=drift)
        for mine, theirs in pairs:
            np.testing.assert_allclose(numbers(mine), numbers(theirs), rtol=drift, atol=drift)
