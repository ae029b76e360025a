"""A paired trial: twins of the run skip what it trains, from the same state and on the same batches.

A twin has a dense part and hot rows of its own, with their optimizer state; cold rows are those of the run. Its step lies between
the run's backward pass and the run's update, so it reads cold rows as they were. It changes nothing of the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.checkpoint.dense_state import dense_arrays, set_dense
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.optimizer import LearningRates
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.embedding.twin import TwinRows
from adaptive_rec.policy import StepPlan
from adaptive_rec.policy.skipping import kept_samples
from adaptive_rec.saved import Saved, parts_by_number


class Twin:
    """A second model that trains on the run's batches."""

    def __init__(self, dense: DensePart, store: EmbeddingStore, steps: int) -> None:
        self._store = store
        self.rows = TwinRows(store)
        made: list[DensePart] = []
        store.hot.launch(lambda: made.append(dense.twin()))
        store.path.settle()
        self.dense = made[0]
        self.difference_K = torch.zeros(steps, dtype=torch.float64, device=store.torch_device)
        self.fits = True
        """Whether no row has become too large for its type."""

    def train(
        self, k: int, work: ClassifiedBatch, plan: StepPlan, loss_B: torch.Tensor, rates: LearningRates, clip: float, number: int
    ) -> None:
        """Make step `k` of the trial, `number` of the run, by a plan. `loss_B`: the run's losses of the batch's samples."""
        dense, batch = self.dense, work.batch
        kept_B, scale_B = kept_samples(plan, batch.size), np.zeros(batch.size)
        weight_B = np.ones(batch.size) if plan.weight_B is None else plan.weight_B
        scale_B[kept_B] = weight_B[kept_B] / batch.weight_of_all_ranks
        dense.begin_step()
        micro = dense.inputs(batch.size)
        self.rows.gather(work, scale_B, micro)
        dense.run(micro)
        share_B = torch.from_numpy(
            np.full(batch.size, 1 / batch.size) if batch.weights_B is None
            else batch.weights_B / (batch.weights_B.sum(dtype=np.float64) or 1.0)  # a batch without weight says nothing
        ).to(self.difference_K)  # fmt: skip

        def compare() -> None:
            apart_B = dense.losses_S[: batch.size].double() - loss_B
            self.difference_K[k] = torch.dot(apart_B, share_B)

        self._store.hot.launch(compare)
        if not kept_B.any():
            return
        position_B = np.where(kept_B, np.arange(batch.size), -1)
        gradients = dense.gradients()
        if clip:
            dense.clip(clip, gradients)
        update = RowUpdate(gradients, position_B, plan.frozen_U, rates.embedding, number, measure=False, skips=True)
        self.fits &= self.rows.update(work, update)
        dense.step(rates.factor)

    def differences(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._store.hot.fetch(self.difference_K)
        return found

    def state(self) -> dict[str, Any]:
        return {
            "rows": self.rows.state(), "dense": dense_arrays(self.dense), "differences": self.differences(), "fits": self.fits
        }  # fmt: skip

    def set_state(self, found: Saved) -> None:
        self.rows.set_state(found.part("rows"))
        set_dense(self.dense, found.part("dense").everything())
        differences = torch.from_numpy(found.array("differences", np.float64, len(self.difference_K)).copy())
        self._store.hot.launch(lambda: self.difference_K.copy_(differences))
        self.fits = found.flag("fits")


class PairedTrial:
    """The twins of a trial, one that skips by the policy's plan and, in some trials, one that skips as much at random."""

    def __init__(self, dense: DensePart, store: EmbeddingStore, length: int, began: int, chance: bool) -> None:
        """Copy the run's state. `length`: steps of skipping; `began`: steps that the run had made."""
        self.length, self.began, self.steps = length, began, length + length // 2
        self.twins = [Twin(dense, store, self.steps) for _ in range(2 if chance else 1)]
        self.skipped, self.seen = 0, 0
        self._store = store
        self._loss_B = torch.zeros(0, dtype=torch.float64, device=store.torch_device)

    @staticmethod
    def bytes_of(dense: DensePart, store: EmbeddingStore, chance: bool, samples: int) -> int:
        """Return the memory that a trial takes with batches of so many samples; `memory.parts` plans as much."""
        return (2 if chance else 1) * (TwinRows.bytes_of(store) + dense.twin_bytes(samples))

    def begin_step(self, samples: int) -> None:
        """Forget the losses of the step before."""
        if len(self._loss_B) != samples:
            self._loss_B = torch.zeros(samples, dtype=torch.float64, device=self._store.torch_device)
        else:
            self._store.hot.launch(self._loss_B.zero_)

    def take_losses(self, samples_S: NDArray[np.int64], loss_S: torch.Tensor) -> None:
        """Take the run's losses of a micro-batch; lines after those of the samples are padding."""
        places = torch.from_numpy(samples_S).to(loss_S.device)
        self._store.hot.launch(lambda: self._loss_B.index_copy_(0, places, loss_S[: len(places)].double()))

    def train(self, step: int, work: ClassifiedBatch, plans: list[StepPlan], rates: LearningRates, clip: float) -> None:
        """Have each twin make a step of the run by its plan."""
        for twin, plan in zip(self.twins, plans, strict=True):
            twin.train(step - self.began, work, plan, self._loss_B, rates, clip, step + 1)

    def count(self, skipped: int, seen: int) -> None:
        """Count what the first twin skipped in a step."""
        self.skipped += skipped
        self.seen += seen

    def follow(self) -> None:
        """Follow rows that have moved."""
        for twin in self.twins:
            twin.rows.follow()

    def state(self) -> dict[str, Any]:
        twins = parts_by_number(twin.state() for twin in self.twins)
        return {"length": self.length, "began": self.began, "skipped": self.skipped, "seen": self.seen, "twins": twins}

    @staticmethod
    def restore(found: Saved, dense: DensePart, store: EmbeddingStore) -> PairedTrial:
        """Return the trial that a checkpoint has, beside a run that is restored already."""
        saved = found.parts("twins")
        trial = PairedTrial(dense, store, found.integer("length"), found.integer("began"), len(saved) > 1)
        trial.skipped, trial.seen = found.integer("skipped"), found.integer("seen")
        for twin, part in zip(trial.twins, saved, strict=True):
            twin.set_state(part)
        return trial
