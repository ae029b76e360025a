"""Look-ahead in a user's loop: the rows of a loader's next items are looked up while the present one is trained."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch

from adaptive_rec.batch import TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.bags import BagBatch, Bags, CallKey
from adaptive_rec.modules.lookahead import AheadBatch, Sparse
from adaptive_rec.modules.loop_directory import LOG
from adaptive_rec.modules.loop_ids import LoopIds
from adaptive_rec.modules.loop_tables import LoopTables
from adaptive_rec.modules.options import Setup
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.shared_evictions import SharedEvictions
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.session import Report

_READ = threading.local()


def _is_read_ahead() -> bool:
    """Return whether this thread reads items ahead for a loop over `prefetch`."""
    return getattr(_READ, "ahead", False)


class LookupModule(Protocol):
    """A module that looks rows up."""

    def parts(self, given: Any) -> Iterable[tuple[CallKey, Bags]]:
        """Yield the bags of an input, each with the key that a forward call with this input will have."""
        ...


class LoopAhead(LoopTables):
    """A session in the user's loop that reads ahead."""

    def __init__(
        self, tables: Sequence[TableSpec], setup: Setup, rates: Rates | Sequence[Rates], dtype: torch.dtype
    ) -> None:
        super().__init__(tables, setup, rates, dtype)
        self._modules: dict[str, LookupModule] = {}
        """Modules that look rows up, by their names for `prefetch`."""
        self._loop_thread: threading.Thread | None = None
        """The thread of the loop over `prefetch`."""
        self.raw_ids: LoopIds | None = None
        """The raw ids of all tables; None where ids are rows."""
        if setup.raw:
            own_rows_T = [table.rows - setup.padded for table in tables]
            shared = setup.shared_rows
            self.raw_ids = LoopIds(
                own_rows_T, shared, self.rows, self.store.seed, self.knobs.admit_after, lambda: self.step_number
            )
            if not self.rows.group.is_alone:
                self.evictions = SharedEvictions(self.state, self.observer, self.rows)
                for number, table in enumerate(tables):  # owners draw rows by their numbers among their own
                    self.rows.draw(number, np.arange(shared), np.arange(shared), table.rows)
                self.rows.finish_draws()
            self.state.input.follow_keys(self.raw_ids)

    def register(self, name: str, module: LookupModule) -> None:
        """Make a module known to `prefetch`."""
        self._modules[name] = module

    @property
    def stop_requested(self) -> bool:
        """Whether somebody has asked the loop to stop, from the dashboard, over HTTP or with ``adaptive-rec stop``. A loop over
        `prefetch` ends by itself; any other loop reads this after each step and ends where it is true."""
        self._stop_is_read = True
        return self.state.stop_requested

    def boundary(self) -> Iterator[Report]:
        if self.raw_ids is not None:
            self.raw_ids.step_made()
        yield from super().boundary()

    @property
    def looks_ahead(self) -> bool:
        """Whether a loop over `prefetch` is under way."""
        return self._looking_ahead

    def prefetch(self, loader: Iterable[Any], sparse: Sparse, depth: int | None = None) -> Iterator[Any]:
        """Iterate over a loader and look up the rows of its next items ahead: `depth` items, by default the knob prefetch_depth.

        ``sparse(item)`` returns the inputs that the step with an item will look up: for wrapped bags a mapping from a module's
        name to its input, to ``(input, offsets)``, or to a list of these where it is called several times; for a collection its
        KeyedJaggedTensor. Forward calls are recognised by the memory of these tensors, so the model must be given the very same
        tensors. A call that was not announced is looked up when it is made; results are the same. Items keep their order; items
        that were read ahead are lost when the loop is left early. The iteration ends after the step in which somebody stops the
        loop from outside. Only one loop looks ahead at a time: a second one within it only yields its items. Where several
        processes train together, the first call of an item looks up the rows of all its calls, and nothing is looked up ahead.
        """
        self.check_process()
        if self._looking_ahead:  # a loop within a loop, say over held-out batches
            LOG.info("another loop is looking ahead: rows of this one are looked up in its forward calls")
            yield from loader
            return
        self._check_not_read_ahead()
        self._loop_thread = threading.current_thread()
        if not self.rows.group.is_alone:
            items = self._at_once(loader, sparse)
        else:
            items = self._read_ahead(loader, sparse, depth)
        with nullcontext() if self.raw_ids is None else self.raw_ids.looking_ahead(self._trains()):
            yield from items

    def _check_not_read_ahead(self) -> None:
        """Raise ConflictError where another loop over `prefetch` reads this one ahead: raw ids would be settled before their
        steps, which would count them again."""
        if self.raw_ids is not None and _is_read_ahead():
            raise ConflictError(
                "a loop over prefetch with raw ids must not be read ahead by another one: have all tables in one runtime (wrap, "
                "or a collection), or give the outer loop depth=0"
            )

    def _read_ahead(self, loader: Iterable[Any], sparse: Sparse, depth: int | None) -> Iterator[Any]:
        one_step = len(self.rates.distinct) == 1  # otherwise each optimizer makes steps of its own
        end = self.step_number + len(loader) if isinstance(loader, Sized) and one_step else None
        self._expect_end(end)
        reads_ahead = self.policy.prefetches
        pipeline = Pipeline(
            self._announced_items(loader, sparse),
            self.store,
            lambda: (self.knobs.prefetch_depth if depth is None else depth) if reads_ahead else 0,
            self.times,
            self.config.run.thread_budget(self.store.path.stages_ahead).classify,
            lambda given: self._batch_of(given[0], given[1], sparse),
        )
        self._looking_ahead = True
        try:
            for work in pipeline:
                self._check_not_read_ahead()
                if self.state.stop_requested:
                    return
                if end is not None and self.step_number >= end:
                    self._expect_end(None)  # the loader is longer than it said
                self._ahead = AheadBatch(work)
                assert isinstance(work.batch, BagBatch)
                if self.raw_ids is not None:
                    self.raw_ids.begin_item()
                yield work.batch.item
                self.release_ahead()
        finally:
            self._looking_ahead = False
            self._expect_end(None)
            self.release_ahead()
            pipeline.close()

    def _announced_items(
        self, loader: Iterable[Any], sparse: Sparse
    ) -> Iterator[tuple[Any, list[tuple[CallKey, Bags]] | None]]:
        """Yield the items of a loader. Raw ids are taken in this order, so the bags that an item's step will look up come with
        it; otherwise any thread may make them."""
        items, end = iter(loader), object()
        while (item := self._next_of(items, end)) is not end:
            if self.raw_ids is None:
                yield item, None
                continue
            with self.raw_ids.reading_item():
                bags = self._announced(sparse(item))
            yield item, bags

    def _next_of(self, items: Iterator[Any], end: object) -> Any:
        """Return the next item, or `end`. Meanwhile other loops over `prefetch` know whether they are read ahead."""
        before, _READ.ahead = _is_read_ahead(), threading.current_thread() is not self._loop_thread
        try:
            return next(items, end)
        finally:
            _READ.ahead = before

    def _batch_of(self, item: Any, bags: list[tuple[CallKey, Bags]] | None, sparse: Sparse) -> BagBatch:
        return BagBatch.of(self.store.space, self._announced(sparse(item)) if bags is None else bags, item)

    def _trains(self) -> bool:
        """Whether a module that looks rows up is in training mode."""
        return any(getattr(module, "training", True) for module in self._modules.values())

    def _at_once(self, loader: Iterable[Any], sparse: Sparse) -> Iterator[Any]:
        """Iterate over a loader; the first call of an item looks up the rows of all its calls."""
        self._looking_ahead = True
        try:
            for item, bags in self._announced_items(loader, sparse):
                batch = BagBatch.of(self.space, self._announced(sparse(item)) if bags is None else bags, item)
                if self.raw_ids is not None:
                    self.raw_ids.begin_item()
                self._ahead = AheadBatch(ClassifiedBatch(batch, self.space, self.store.threads))
                yield item
                self.release_ahead()
        finally:
            self._looking_ahead = False
            self.release_ahead()

    def _expect_end(self, step: int | None) -> None:
        """Show the step at which a loader ends, or that no end is known."""
        self.state.expect_steps(step)
        self.publisher.board()

    def _announced(self, given: Any) -> list[tuple[CallKey, Bags]]:
        """Return the bags that an item's step will look up."""
        if not isinstance(given, Mapping):
            if len(self._modules) != 1:
                raise ConflictError(
                    f"sparse must give a mapping from modules' names to inputs, as there are {len(self._modules)} of them, "
                    f"got {type(given).__name__}"
                )
            given = {next(iter(self._modules)): given}
        parts: list[tuple[CallKey, Bags]] = []
        for name, inputs in given.items():
            if name not in self._modules:
                raise ConflictError(
                    f"sparse must name modules of this runtime ({', '.join(self._modules)}), got {name!r}"
                )
            for one in inputs if isinstance(inputs, list) else [inputs]:
                try:
                    parts += self._modules[name].parts(one)
                except ValueError as error:
                    raise ValueError(f"what sparse gives for {name} cannot be looked up: {error}") from error
        return parts
