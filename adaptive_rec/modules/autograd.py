"""A session in the user's loop: rows are looked up under autograd, and updated once a step."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.errors import ConflictError, TrainingError
from adaptive_rec.modules import gradient_rules  # noqa: F401 - it registers its rules
from adaptive_rec.modules.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.dense_steps import DenseSteps
from adaptive_rec.modules.finite_sums import check_sums
from adaptive_rec.modules.gradients import Passes, PooledRows
from adaptive_rec.modules.inputs import as_ids
from adaptive_rec.modules.late_sums import LateSums
from adaptive_rec.modules.lookahead import AheadBatch, PoolCall
from adaptive_rec.modules.lookup_counts import LookupCounts
from adaptive_rec.modules.loop_checks import check_loop_change, check_ranks, check_same
from adaptive_rec.modules.options import Setup
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.row_gradient import CallGradient, RowGradient
from adaptive_rec.modules.shared_rows import loop_rows
from adaptive_rec.modules.step_parts import StepPart, StepParts, StepUpdate
from adaptive_rec.modules.table_rates import TableRates
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import BatchView
from adaptive_rec.policy.skipping import plan_step
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.session import Report, Session

MOST_READS = 64
"""Limit of the lookups of a table that are counted in a step with a dense gradient."""
MOST_PASSES = 1024
"""Backward passes without a step that are warned of."""


class AutogradSession(Session):
    """Training in the user's loop. A forward call reads rows from both tiers (`pooled`). A step of the optimizer that holds the
    tables' weights (`step_rows`), or the end of a backward pass where rows are updated there, is a step: each distinct row is
    updated once and the lookups are counted. Between two steps rows move and commands are carried out (`session.py`)."""

    def __init__(
        self, tables: Sequence[TableSpec], setup: Setup, rates: Rates | Sequence[Rates], dtype: torch.dtype
    ) -> None:
        """`rates`: those of all tables, or of each."""
        self.rates = TableRates(rates, len(tables))
        check_same(setup.group, tables, self.rates, dtype)
        kinds = self.rates.kinds
        ownership = Ownership(RowSpace.by_pool(tuple(tables), kinds), setup.group.ranks, setup.group.rank, kinds)
        config, policy, store = setup.build(ownership.own, self.rates, dtype)
        super().__init__(config, policy, store, ends_on_bad_loss=False)
        self.control = Control(
            self.state, self.reclassifier, self.splitting, self.mailbox, self.publisher, self.reports,
            how_it_stops=self._how_it_stops,
        )  # fmt: skip
        self.dtype = store.dtype
        """Type that updates and optimizer state are computed in."""
        self.weight_dtype = dtype
        """Type of the tables, and of vectors that are looked up."""
        self.closed = False
        self._process = os.getpid()
        self.steps_T = np.zeros(len(tables), dtype=np.int64)
        """Number of steps in which each table was looked up."""
        self.updates_in_backward = setup.update == "backward"
        """Whether the end of a backward pass is a step; otherwise gradients wait in ``weight.grad`` for an optimizer's."""
        self.dense_steps = DenseSteps(store, self.rates, self.steps_T, store.dtype)
        self.rows = loop_rows(setup.group, ownership, store, self.dense_steps, self.rates.moving is not None)
        self._parts = StepParts(store, store.dtype, self.steps_T, by_table=self.rates.counts_steps)
        self._counts = LookupCounts(self.state, self.observer)
        self._late_sums = LateSums(store) if self.device.type != "cpu" else None
        self._turn = threading.RLock()
        """Held while rows are read or updated or move: other threads may evaluate while one trains."""
        self._passes = Passes(self._end_pass)
        self.passes_since_step = 0
        """Backward passes that updated rows since the last step of an optimizer."""
        self._reads: dict[int, deque[Bags]] = defaultdict(lambda: deque(maxlen=MOST_READS))
        """Lookups of each table since its last step, where an optimizer makes the steps."""
        self._passes_of: dict[int, tuple[int, int]] = {}
        """Number of backward passes through each table since then, and the newest of them."""
        self._anchor = torch.zeros((), requires_grad=True)
        self._ahead: AheadBatch | None = None
        self._looking_ahead = False
        """Whether a loop over `prefetch` is running."""
        self._passes_warned = False
        self._stop_is_read = False
        """Whether the user's loop has read `stop_requested`."""
        self._loss: Tensor | None = None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._samples = 0
        """Samples of the newest step."""

    @property
    def space(self) -> RowSpace:
        """The row space of the model's tables; that of the store has the rows that this process owns."""
        return self.rows.space

    @abstractmethod
    def emit(self, report: Report) -> None:
        """Pass a report on to the journal, the log and the trackers."""

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that made the runtime."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise ConflictError in a process that was forked from the one that has the rows. It has a copy of them that the other
        knows nothing of, and neither the threads of the other nor their locks."""
        if self.is_forked:
            raise ConflictError(
                f"tables in two tiers must be used in the process that has them ({self._process}), not in one that was forked "
                f"from it ({os.getpid()}): rows are not in shared memory, so what it trains would be lost; fork with "
                "copy.deepcopy(model), which is an ordinary model, or adaptive_rec.unwrap the model before"
            )

    # Forward ---------------------------------------------------------------------------------------------------------

    def pooled(
        self,
        key: Callable[[], CallKey] | None,
        make: Callable[[], list[Bags]],
        weight: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> list[Tensor]:
        """Return the pooled vectors (L, D) of a forward call's bags. `make` makes the bags where none with this `key` were looked
        up ahead. `weight` is the parameter that gets the gradient where rows are not updated in the backward pass. `dtype`: type
        of the vectors, by default that of the tables."""
        self.check_process()
        if not self.state.rows_placed:
            self.start()
        calls = self._ahead.calls(key()) if self._ahead is not None and key is not None else []
        if not calls:
            with self.times("classify"):
                calls = [PoolCall(bags) for bags in make()]
        keep = self._passes.add if weight is None or self.updates_in_backward else partial(self._keep, weight)
        source = self._anchor if weight is None else weight
        found = [PooledRows.apply(source, call, self._gather, keep) for call in calls]
        return [vectors_LD.to(dtype or self.weight_dtype) for vectors_LD in found]

    def _keep(self, weight: Tensor, call: PoolCall, gradient_LD: Tensor) -> Tensor:
        """Return the gradient of a weight, for autograd to add to its ``grad``."""
        table, task = call.bags.tables[0], torch._C._current_graph_task_id()
        self._reads[table].append(call.bags)
        passes, newest = self._passes_of.get(table, (0, -1))
        self._passes_of[table] = passes + (task != newest), task
        if passes + 1 == MOST_PASSES and task != newest:
            self.state.warn(
                f"rows of {self.space.tables[table].name} were read in {MOST_PASSES} backward passes since the last step "
                "of an optimizer that holds its weight; without steps they are not updated"
            )
        return self.rows.gradient_type(weight, [(call, gradient_LD)], call.bags.ranges[0][2])

    def start(self) -> None:
        """Start training, or resume it from a state that was loaded."""
        check_ranks(self.rows.group)
        with self._turn:
            if not self.state.rows_placed:
                self.begin()
        self.publisher.enter("training")

    def _gather(self, call: PoolCall) -> Tensor:
        with self._turn, self.times("gather"):
            return self.rows.gather(call, self.step_number)

    # The step --------------------------------------------------------------------------------------------------------

    def _end_pass(self, found: list[CallGradient]) -> None:
        """End a backward pass that updates rows."""
        self.passes_since_step += 1
        tables = sorted({table for call, _ in found for table in call.bags.tables})
        parts = [StepPart(call, gradient_LD, self.rates.of(call.bags.tables[0]).lr) for call, gradient_LD in found]
        with self._turn:
            self._step(parts, [], {table: self.rates.of(table).lr for table in tables})

    def optimizer_stepped(self) -> None:
        """Warn once where rows were updated in several backward passes between two steps of the model's optimizer."""
        if self.passes_since_step > 1 and not self._passes_warned:
            self._passes_warned = True
            self.state.warn(
                f"rows were updated in each of {self.passes_since_step} backward passes since the last optimizer step; to have "
                "their gradients summed, hand wrap the optimizer that holds the weights (update=\"step\")"
            )
        self.passes_since_step = 0

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
                seen += self._reads[table]
            each = np.arange(len(rows) + 1, dtype=np.int64)
            bags = PoolTables.of(self.space, [table], [False]).bags(as_ids(rows), each, self.dtype)
            parts.append(StepPart(PoolCall(bags), values.to(self.dtype), lr, counts=False))
        with self._turn:
            self._step(parts, seen, {table: lr for table, _, lr in gradients})
        for table, _, _ in gradients:
            self._reads[table].clear()
            self._passes_of.pop(table, None)

    def _announce(self, parts: list[StepPart], lr_of_table: Mapping[int, float]) -> None:
        """Where every row moves at every step, have the rows that a step updates make the steps that they missed."""
        for table, lr in ((table, lr) for table, lr in lr_of_table.items() if self.rates.rule_of(table).catches_up):
            own = [part.call.bags for part in parts if table in part.call.bags.tables]
            _, low, high = self.store.space.table_range(table)
            self.dense_steps.announce(table, lr, [b.row_N[(low <= b.row_N) & (b.row_N < high)] for b in own])

    def _step(self, parts: list[StepPart], seen: list[Bags], lr_of_table: Mapping[int, float]) -> None:
        """Update each distinct row once, count the lookups (`seen`: those without a part of their own), do what is due between
        steps. After a backward pass autograd may call it on a thread of its own, under the streams of `backward`'s caller."""
        self.check_process()
        if self.closed:
            raise ConflictError("the runtime was closed, so rows are no longer updated")
        self.rates.check(lr_of_table)
        if self._late_sums is not None:
            self._late_sums.look()
        samples = max((bags.samples for bags in [*seen, *(part.call.bags for part in parts if part.counts)]), default=0)
        with self.times("update"):
            parts, seen = self.rows.collect(parts, seen, lr_of_table, self.step_number)
        updates: list[StepUpdate] = []
        updating = False
        try:
            with self.times("classify"):
                updates = self._parts.updates(parts, self.step_number, self._ahead)
            sound = self._check(updates)
            probe = not self.policy.exact and bool(self.state.random("probe").random() < self.knobs.probe_ratio)
            self._announce(parts, lr_of_table)
            updating = True
            for update in updates:
                self._update(update, probe, sound)
        except BaseException:
            self._release(updates)
            if updating:
                self.state.warn(
                    f"the update of step {self.step_number + 1} broke off: some of its rows may have had it and others not; "
                    "a state saved before has them as they were"
                )
            raise
        self.steps_T[list(lr_of_table)] += 1
        for table in (table for table in lr_of_table if self.rates.rule_of(table).catches_up):
            self.dense_steps.complete(table)
        with self.times("observe"):
            self._samples = samples
            self._counts.count(updates, seen, probe, samples)
        if self._loss is not None:
            self._loss_sum += self._loss * self._samples
        self.state.step_done()
        for report in self.boundary():
            self.emit(report)

    def _release(self, updates: list[StepUpdate]) -> None:
        """Free the rows that a failed step holds on a device: they are out of date."""
        if self._ahead is not None:
            self._ahead.release(self.store)
        for update in updates:
            if update.work.staged is not None:
                self.store.release(update.work)

    def _update(self, update: StepUpdate, probe: bool, sound: Tensor | None) -> None:
        work = update.work
        with self.times("update"):
            self.store.take(work)
            frozen_U = None if self.policy.exact or probe else self._frozen(work)
            what = update.gradients, update.position_B, frozen_U, update.lr, update.number
            rows = RowUpdate(*what, measure=probe, sound=sound)
            self.store.apply(work, rows)

    def _check(self, updates: Sequence[StepUpdate]) -> Tensor | None:
        """Check a step's gradients before any update; several ranks check what they send. On a device the result is not waited
        for: returns whether rows may be updated."""
        if self._late_sums is not None:
            return self._late_sums.sound(updates, self.step_number + 1)
        if self.rows.group.is_alone:
            check_sums(updates, self.space, self.step_number + 1)
        return None

    def _frozen(self, work: ClassifiedBatch) -> NDArray[np.bool_] | None:
        """Return which rows' updates the policy skips."""
        stale_U = self.observer.stale.of(work)
        view = BatchView(self.step_number, False, self.knobs, work, stale_U, self.state.random("plan"))
        plan = plan_step(self.policy, view)
        if plan.weight_B is not None or sum(map(len, plan.micro_batches)) != work.batch.size:
            raise TrainingError(f"policy {self.knobs.policy} must not skip or weight samples in a user's loop, it did")
        return plan.frozen_U

    def release_ahead(self) -> None:
        """Drop the batch that was looked up ahead: the loop has finished its item, or rows are about to be replaced."""
        if self._ahead is not None:
            self._ahead.release(self.store)
            self._ahead = None

    def _how_it_stops(self) -> str:
        if self._looking_ahead:
            return "prefetch ends after this step; the loop saves by itself"
        if self._stop_is_read:
            return "the loop reads stop_requested and ends by itself"
        raise ConflictError(
            "a loop of the user's own must use runtime.prefetch or read runtime.stop_requested to be stopped from outside, "
            "this one does neither"
        )

    # For the session -------------------------------------------------------------------------------------------------

    def losses(self) -> Fetched:
        return Fetched(np.array(np.nan)) if self._loss is None else self.store.hot.fetch_later(self._loss_sum)

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        check_loop_change(before, after, self.state.input.keys is not None, self.rows.group, self.rates, self.store)
        super().check_knobs(before, after)
