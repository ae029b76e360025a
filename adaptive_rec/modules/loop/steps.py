"""The steps of a user's loop: each distinct row is updated once, and the lookups are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.errors import ConflictError, TrainingError
from adaptive_rec.modules.loop.bags import Bags, PoolTables
from adaptive_rec.modules.loop.finite_sums import check_gradient
from adaptive_rec.modules.loop.inputs import as_ids
from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.lookup_counts import LookupCounts
from adaptive_rec.modules.loop.lookups import Reads
from adaptive_rec.modules.loop.losses import LoopLosses
from adaptive_rec.modules.loop.row_gradient import CallGradient, RowGradient
from adaptive_rec.modules.loop.step_parts import StepPart, StepParts, StepUpdate
from adaptive_rec.modules.loop.table_weights import TableWeights
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers
from adaptive_rec.policy import BatchView, SkippingPolicy
from adaptive_rec.policy.skipping import plan_step
from adaptive_rec.reclassify.observer import Observer


class LoopSteps:
    """Makes a step of the gradients that an optimizer's step (`step_rows`) or the end of a backward pass (`end_pass`) has."""

    def __init__(
        self,
        tables: TablesInTiers,
        observer: Observer,
        reads: Reads,
        weights: TableWeights,
        losses: LoopLosses,
        boundary: Callable[[], None],
    ) -> None:
        """`boundary` does what is due after each step."""
        self._tables, self._state, self._store, self._rates = tables, tables.state, tables.store, tables.rates
        self._observer, self._reads, self._weights, self._losses = observer, reads, weights, losses
        self._boundary = boundary
        self.parts = StepParts(self._store, self._store.dtype, tables.steps_T, by_table=self._rates.counts_steps)
        self._counts = LookupCounts(self._state, observer)
        self._passes_since_step = 0
        """Backward passes that updated rows since the last step of an optimizer."""
        self._passes_warned = False

    def end_pass(self, found: list[CallGradient]) -> None:
        """End a backward pass that updates rows."""
        self._passes_since_step += 1
        tables = sorted({table for call, _ in found for table in call.bags.tables})
        parts = [StepPart(call, gradient_LD, self._rates.of(call.bags.tables[0]).lr) for call, gradient_LD in found]
        lr_of_table = {table: self._rates.of(table).lr for table in tables}
        with self._tables.turn, self._weights.written(tables):
            self._step(parts, [], lr_of_table)

    def optimizer_stepped(self) -> None:
        """Warn once where rows were updated in several backward passes between two steps of the model's optimizer."""
        if self._passes_since_step > 1 and not self._passes_warned:
            self._passes_warned = True
            self._state.warn(
                f"rows were updated in each of {self._passes_since_step} backward passes since the last optimizer step; to have "
                "their gradients summed, hand wrap the optimizer that holds the weights (update=\"step\")"
            )
        self._passes_since_step = 0

    def check_gradients(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        """Check the gradients of weights before `step_rows`, where other runtimes are to update rows in the same step."""
        for table, gradient in gradients if self._tables.rows.group.is_alone else ():
            check_gradient(gradient, self._tables.space.tables[table].name, self._state.step + 1)

    def step_rows(self, gradients: Sequence[tuple[int, Tensor, float]]) -> None:
        """Update the rows of tables as an optimizer's step, each with the gradient of its weight and its learning rate."""
        parts: list[StepPart] = []
        seen: list[Bags] = []
        for table, gradient, lr in gradients:
            if isinstance(gradient, RowGradient):
                calls = gradient.calls
                folded = any(call.folded for call, _ in calls or ())
                parts += [StepPart(call, part, lr, counts=not folded) for call, part in calls or ()]
                seen += gradient.bags if folded or calls is None else ()
                if calls is not None:
                    continue
                rows, values = gradient.sums()
            else:
                rows, values = torch.arange(len(gradient)), gradient
                seen += self._reads.of(table)
            dtype, each = self._store.dtype, np.arange(len(rows) + 1, dtype=np.int64)
            bags = PoolTables.of(self._tables.space, [table], [False]).bags(as_ids(rows), each, dtype)
            parts.append(StepPart(PoolCall(bags), values.to(dtype), lr, counts=False))
        lr_of_table = {table: lr for table, _, lr in gradients}
        with self._tables.turn, self._weights.written(lr_of_table):
            self._step(parts, seen, lr_of_table)
        for table in lr_of_table:
            self._reads.clear(table)

    def _step(self, parts: list[StepPart], seen: list[Bags], lr_of_table: Mapping[int, float]) -> None:
        """Update each distinct row once, count the lookups (`seen`: those without a part of their own), do what is due between
        steps. After a backward pass autograd may call it on a thread of its own, under the streams of `backward`'s caller."""
        tables, state = self._tables, self._state
        tables.life.check()
        if tables.life.closed:
            raise ConflictError("the runtime was closed, so rows are no longer updated", faq="closed")
        self._rates.check(lr_of_table)
        tables.sums.look()
        samples = max((bags.samples for bags in [*seen, *(part.call.bags for part in parts if part.counts)]), default=0)
        with state.times("update"):
            parts, seen = tables.rows.collect(parts, seen, lr_of_table, state.step)
        updates, probe = self._update(parts, lr_of_table)
        tables.steps_T[list(lr_of_table)] += 1
        for table in self._all_moving(lr_of_table):
            tables.dense_steps.complete(table)
        with state.times("observe"):
            self._counts.count(updates, seen, probe, samples)
        self._losses.count_step(samples)
        state.step_done()
        self._boundary()

    def _update(self, parts: list[StepPart], lr_of_table: Mapping[int, float]) -> tuple[list[StepUpdate], bool]:
        """Update the rows of a step, or none where their gradients are not finite. Returns what was updated, and whether it was
        a probe step."""
        tables, state, store = self._tables, self._state, self._store
        updates: list[StepUpdate] = []
        updating = False
        try:
            with state.times("classify"):
                updates = self.parts.updates(parts, state.step, tables.ahead.batch)
            sound = tables.sums.sound(updates, state.step + 1)
            probe = not state.policy.exact and bool(state.random("probe").random() < state.knobs.probe_ratio)
            self._announce(parts, lr_of_table)
            updating = True
            with state.times("update"):
                for update in updates:
                    store.batches.take(update.work)
                    store.batches.apply(update.work, self._row_update(update, probe, sound))
        except BaseException:
            self._release(updates)
            if updating:
                state.warn(
                    f"the update of step {state.step + 1} broke off: some of its rows may have had it and others not; "
                    "a state saved before has them as they were"
                )
            raise
        return updates, probe

    def _all_moving(self, tables: Iterable[int]) -> list[int]:
        """Return those of some tables of which every row moves at every step."""
        return [table for table in tables if self._rates.rule_of(table).catches_up]

    def _announce(self, parts: list[StepPart], lr_of_table: Mapping[int, float]) -> None:
        """Where every row moves at every step, have the rows that a step updates make the steps that they missed."""
        for table in self._all_moving(lr_of_table):
            own = [part.call.bags for part in parts if table in part.call.bags.tables]
            _, low, high = self._store.space.table_range(table)
            rows = [bags.row_N[(low <= bags.row_N) & (bags.row_N < high)] for bags in own]
            self._tables.dense_steps.announce(table, lr_of_table[table], rows)

    def _row_update(self, update: StepUpdate, probe: bool, sound: Tensor | None) -> RowUpdate:
        policy = self._state.policy
        whole = probe or not isinstance(policy, SkippingPolicy) or policy.guards_quality  # a loop gives no losses for trials
        frozen_U = None if whole else self._frozen(update.work)
        what = update.gradients, update.position_B, frozen_U, update.lr, update.number
        return RowUpdate(*what, measure=probe, sound=sound)

    def _frozen(self, work: ClassifiedBatch) -> NDArray[np.bool_] | None:
        """Return which rows' updates the policy skips."""
        state, stale_U = self._state, self._observer.stale.of(work)
        plan = plan_step(state.policy, BatchView(state.step, False, state.knobs, work, stale_U, state.random("plan")))
        if plan.weight_B is not None or sum(map(len, plan.micro_batches)) != work.batch.size:
            raise TrainingError(f"policy {state.knobs.policy} must not skip or weight samples in a user's loop, it did")
        return plan.frozen_U

    def _release(self, updates: list[StepUpdate]) -> None:
        """Free the rows that a failed step holds on a device: they are out of date."""
        self._tables.ahead.drop()
        for update in updates:
            if update.work.staged is not None:
                self._store.batches.release(update.work)
