"""Runs to be compared: the same batches of real rows under different policies, budgets, devices and schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.embedding.peers.rank_peers import RankPeers
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy import AccessView, Policy, Wish
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Group
from tests.cells import whole_table
from tests.doubles.late_streams import LateStreams
from tests.doubles.late_threads import LateThreads

STEPS = 200
BATCH = 96
STREAMS = {
    "direct": lambda rank: None,
    "late": lambda rank: LateStreams(seed=3 + rank),
    "cuda": lambda rank: CudaStreams(torch.device("cuda")),
}


class ChurningHotline(Hotline):
    """Hotline with a placement that changes on purpose: in every window other rows are wanted."""

    def place(self, view: AccessView) -> Wish:
        rows = np.concatenate([view.candidate_rows, view.hot_rows])
        random = np.random.Generator(np.random.Philox(key=[7, view.step]))
        return Wish(rows, random.random(len(rows)))


@dataclass
class Outcome:
    losses: NDArray[np.float64]
    tables: list[NDArray[np.float64]]
    dense: list[NDArray[np.float64]]
    runtime: Any
    """The runtime that trained; None where a test has dropped it."""


Train = Callable[..., Outcome]


def batches_of(
    rows: Any, steps: int, multi_hot: bool, pooling: str
) -> tuple[list[Batch], tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Real rows as batches. Multi-hot bags hold the ids of up to three successive rows of the file; some are empty."""
    tables = (
        tuple(TableSpec(f"C{i + 1}", n, 16 if i % 2 else 8) for i, n in enumerate(rows.table_rows))
        if multi_hot
        else tuple(TableSpec(f"C{i + 1}", n, 8) for i, n in enumerate(rows.table_rows))
    )
    features = tuple(FeatureSpec(t.name, i, pooling if i % 3 else "sum") for i, t in enumerate(tables))  # type: ignore[arg-type]
    random = np.random.default_rng(5)
    batches = []
    for start in range(0, steps * BATCH, BATCH):
        part = slice(start, start + (BATCH if start + BATCH < steps * BATCH else BATCH // 3))  # the last one is ragged
        dense, labels, ids = rows.dense[part], rows.labels[part], rows.ids[part]
        if not multi_hot:
            batches.append(Batch.one_hot(dense, ids, labels))
            continue
        lengths = random.choice([0, 1, 2, 3], p=[0.1, 0.6, 0.2, 0.1], size=ids.shape)
        neighbours = [rows.ids[(start + np.arange(len(ids)) + k) % len(rows.ids)] for k in range(3)]
        stacked = np.stack(neighbours, axis=2).reshape(-1, 3)
        flat = lengths.reshape(-1)
        values = stacked[np.arange(3)[None, :] < flat[:, None]]
        batches.append(Batch(dense, values, np.concatenate([[0], np.cumsum(flat)]), labels))
    return batches, tables, features


@pytest.fixture(scope="session")
def train(criteo_rows: Any, memory_source: Any) -> Train:
    def run(
        policy: str = "hybrid",
        optimizer: str = "sgd",
        bags: str = "one-hot",
        device: str = "direct",
        budget_bytes: int = 0,
        depth: int = 0,
        churn: bool = False,
        precision: str = "float64",
        steps: int = STEPS,
        split: str = "always",
        ranks: int = 1,
        at: dict[int, list[dict[str, Any]]] | None = None,
        settings: Sequence[str] = (),
        classify: str = "host",
    ) -> Outcome:
        """`at`: changes of knobs after some steps."""
        batches, tables, features = batches_of(
            criteo_rows, steps, bags != "one-hot", "mean" if bags == "mean" else "sum"
        )
        config = load_config(
            None,
            {},
            [
                f"knobs.policy={policy}",
                f"run.split={split}",
                f"optimizer.embedding={optimizer}",
                "optimizer.embedding_lr=0.05",
                "optimizer.dense=SGD",
                "optimizer.dense_lr=0.05",
                f"run.precision={precision}",
                f"run.batch_size={BATCH}",
                "run.steps=0",
                "run.device=cpu",
                "run.threads=1",
                "run.linear=torch",  # as the devices that it is compared with, and plain steps
                "model.embedding_dim=8",
                "model.bottom_mlp=[16]",
                "model.top_mlp=[32]",
                f"knobs.hot_budget_bytes={budget_bytes}",
                f"knobs.prefetch_depth={depth}",
                "knobs.reclassify_every=3",
                "knobs.hysteresis=0.0",
                "knobs.sample_ratio=1.0",
                "knobs.report_every=1",
                f"run.classify={classify}",
                *settings,
            ],
        )

        def of_rank(group: Group | None = None) -> Outcome:
            chosen: Policy | None = ChurningHotline() if churn else None
            streams = STREAMS[device](0 if group is None else group.rank)
            source = memory_source(batches, tables, features, held_out=batches[:2])
            source = RawIds(source, config) if config.data.ids == "raw" else source
            runtime = assemble(config, source, streams, chosen, group=group)
            losses = []
            for event in runtime.run():
                if isinstance(event, Snapshot):
                    losses.append(event.loss)
                    if group is None or group.rank == 0:
                        for changes in (at or {}).get(event.step, ()):
                            runtime.mailbox.change_knobs(**changes)
            exported = [runtime.store.contents.export(index)[0] for index in range(len(tables))]
            runtime.store.settle()
            dense = [parameter.detach().cpu().numpy() for parameter in runtime.dense.model.parameters()]
            return Outcome(np.array(losses), exported, dense, runtime)

        return of_rank() if ranks == 1 else joined(LateThreads.train(ranks, of_rank, seed=3))

    return run


def joined(outcomes: list[Outcome]) -> Outcome:
    """Join what several ranks have: all have the same losses and dense parts, and each has its own rows."""
    first = outcomes[0]
    for other in outcomes[1:]:
        np.testing.assert_array_equal(first.losses, other.losses)
        for one, another in zip(first.dense, other.dense, strict=True):
            np.testing.assert_array_equal(one, another)
    stores = [outcome.runtime.store for outcome in outcomes]
    assert all(isinstance(store.peers, RankPeers) for store in stores)
    tables = [
        whole_table(stores, table, [outcome.tables[table] for outcome in outcomes]) for table in range(len(first.tables))
    ]
    return Outcome(first.losses, tables, first.dense, first.runtime)
