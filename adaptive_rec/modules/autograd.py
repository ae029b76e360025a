"""A session whose steps are backward passes: rows are looked up under autograd, and updated once when a pass is over."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.errors import ConflictError, TrainingError
from adaptive_rec.kernels import lookups as kernels
from adaptive_rec.knobs import Knobs
from adaptive_rec.known_policies import load_policy
from adaptive_rec.modules.bags import NOBODY, BagBatch, Bags, Key
from adaptive_rec.modules.gradients import Gradient, Lookup, Passes, PooledRows
from adaptive_rec.modules.lookahead import Ahead
from adaptive_rec.modules.options import Setup, check_policy_fits
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.reading import gather
from adaptive_rec.policy import BatchView
from adaptive_rec.session import Report, Session


class AutogradSession(Session):
    """A forward call looks rows up in whatever tier they are (`pooled`). The end of a backward pass is a step (`_step`): each
    distinct row is updated once and what was looked up is remembered; between two steps rows move and commands are obeyed
    (`session.py`)."""

    ends_on_bad_loss = False

    def __init__(self, tables: Sequence[TableSpec], setup: Setup, rates: Rates, dtype: torch.dtype) -> None:
        config, policy, store = setup.build(tuple(tables), rates.rule, dtype)
        super().__init__(config, policy, store)
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
        self._expected_steps = 0
        self._loss: Tensor | None = None
        self._loss_sum = torch.full((), torch.nan, dtype=torch.float64, device=self.device)

    @abstractmethod
    def tell(self, report: Report) -> None:
        """Write it down and hand it on, where anybody wants to know."""

    # Forward ---------------------------------------------------------------------------------------------------------

    def pooled(self, key: Key | None, make: Callable[[], list[Bags]]) -> list[Tensor]:
        """Pooled vectors (L, D) of a forward call's bags. `make` makes them where none were made ready under `key`."""
        if not self.begun:
            self.go_on()
        lookups = self._ahead.lookups(key) if self._ahead is not None and key is not None else []
        if not lookups:
            with self.times("classify"):
                lookups = [Lookup(bags) for bags in make()]
        return [PooledRows.apply(self._anchor, one, self._gather, self._passes) for one in lookups]

    def go_on(self) -> None:
        """Begin, or go on from a state that was loaded."""
        if not self.begun:
            self.begin()
        self.enter("training")

    def _gather(self, lookup: Lookup) -> Tensor:
        with self.times("gather"):
            return gather(self.store, lookup)

    # The step --------------------------------------------------------------------------------------------------------

    def _step(self, found: list[Gradient]) -> None:
        """A backward pass is over: update each distinct row once, remember what was looked up, and come to the boundary."""
        if self.closed:
            raise ConflictError("the runtime was closed, so rows are no longer updated")
        probe = not self.policy.exact and bool(self.random("probe").random() < self.knobs.probe_ratio)
        self.steps_T[sorted({table for lookup, _ in found for table in lookup.bags.tables})] += 1
        with self.times("classify"):
            updates = [(number, *self._together(part)) for number, part in self._by_count(found).items()]
        self._check([gradient for _, _, gradients, _ in updates for gradient in gradients])
        for update in updates:
            self._update(*update, probe=probe)
        self.step_number += 1
        self._count(found)
        for report in self.boundary():
            self.tell(report)

    def _by_count(self, found: list[Gradient]) -> dict[int, list[Gradient]]:
        """Lookups by how often their tables have been updated: Adam's bias correction goes by that, as in torch."""
        parts: dict[int, list[Gradient]] = defaultdict(list)
        adam = self.rates.rule.embedding == "lazy_adam"
        for lookup, gradient in found:
            number = int(self.steps_T[list(lookup.bags.tables)].max()) if adam else self.step_number + 1
            parts[number].append((lookup, gradient))
        return parts

    def _update(
        self, number: int, work: ClassifiedBatch, gradients: list[Tensor], position_B: NDArray[np.int64], probe: bool
    ) -> None:
        with self.times("update"):
            self.store.take(work)
            frozen_U = None if self.policy.exact or probe else self._frozen(work)
            self.store.apply(work, RowUpdate(gradients, position_B, frozen_U, self.rates.lr, number, measure=probe))
        with self.times("observe"):
            self._observe(work, probe)

    def _together(self, found: list[Gradient]) -> tuple[ClassifiedBatch, list[Tensor], NDArray[np.int64]]:
        """All bags of a pass as one batch, their gradients for each pool (L, 1, D), and each bag's line in these."""
        ahead = found[0][0].ready
        if ahead is not None and all(lookup.ready is ahead for lookup, _ in found):
            work, firsts = ahead.take(self.store), [lookup.first for lookup, _ in found]
            ahead.over = True
            self._steps_ahead += len(found) == len(ahead.batch.parts)
        else:
            found.sort(key=lambda one: one[0].bags.pool)
            for lookup, _ in found:
                self._give_up(lookup.ready)
            batch = BagBatch.of(self.store.space, [(NOBODY, lookup.bags) for lookup, _ in found])
            work, firsts = ClassifiedBatch(batch, self.store.space, self.store.threads), [f for _, _, f in batch.parts]
        position_B = np.full(work.batch.size, -1, dtype=np.int64)
        gradients: list[list[Tensor]] = [[] for _ in self.store.space.pools]
        lines = [0] * len(gradients)
        for (lookup, gradient_LD), first in sorted(zip(found, firsts, strict=True), key=lambda pair: pair[1]):
            bags = lookup.bags
            if bags.divisor_L1 is not None:
                gradient_LD = gradient_LD / bags.divisor_L1.to(gradient_LD.device)
            gradients[bags.pool].append(gradient_LD)
            position_B[first : first + len(bags)] = np.arange(lines[bags.pool], lines[bags.pool] + len(bags))
            lines[bags.pool] += len(bags)
        return work, [self._joined(pool, parts) for pool, parts in enumerate(gradients)], position_B

    def _joined(self, pool: int, parts: list[Tensor]) -> Tensor:
        nothing = (0, self.store.space.pools[pool].dim)
        whole = torch.cat(parts) if parts else torch.empty(nothing, dtype=self.dtype, device=self.device)
        return whole.contiguous().unsqueeze(1)

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
        view = BatchView(self.step_number, False, self.knobs, work, stale_U, self.random("plan"))
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

    def _count(self, found: list[Gradient]) -> None:
        samples, counters = max(lookup.bags.samples for lookup, _ in found), self.tally.counters
        counters.steps += 1
        counters.samples_seen += samples
        counters.samples_trained += samples
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

    @property
    def steps_total(self) -> int:
        return max(self.step_number, self._expected_steps)

    def losses(self) -> Fetched:
        return self.store.fetch_later(self._loss_sum)

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        super().check_knobs(before, after)
        check_policy_fits(load_policy(after.policy), after.action)
