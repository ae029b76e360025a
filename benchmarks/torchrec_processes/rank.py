"""A rank of the benchmark: all contestants take turns in its process; rank 0 writes what was measured.

torchrun ... --module benchmarks.torchrec_processes.rank TRIAL OUT
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.offline.forecast.fitting import with_settings
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.parts import PartOfBatches
from adaptive_rec.system.group import ALONE, Group
from adaptive_rec.system.torch_group import TorchGroup
from benchmarks.common.contestants import Driven
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload
from benchmarks.common.turns import Turn, take_turns
from benchmarks.torchrec_processes.network import sent_bytes
from benchmarks.torchrec_processes.trial import DEALT, DENSE, OUR_DENSE, OURS, PIPELINED, Trial

MOST_BATCHES = 24
RAW_BYTES = 32 << 20


class Trained(Protocol):
    """What is measured: something that makes steps, the same on every rank."""

    def train(self, steps: int) -> float:
        """Make so many steps. Returns the mean loss of their samples, of all ranks or of this one."""

    def close(self) -> None: ...

    def rows(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        """Yield a table's number, the ids of those of its rows that this rank has, and the rows."""
        ...


class OurRank(Driven):
    """One rank of a run of ours."""

    def __init__(self, config: Config, source: Source, group: Group) -> None:
        super().__init__(config, source, None, None, group=group)
        self.end_turns_exactly()
        self.counted: Counter[str] = Counter()
        """The bytes that the rank has counted itself."""

    def train(self, steps: int) -> float:
        meter = self.runtime.store.group.meter
        sent, before = Counter(meter.sent_bytes), self.runtime.reports.totals()
        self.drive(steps)
        self.finish()
        now = self.runtime.reports.totals()
        self.counted += Counter(meter.sent_bytes) - sent
        loss, samples = (now[key] - before[key] for key in ("loss_sum", "samples_trained"))
        return loss / samples

    def rows(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        store = self.runtime.store
        for table, spec in enumerate(store.peers.batch_space.tables):
            own, place = store.peers.own_range(table, 0, spec.rows)
            yield table, np.arange(spec.rows)[place], store.contents.export(table)[0][own]


class DenseAlone:
    """The sum of the dense part's gradients over all ranks, which both sides make in each step, and nothing else."""

    def __init__(self, config: Config, source: Source) -> None:
        model = build_model(config, RowSpace.of(source.tables, source.features), source.dense_features)
        self._flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))

    def train(self, steps: int) -> float:
        for _ in range(steps):
            dist.all_reduce(self._flat)
        return float("nan")

    def close(self) -> None: ...

    def rows(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        return iter(())


class Measured:
    """A contestant whose clock and whose bytes run from one moment at which all ranks stand still to the next."""

    def __init__(self, trained: Trained, trial: Trial) -> None:
        self.steps, self._trained, self._trial = 0, trained, trial
        self._channel = dist.new_group()

    def turn(self, steps: int) -> Turn:
        turn = Turn()
        self._wait()
        sent, worked = sent_bytes(self._trial.interface), time.process_time()
        self._wait()
        with turn.stage("step"):
            loss = self._trained.train(steps)
            self._wait()
        sent, worked = sent_bytes(self._trial.interface) - sent, time.process_time() - worked
        of_rank = sent / int(os.environ["LOCAL_WORLD_SIZE"]) / (steps * self._trial.samples)
        means = torch.tensor([of_rank, worked / steps, loss], dtype=torch.float64)
        dist.all_reduce(means, group=self._channel)
        found = (means / dist.get_world_size()).tolist()
        turn.gained |= zip(("sent_bytes", "processor_seconds", "loss"), found, strict=True)
        self.steps += steps
        return turn

    def facts(self) -> dict[str, Any]:
        counted = self._trained.counted if isinstance(self._trained, OurRank) else {}
        per_sample = {kind: count / (self.steps * self._trial.samples) for kind, count in counted.items()}
        return {"counted_bytes": per_sample}

    def rows_apart(self, one: OurRank, first: list[NDArray[np.float32]]) -> float:
        """Return the largest difference of a rank's rows from those of one process, which began with `first`, as a share of the
        largest movement of a row there."""
        of_one = {table: rows_RD for table, _, rows_RD in one.rows()}
        moved = max(float(np.abs(of_one[table] - rows_RD).max()) for table, rows_RD in enumerate(first))
        apart = [np.abs(rows_RD - of_one[table][ids]).max(initial=0.0) for table, ids, rows_RD in self._trained.rows()]
        worst = torch.tensor([float(max(apart))])
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=self._channel)
        return worst.item() / moved

    def close(self) -> None:
        self._trained.close()

    def _wait(self) -> None:
        dist.barrier(self._channel)


def build(name: str, config: Config, source: Preloaded, group: TorchGroup) -> Trained:
    if name in (OURS, DEALT):
        return OurRank(config if name == OURS else with_settings(config, [("run.whole_tables", False)]), source, group)
    if name == DENSE:
        return DenseAlone(config, source)
    from benchmarks.torchrec_processes.rivals import TorchRecRank

    whole = PartOfBatches(source, group).train_batches(Position(seed=config.run.seed), config.run.batch_size)
    parts: list[Batch] = list(islice(whole, len(source)))
    return TorchRecRank(config, source, parts, name.split(",")[0], PIPELINED in name, OUR_DENSE in name)


def raw_gigabits(rank: int) -> float:
    """Return the bits a second that rank 1 can send to rank 0, in billions."""
    data = torch.zeros(RAW_BYTES, dtype=torch.uint8)
    took = []
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        if rank == 1:
            dist.send(data, 0)
        elif rank == 0:
            dist.recv(data, 1)
        took.append(time.perf_counter() - began)
    return 8e-9 * RAW_BYTES / min(took[1:])


def measure(trial: Trial, group: TorchGroup) -> dict[str, Any]:
    """Return the figures of all contestants, by name."""
    settings = (*trial.settings, "run.threads=1", "run.device=cpu")
    shape = SHAPES[trial.shape]
    config = configure(shape, trial.samples * group.ranks, settings, trial.data or None)
    source = preload(open_shape(shape, config), config, MOST_BATCHES)
    raw = raw_gigabits(group.rank)
    contestants: dict[str, Any] = {}
    first: dict[str, float] = {}
    apart: dict[str, float] = {}
    one = OurRank(config, source, ALONE) if trial.compares_rows else None
    drawn = [rows_RD for _, _, rows_RD in one.rows()] if one else []
    if one:
        one.train(trial.steps)
    for name in trial.contestants:
        contestants[name] = Measured(build(name, config, source, group), trial)
        first[name] = contestants[name].turn(trial.steps).gained["loss"]
        if one and name != DENSE:
            apart[name] = contestants[name].rows_apart(one, drawn)
    found = take_turns(contestants, trial.rounds, trial.steps)
    for contestant in contestants.values():
        contestant.close()
    rows = sum(table.rows for table in source.tables)
    return {"rows": rows, "raw_gigabits": raw, "first_loss": first, "apart": apart, "runs": found}


def main() -> None:
    values: dict[str, Any] = json.loads(sys.argv[1])
    trial = Trial(**{**values, "contestants": tuple(values["contestants"]), "settings": tuple(values["settings"])})
    group = TorchGroup.join()
    found = measure(trial, group)
    if group.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main()
