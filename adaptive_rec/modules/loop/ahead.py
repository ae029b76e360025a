"""Look-ahead in a user's loop: the rows of a loader's next items are looked up while the present one is trained."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext
from typing import Any, Protocol

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.run import RunConfig
from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.loop.bags import BagBatch, Bags, CallKey
from adaptive_rec.modules.loop.ids import LoopIds
from adaptive_rec.modules.loop.lookahead import Sparse
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers
from adaptive_rec.modules.loop.watch import LOG
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.publish import Publisher

_THREAD = threading.local()


def _is_read_ahead() -> bool:
    """Return whether this thread reads items ahead for a loop over `prefetch`."""
    return getattr(_THREAD, "reads_ahead", False)


class LookupModule(Protocol):
    """A module that looks rows up."""

    def parts(self, given: Any) -> Iterable[tuple[CallKey, Bags]]:
        """Yield the bags of an input, each with the key that a forward call with this input will have."""
        ...


class LoopAhead:
    """Reads ahead for a loop over `prefetch`."""

    def __init__(self, tables: TablesInTiers, raw_ids: LoopIds | None, publisher: Publisher, run: RunConfig) -> None:
        """`raw_ids`: those of all tables; None where ids are rows."""
        self._tables, self._state, self._store = tables, tables.state, tables.store
        self._raw_ids, self._publisher, self._run = raw_ids, publisher, run
        self._modules: dict[str, LookupModule] = {}
        """Modules that look rows up, by their names for `prefetch`."""
        self._loop_thread: threading.Thread | None = None
        """The thread of the loop over `prefetch`."""
        self.runs = False
        """Whether a loop over `prefetch` is under way."""

    def register(self, name: str, module: LookupModule) -> None:
        """Make a module known to `prefetch`."""
        self._modules[name] = module

    def over(self, loader: Iterable[Any], sparse: Sparse, depth: int | None) -> Iterator[Any]:
        """Iterate over a loader; see `EmbeddingRuntime.prefetch`."""
        self._tables.life.check()
        if self.runs:  # a loop within a loop, say over held-out batches
            LOG.info("another loop is looking ahead: rows of this one are looked up in its forward calls")
            yield from loader
            return
        self._check_not_read_ahead()
        self._loop_thread = threading.current_thread()
        if not self._tables.rows.group.is_alone:
            items = self._at_once(loader, sparse)
        else:
            items = self._read_ahead(loader, sparse, depth)
        with nullcontext() if self._raw_ids is None else self._raw_ids.looking_ahead(self._trains()):
            yield from items

    def _check_not_read_ahead(self) -> None:
        """Raise ConflictError where another loop over `prefetch` reads this one ahead: raw ids would be settled before their
        steps, which would count them again."""
        if self._raw_ids is not None and _is_read_ahead():
            raise ConflictError(
                "a loop over prefetch with raw ids must not be read ahead by another one: have all tables in one runtime (wrap, "
                "or a collection), or give the outer loop depth=0"
            )

    def _read_ahead(self, loader: Iterable[Any], sparse: Sparse, depth: int | None) -> Iterator[Any]:
        one_step = len(self._tables.rates.distinct) == 1  # otherwise each optimizer makes steps of its own
        end = self._state.step + len(loader) if isinstance(loader, Sized) and one_step else None
        self._expect_end(end)
        reads_ahead = self._state.policy.prefetches
        pipeline = Pipeline(
            self._announced_items(loader, sparse),
            self._store,
            lambda: (self._state.knobs.prefetch_depth if depth is None else depth) if reads_ahead else 0,
            self._state.times,
            self._run.thread_budget(self._store.path.stages_ahead).classify,
            lambda given: self._batch_of(given[0], given[1], sparse),
        )
        self.runs = True
        try:
            for work in pipeline:
                self._check_not_read_ahead()
                if self._state.stop_requested:
                    return
                if end is not None and self._state.step >= end:
                    self._expect_end(None)  # the loader is longer than it said
                self._tables.ahead.begin(work)
                assert isinstance(work.batch, BagBatch)
                if self._raw_ids is not None:
                    self._raw_ids.begin_item()
                yield work.batch.item
                self._tables.ahead.drop()
        finally:
            self.runs = False
            self._expect_end(None)
            self._tables.ahead.drop()
            pipeline.close()

    def _announced_items(
        self, loader: Iterable[Any], sparse: Sparse
    ) -> Iterator[tuple[Any, list[tuple[CallKey, Bags]] | None]]:
        """Yield the items of a loader. Raw ids are taken in this order, so the bags that an item's step will look up come with
        it; otherwise any thread may make them."""
        items, end = iter(loader), object()
        while (item := self._next_of(items, end)) is not end:
            if self._raw_ids is None:
                yield item, None
                continue
            with self._raw_ids.reading_item():
                bags = self._announced(sparse(item))
            yield item, bags

    def _next_of(self, items: Iterator[Any], end: object) -> Any:
        """Return the next item, or `end`. Meanwhile other loops over `prefetch` know whether they are read ahead."""
        before, _THREAD.reads_ahead = _is_read_ahead(), threading.current_thread() is not self._loop_thread
        try:
            return next(items, end)
        finally:
            _THREAD.reads_ahead = before

    def _batch_of(self, item: Any, bags: list[tuple[CallKey, Bags]] | None, sparse: Sparse) -> BagBatch:
        return BagBatch.of(self._store.space, self._announced(sparse(item)) if bags is None else bags, item)

    def _trains(self) -> bool:
        """Whether a module that looks rows up is in training mode."""
        return any(getattr(module, "training", True) for module in self._modules.values())

    def _at_once(self, loader: Iterable[Any], sparse: Sparse) -> Iterator[Any]:
        """Iterate over a loader; the first call of an item looks up the rows of all its calls."""
        self.runs, space = True, self._tables.space
        try:
            for item, bags in self._announced_items(loader, sparse):
                batch = BagBatch.of(space, self._announced(sparse(item)) if bags is None else bags, item)
                if self._raw_ids is not None:
                    self._raw_ids.begin_item()
                self._tables.ahead.begin(ClassifiedBatch(batch, space, self._store.threads))
                yield item
                self._tables.ahead.drop()
        finally:
            self.runs = False
            self._tables.ahead.drop()

    def _expect_end(self, step: int | None) -> None:
        """Show the step at which a loader ends, or that no end is known."""
        self._state.expect_steps(step)
        self._publisher.board()

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
