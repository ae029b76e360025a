"""A session whose steps are backward passes: rows are looked up under autograd, and updated once when a pass is over."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.errors import ConflictError, TrainingError
from adaptive_rec.kernels import lookups as kernels
from adaptive_rec.modules.bags import NOBODY, BagBatch, Bags, Key
from adaptive_rec.modules.gradients import Gradient, Lookup, Passes, PooledRows
from adaptive_rec.modules.lookahead import Ahead
from adaptive_rec.modules.options import Setup, check_policy_fits
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.reading import gather
from adaptive_rec.policy import BatchView
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.session import Report, Session


@dataclass(frozen=True)
class _Update:
    """What a backward pass comes to: all of it, or the part of it whose tables have been updated as often."""

    number: int
    """How often, this update counted."""
    work: ClassifiedBatch
    gradients: list[Tensor]
    """Of pooled vectors (L, 1, D), for each pool."""
    position_B: NDArray[np.int64]
    """Each bag's line in these."""
    bags: list[tuple[int, Bags]]
    """With the number of the first of them in the batch."""


class AutogradSession(Session):
    """A forward call looks rows up in whatever tier they are (`pooled`). The end of a backward pass is a step (`_step`): each
    distinct row is updated once and what was looked up is remembered; between two steps rows move and commands are obeyed
    (`session.py`)."""

    def __init__(self, tables: Sequence[TableSpec], setup: Setup, rates: Rates, dtype: torch.dtype) -> None:
        config, policy, store = setup.build(tuple(tables), rates.rule, dtype)
        super().__init__(config, policy, store, ends_on_bad_loss=False)
        self.control = Control(
            self.state, self.reclassifier, self.splitting, self.mailbox, self.publisher, self.reports
        )
        self.dtype = dtype
        self.rates = rates
        self.closed = False
        self.steps_T = np.zeros(len(tables), dtype=np.int64)
        """Steps in which each table was looked up."""
        self._table_order = np.argsort(store.space.table_first_row, kind="stable")
        self._first_row_T = store.space.table_first_row[self._table_order]
        self._passes = Passes(self._step)
        self._anchor = torch.zeros((), requires_grad=True)
        self._ahead: Ahead | None = None
        self._steps_ahead = 0
        self._loss: Tensor | None = None
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._samples = 0
        """Of the newest step."""

    @abstractmethod
    def tell(self, report: Report) -> None:
        """Write it down and hand it on, where anybody wants to know."""

    # Forward ---------------------------------------------------------------------------------------------------------

    def pooled(self, key: Callable[[], Key] | None, make: Callable[[], list[Bags]]) -> list[Tensor]:
        """Pooled vectors (L, D) of a forward call's bags. `make` makes them where none were made ready under its `key`."""
        if not self.state.rows_placed:
            self.go_on()
        lookups = self._ahead.lookups(key()) if self._ahead is not None and key is not None else []
        if not lookups:
            with self.times("classify"):
                lookups = [Lookup(bags) for bags in make()]
        return [PooledRows.apply(self._anchor, one, self._gather, self._passes) for one in lookups]

    def go_on(self) -> None:
        """Begin, or go on from a state that was loaded."""
        if not self.state.rows_placed:
            self.begin()
        self.publisher.enter("training")

    def _gather(self, lookup: Lookup) -> Tensor:
        with self.times("gather"):
            return gather(self.store, lookup, self.step_number)

    # The step --------------------------------------------------------------------------------------------------------

    def _step(self, found: list[Gradient]) -> None:
        """A backward pass is over: update each distinct row once, remember what was looked up, and come to the boundary."""
        if self.closed:
            raise ConflictError("the runtime was closed, so rows are no longer updated")
        self.rates.check()
        probe = not self.policy.exact and bool(self.state.random("probe").random() < self.knobs.probe_ratio)
        updates: list[_Update] = []
        updating = False
        try:
            with self.times("classify"):
                for number, part in self._by_count(found).items():
                    updates.append(self._together(number, part))
            self._check([gradient for update in updates for gradient in update.gradients])
            updating = True
            for update in updates:
                self._update(update, probe)
        except BaseException:
            self._give_back(updates)
            if updating:
                self.state.warn(
                    f"the update of step {self.step_number + 1} broke off: some of its rows may have had it and others not; "
                    "a state saved before has them as they were"
                )
            raise
        self.steps_T[sorted({table for lookup, _ in found for table in lookup.bags.tables})] += 1
        self.state.step_done()
        self._count(updates)
        for report in self.boundary():
            self.tell(report)

    def _give_back(self, updates: list[_Update]) -> None:
        """A step broke off: what it holds on a device must not be taken for rows as they are."""
        self._give_up(self._ahead)
        for update in updates:
            if update.work.staged is not None:
                self.store.release(update.work)

    def _by_count(self, found: list[Gradient]) -> dict[int, list[Gradient]]:
        """Lookups by how often their tables will have been updated: Adam's bias correction goes by that, as in torch."""
        parts: dict[int, list[Gradient]] = defaultdict(list)
        adam = self.rates.rule.embedding == "lazy_adam"
        for lookup, gradient in found:
            steps = int(self.steps_T[list(lookup.bags.tables)].max()) if adam else self.step_number
            parts[steps + 1].append((lookup, gradient))
        return parts

    def _update(self, update: _Update, probe: bool) -> None:
        work = update.work
        with self.times("update"):
            self.store.take(work)
            frozen_U = None if self.policy.exact or probe else self._frozen(work)
            told = RowUpdate(update.gradients, update.position_B, frozen_U, self.rates.lr, update.number, measure=probe)
            self.store.apply(work, told)
        with self.times("observe"):
            self._observe(work, probe)

    def _together(self, number: int, found: list[Gradient]) -> _Update:
        """All bags of a pass as one batch, with their gradients."""
        ahead = found[0][0].ready
        announced = ahead is not None and all(lookup.ready is ahead for lookup, _ in found)
        if not announced:
            found.sort(key=lambda one: one[0].bags.pool)
            for lookup, _ in found:
                self._give_up(lookup.ready)
            self._give_up(self._ahead)  # what it holds of rows is about to be old
        if ahead is not None and announced:
            work, firsts = ahead.work, [lookup.first for lookup, _ in found]
        else:
            batch = BagBatch.of(self.store.space, [(NOBODY, lookup.bags) for lookup, _ in found])
            work, firsts = ClassifiedBatch(batch, self.store.space, self.store.threads), [f for _, _, f in batch.parts]
        position_B = np.full(work.batch.size, -1, dtype=np.int64)
        gradients: list[list[Tensor]] = [[] for _ in self.store.space.pools]
        lines = [0] * len(gradients)
        placed = sorted(zip(firsts, found, strict=True), key=lambda pair: pair[0])
        for first, (lookup, gradient_LD) in placed:
            bags = lookup.bags
            if bags.divisor_L1 is not None:
                gradient_LD = gradient_LD / bags.divisor_L1.to(gradient_LD.device)
            gradients[bags.pool].append(gradient_LD)
            position_B[first : first + len(bags)] = np.arange(lines[bags.pool], lines[bags.pool] + len(bags))
            lines[bags.pool] += len(bags)
        joined = [self._joined(pool, parts) for pool, parts in enumerate(gradients)]
        if ahead is not None and announced:
            ahead.take(self.store)
            ahead.over = True
            self._steps_ahead += len(found) == len(ahead.batch.parts)
        return _Update(number, work, joined, position_B, [(first, lookup.bags) for first, (lookup, _) in placed])

    def _joined(self, pool: int, parts: list[Tensor]) -> Tensor:
        if not parts:
            return torch.empty((0, 1, self.store.space.pools[pool].dim), dtype=self.dtype, device=self.device)
        whole = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
        return whole.unsqueeze(1)

    def _check(self, gradients: list[Tensor]) -> None:
        """Raise TrainingError where a gradient is no finite number, before anything is updated. A device is not waited for."""
        for part in gradients if self.device.type == "cpu" else ():
            flat = part.view(-1)
            if not torch.dot(flat, flat).isfinite() and not flat.isfinite().all():
                raise TrainingError(
                    f"gradients of embedding rows must be finite numbers, those of step {self.step_number + 1} are not; "
                    "no row was updated"
                )

    def _frozen(self, work: ClassifiedBatch) -> NDArray[np.bool_] | None:
        """Rows whose update the policy skips."""
        stale_U = self.observer.stale_rows(work)
        view = BatchView(self.step_number, False, self.knobs, work, stale_U, self.state.random("plan"))
        plan = self.policy.plan(view)
        if plan.weight_B is not None or sum(map(len, plan.micro_batches)) != work.batch.size:
            raise TrainingError(
                f"policy {self.knobs.policy} must leave all samples in a loop that is not the runtime's own, "
                "it left some out or weighted them"
            )
        return plan.frozen_U

    def _observe(self, work: ClassifiedBatch, probe: bool) -> None:
        if self.policy.tracks_popularity:
            self.observer.count_lookups(self.step_number, work, self.knobs)
        if probe and self.policy.tracks_movement:
            self.observer.keep_popular_samples(work)
        tally = self.tally
        lookups_T, hot_T = np.zeros_like(tally.lookups_T), np.zeros_like(tally.lookups_T)
        kernels.count_by_table(work.distinct_U, work.segments_U1, work.source_U, self._first_row_T, lookups_T, hot_T)
        tally.lookups_T[self._table_order] += lookups_T
        tally.hot_lookups_T[self._table_order] += hot_T
        tally.counters.lookups += int(lookups_T.sum())
        tally.counters.lookups_hot += int(hot_T.sum())

    def _count(self, updates: list[_Update]) -> None:
        """Samples of a step, and those of them all of whose lookups were hot."""
        samples, counters = max(bags.samples for update in updates for _, bags in update.bags), self.tally.counters
        popular_B = np.ones(samples, dtype=np.bool_)
        for update in updates:
            for first, bags in update.bags:
                if bags.samples == samples and samples and len(bags) % samples == 0:
                    hot_L = update.work.popular_B[first : first + len(bags)]
                    popular_B &= hot_L if len(bags) == samples else hot_L.reshape(samples, -1).all(axis=1)
        counters.steps += 1
        counters.samples_seen += samples
        counters.samples_trained += samples
        counters.samples_popular += int(np.count_nonzero(popular_B))
        self._samples = samples
        if self._loss is not None:
            self._loss_sum += self._loss * samples

    # What was made ready -----------------------------------------------------------------------------------------------

    def give_up_ahead(self) -> None:
        """The loop is done with an item."""
        self._give_up(self._ahead)
        self._ahead = None

    def _give_up(self, ahead: Ahead | None) -> None:
        if ahead is not None and not ahead.over:
            ahead.over = True
            self.store.release(ahead.work)

    # What a session asks ---------------------------------------------------------------------------------------------

    def losses(self) -> Fetched:
        return Fetched(np.array(np.nan)) if self._loss is None else self.store.fetch_later(self._loss_sum)

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        super().check_knobs(before, after)
        check_policy_fits(load_policy(after.policy), after.action)
