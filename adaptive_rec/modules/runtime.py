"""The runtime of a training loop of the user's own: tables in two tiers, read and updated under autograd.

A forward call looks rows up in whatever tier they are (`pooled`). The end of a backward pass is a step (`_step`): each distinct
row is updated once and what was looked up is remembered; between two steps rows move and commands are obeyed (`session.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import all_rows_bytes
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.errors import ConflictError, TrainingError
from adaptive_rec.kernels import lookups as kernels
from adaptive_rec.knobs import Knobs
from adaptive_rec.known_policies import load_policy
from adaptive_rec.modules.bags import NOBODY, BagBatch, Bags, Key
from adaptive_rec.modules.gradients import Gradient, Lookup, Passes, PooledRows
from adaptive_rec.modules.lookahead import Ahead, Sparse, bag_batches
from adaptive_rec.modules.options import Setup, check_policy_fits
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.reading import gather
from adaptive_rec.modules.stats import RuntimeStats, TableStats
from adaptive_rec.pipeline import Pipeline
from adaptive_rec.policy import BatchView
from adaptive_rec.session import Report, Session
from adaptive_rec.telemetry import ratio


class Reads(Protocol):
    """A module that looks rows up: what `prefetch` asks it about inputs to come."""

    def parts(self, given: Any) -> Iterable[tuple[Key, Bags]]:
        """The bags of an input, each with the key that a forward call with it will have."""
        ...


class EmbeddingRuntime(Session):
    """Tables in two tiers for modules under autograd: what `wrap` returns, and ``runtime`` of the modules that make their own."""

    ends_on_bad_loss = False

    def __init__(self, tables: Sequence[TableSpec], setup: Setup, rates: Rates, dtype: torch.dtype) -> None:
        config, policy, store = setup.build(tuple(tables), rates.rule, dtype)
        super().__init__(config, policy, store)
        self.dtype = dtype
        self.rates = rates
        self.readers: dict[str, Reads] = {}
        """The modules that look rows up, by the names that `prefetch` knows them by."""
        self._table_order = np.argsort(store.space.table_first_row, kind="stable")
        self._first_row_T = store.space.table_first_row[self._table_order]
        self.steps_T = np.zeros(len(tables), dtype=np.int64)
        """Steps in which each table was looked up."""
        self._passes = Passes(self._step)
        self._ahead: Ahead | None = None
        self._steps_ahead = 0
        self._expected_steps = 0
        self._loss = float("nan")
        self._loss_sum = float("nan")
        self._anchor = torch.zeros((), requires_grad=True)

    # Forward ---------------------------------------------------------------------------------------------------------

    def pooled(self, key: Key | None, make: Callable[[], list[Bags]]) -> list[Tensor]:
        """Pooled vectors (L, D) of a forward call's bags. `make` makes them where none were made ready under `key`."""
        if not self.begun:
            self.begin()
            self.enter("training")
        lookups = self._ahead.lookups(key) if self._ahead is not None and key is not None else []
        if not lookups:
            with self.times("classify"):
                lookups = [Lookup(bags) for bags in make()]
        return [PooledRows.apply(self._anchor, one, self._gather, self._passes) for one in lookups]

    def _gather(self, lookup: Lookup) -> Tensor:
        with self.times("gather"):
            return gather(self.store, lookup)

    # The step --------------------------------------------------------------------------------------------------------

    def _step(self, found: list[Gradient]) -> None:
        """A backward pass is over: update each distinct row once, remember what was looked up, and come to the boundary."""
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
        if not np.isnan(self._loss):
            self._loss_sum = (0.0 if np.isnan(self._loss_sum) else self._loss_sum) + self._loss * samples

    # Ahead of the loop -----------------------------------------------------------------------------------------------

    def prefetch(self, loader: Iterable[Any], sparse: Sparse, depth: int | None = None) -> Iterator[Any]:
        """Iterate over a loader; what the next items look up is made ready meanwhile, `depth` (knob prefetch_depth) items ahead.

        ``sparse(item)`` says what the step with an item will look up: for wrapped bags a mapping from a module's name to its
        input, ``(input, offsets)`` or a list of such where it is called several times; for a collection its KeyedJaggedTensor.
        Forward calls are recognised by the memory of these tensors, so the model has to be given the very same. A call that was
        not announced is looked up when it comes: results are the same. Items come in their order; those read ahead of a loop
        that is left early are lost to it.
        """
        if isinstance(loader, Sized):
            self._expected_steps = self.step_number + len(loader)
        reads_ahead = self.policy.prefetches
        pipeline = Pipeline(
            bag_batches(loader, lambda item: self._parts(sparse(item)), self.store.space),
            self.store,
            lambda: (self.knobs.prefetch_depth if depth is None else depth) if reads_ahead else 0,
            self.times,
            self.config.run.thread_budget(self.store.stages_ahead).classify,
        )
        try:
            for work in pipeline:
                self._ahead = Ahead(work)
                assert isinstance(work.batch, BagBatch)
                yield work.batch.item
                self._end_ahead()
                if self.stop_requested:
                    return
        finally:
            self._end_ahead()
            pipeline.close()

    def _parts(self, given: Any) -> list[tuple[Key, Bags]]:
        """What an item's step looks up, by the modules that will."""
        if not isinstance(given, Mapping):
            if len(self.readers) != 1:
                raise ConflictError(
                    f"sparse must give a mapping from modules' names to inputs, as there are {len(self.readers)} of them, "
                    f"got {type(given).__name__}"
                )
            given = {next(iter(self.readers)): given}
        parts: list[tuple[Key, Bags]] = []
        for name, inputs in given.items():
            if name not in self.readers:
                raise ConflictError(
                    f"sparse must name modules of this runtime ({', '.join(self.readers)}), got {name!r}"
                )
            for one in inputs if isinstance(inputs, list) else [inputs]:
                parts += self.readers[name].parts(one)
        return parts

    def _end_ahead(self) -> None:
        """The loop is done with an item."""
        self._give_up(self._ahead)
        self._ahead = None

    def _give_up(self, ahead: Ahead | None) -> None:
        if ahead is not None and not ahead.over:
            ahead.over = True
            self.store.release(ahead.work)

    # For the user ----------------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """Learning rate of the rows, as it is now."""
        return self.rates.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.rates.group["lr"] = value

    def set_knobs(self, **changes: Any) -> None:
        """Change knobs between two steps. Raises ConfigError for a wrong name or value, and changes nothing then."""
        self.mailbox.change_knobs(**changes)

    def record_loss(self, loss: Tensor | float) -> None:
        """Tell the mean loss of the step under way, for the dashboard, metrics and trackers. Optional."""
        self._loss = float(loss)

    def table(self, number: int) -> Tensor:
        """A copy of a table's rows (rows, dim), in host memory."""
        return torch.from_numpy(self.store.export_table(number)[0])

    def set_table(self, number: int, rows: Tensor) -> None:
        """Set all rows of a table, wherever they are; their optimizer state stays."""
        self.store.replace_table(number, rows.detach().cpu().to(self.dtype).numpy(), None)

    def take_state(self, number: int, parts: Sequence[Tensor], step: int) -> None:
        """Take over the optimizer state of a table's rows, in the parts that torch keeps it in, and its steps so far."""
        state_RK = torch.cat([part.detach().cpu().to(self.dtype) for part in parts], dim=1).numpy()
        self.store.replace_table(number, None, state_RK)
        self.steps_T[number] = step

    def host_rows(self, number: int) -> Tensor:
        """A table's rows before the first step, when all of them are in host memory, to be set in place."""
        assert not self.begun, "rows are set in place before the first step only"
        pool, low, high = self.store.space.table_range(number)
        return torch.from_numpy(self.store.host.weights[pool][low:high])

    def stats(self) -> RuntimeStats:
        """What has been done so far."""
        store, space, tally = self.store, self.store.space, self.tally
        budget = self.policy.budget_bytes(self.knobs, all_rows_bytes(space, store.row_bytes))
        tables = {
            table.name: TableStats(table.rows, table.dim, hot_rows, lookups, ratio(hot, lookups))
            for table, hot_rows, lookups, hot in zip(
                space.tables,
                store.hot_rows_T.tolist(),
                tally.lookups_T.tolist(),
                tally.hot_lookups_T.tolist(),
                strict=True,
            )
        }
        return RuntimeStats(
            steps=self.step_number,
            policy=self.knobs.policy,
            lookups=tally.counters.lookups,
            hot_lookup_ratio=ratio(tally.counters.lookups_hot, tally.counters.lookups),
            hot_rows=store.device.hot_rows,
            stale_rows=store.device.stale_rows,
            total_rows=space.rows,
            device_bytes=store.device_bytes,
            budget_bytes=budget,
            migrated_rows=store.traffic.migrated_rows,
            row_updates=store.traffic.row_updates,
            row_updates_skipped=store.traffic.row_updates_skipped,
            looked_up_ahead_ratio=ratio(self._steps_ahead, self.step_number),
            seconds_by_stage={name: round(seconds, 4) for name, seconds in self.times.seconds.items()},
            tables=tables,
        )

    # What a session asks ---------------------------------------------------------------------------------------------

    @property
    def steps_total(self) -> int:
        return max(self.step_number, self._expected_steps)

    def losses(self) -> Fetched:
        return Fetched(np.array(self._loss_sum))

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        super().check_knobs(before, after)
        check_policy_fits(load_policy(after.policy), after.action)

    def tell(self, report: Report) -> None:
        """Somebody may want to know."""
