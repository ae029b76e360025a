"""The runtime of a training loop of the user's own: look-ahead, figures, state, service, around the steps of `autograd.py`."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConflictError, UsageError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.telemetry import Event, Snapshot, ratio
from adaptive_rec.modules.autograd import AutogradSession
from adaptive_rec.modules.bags import BagBatch, Bags, Key
from adaptive_rec.modules.lookahead import Ahead, Sparse
from adaptive_rec.modules.options import Setup
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.serving import LOG, LoopDirectory, LoopService
from adaptive_rec.modules.state_dict import set_state, state_of
from adaptive_rec.modules.stats import RuntimeStats, stats_of
from adaptive_rec.run.directory import new_directory
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.session import Report
from adaptive_rec.tracker.feed import Trackers
from adaptive_rec.tracker.values import Figures


class Reads(Protocol):
    """A module that looks rows up: what `prefetch` asks it about inputs to come."""

    def parts(self, given: Any) -> Iterable[tuple[Key, Bags]]:
        """The bags of an input, each with the key that a forward call with it will have."""
        ...


class EmbeddingRuntime(AutogradSession):
    """Tables in two tiers for modules under autograd: what `wrap` returns, and ``runtime`` of the modules that make their own."""

    def __init__(self, tables: Sequence[TableSpec], setup: Setup, rates: Rates, dtype: torch.dtype) -> None:
        super().__init__(tables, setup, rates, dtype)
        self.readers: dict[str, Reads] = {}
        """The modules that look rows up, by the names that `prefetch` knows them by."""
        self._looking_ahead = False
        """Whether a loop over `prefetch` is under way."""
        self._record: LoopDirectory | None = None
        self._served: LoopService | None = None
        self._trackers: Trackers | None = None
        self._figures = Figures([table.name for table in tables])

    # Ahead of the loop -----------------------------------------------------------------------------------------------

    def prefetch(self, loader: Iterable[Any], sparse: Sparse, depth: int | None = None) -> Iterator[Any]:
        """Iterate over a loader; what the next items look up is made ready meanwhile, `depth` (knob prefetch_depth) items ahead.

        ``sparse(item)`` says what the step with an item will look up: for wrapped bags a mapping from a module's name to its
        input, ``(input, offsets)`` or a list of such where it is called several times; for a collection its KeyedJaggedTensor.
        Forward calls are recognised by the memory of these tensors, so the model has to be given the very same. A call that was
        not announced is looked up when it comes: results are the same. Items come in their order; those read ahead of a loop
        that is left early are lost to it. One loop looks ahead at a time: another one within it yields its items and no more.
        """
        if self._looking_ahead:  # a loop within a loop, say over held-out batches
            LOG.info(
                "a loop is looking ahead already: this one does not, its rows are looked up when they are asked for"
            )
            yield from loader
            return
        if isinstance(loader, Sized):
            self.state.expect_steps(self.step_number + len(loader))
        reads_ahead = self.policy.prefetches
        pipeline = Pipeline(
            ((item,) for item in loader),  # an item may be None
            self.store,
            lambda: (self.knobs.prefetch_depth if depth is None else depth) if reads_ahead else 0,
            self.times,
            self.config.run.thread_budget(self.store.stages_ahead).classify,
            lambda given: BagBatch.of(self.store.space, self._parts(sparse(given[0])), given[0]),
        )
        self._looking_ahead = True
        try:
            for work in pipeline:
                self._ahead = Ahead(work)
                assert isinstance(work.batch, BagBatch)
                yield work.batch.item
                self.give_up_ahead()
                if self.state.stop_requested:
                    return
        finally:
            self._looking_ahead = False
            self.give_up_ahead()
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
                try:
                    parts += self.readers[name].parts(one)
                except ValueError as error:
                    raise ValueError(f"what sparse gives for {name} cannot be looked up: {error}") from error
        return parts

    # For the user ----------------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """Learning rate of the rows, as it is now."""
        return self.rates.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.rates.lr = value

    def set_knobs(self, **changes: Any) -> None:
        """Change knobs between two steps. Raises ConfigError for a wrong name or value, and changes nothing then."""
        self.mailbox.change_knobs(**changes)

    def record_loss(self, loss: Tensor | float) -> None:
        """Tell the mean loss of the step under way, for the dashboard, metrics and trackers. Optional. Told before ``backward``
        it counts for its step, behind it for the next one; a step for which none is told counts with the last."""
        given = torch.as_tensor(loss).detach()
        if given.numel() != 1:
            raise UsageError(
                f"loss must be one number, the mean over the step's samples, got shape {tuple(given.shape)}"
            )
        known, self._loss = self._loss is not None, given.reshape(()).to(self._loss_sum)
        if not known:
            self._loss_sum += self._loss * self._samples  # of the step before, if it is told behind it

    def table(self, number: int) -> Tensor:
        """A copy of a table's rows (rows, dim), in host memory."""
        return torch.from_numpy(self.store.export_table(number)[0])

    def set_table(self, number: int, rows: Tensor) -> None:
        """Set all rows of a table, wherever they are; their optimizer state stays."""
        self.give_up_ahead()
        self.store.replace_table(number, rows.detach().cpu().to(self.dtype).numpy(), None)

    def take_state(self, number: int, parts: Sequence[Tensor], step: int) -> None:
        """Take over the optimizer state of a table's rows, in the parts that torch keeps it in, and its steps so far."""
        state_RK = torch.cat([part.detach().cpu().to(self.dtype) for part in parts], dim=1).numpy()
        self.store.replace_table(number, None, state_RK)
        self.steps_T[number] = step

    def host_rows(self, number: int) -> Tensor:
        """A table's rows before the first step, when all of them are in host memory, to be set in place."""
        assert not self.state.rows_placed, "rows are set in place before the first step only"
        pool, low, high = self.store.space.table_range(number)
        return torch.from_numpy(self.store.host.weights[pool][low:high])

    def stats(self) -> RuntimeStats:
        """What has been done so far."""
        return stats_of(self, ratio(self._steps_ahead, self.step_number))

    def state_dict(self) -> dict[str, Any]:
        """Optimizer state of all rows, which of them are hot, and what has been seen, for ``torch.save`` beside the model's."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` said, with the same tables and rule; the model's state dict has the rows. Knobs, rates and
        budget are as this runtime was made with. Raises CheckpointError where it does not fit."""
        set_state(self, state)

    def rule_width(self, number: int) -> int:
        """Numbers of optimizer state of a row of a table."""
        return self.store.rule.state_width(self.store.space.tables[number].dim)

    # Seen and steered ------------------------------------------------------------------------------------------------

    def serve(self, out: str | Path | None = None, **where: Any) -> str:
        """Serve this loop from now on, as ``adaptive-rec train`` serves a run: dashboard, HTTP API, metrics for Prometheus,
        and the commands of the shell. Returns the address; ``adaptive-rec dashboard`` prints a link that signs you in.

        `out` is the run's directory (runs/TIME-POLICY); `where` may be ``host``, ``port``, ``allow_hosts``, ``token_file``.
        Raises UsageError.
        """
        self._check_open("served")
        if self._served is not None:
            raise ConflictError(f"the loop must not be served already, it is at {self._served.url}")
        options = ServeOptions(**where)
        if not self.state.rows_placed:
            self.begin()
        record = LoopDirectory(self, Path(out) if out is not None else new_directory(self.knobs.policy))
        try:
            self._served = LoopService(record, options)
        except BaseException:
            record.close()
            raise
        self._record = record
        self.publisher.enter("training")
        atexit.register(self.close)
        return self._served.url

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ConflictError(f"the runtime was closed, so it cannot be {what} any more")

    @property
    def dashboard_url(self) -> str:
        """The link that signs in to a served loop; whoever has it can steer. Empty where it is not served."""
        return self._served.dashboard_url if self._served is not None else ""

    def track(self, name: str, folder: str | Path) -> None:
        """Hand figures on to a tracker ("tensorboard", or package.module:Class), which may keep files in a folder."""
        self._check_open("tracked")
        self._trackers = self._trackers or Trackers([], Path(folder))
        self._trackers.add(name, Path(folder), self.step_number)

    def tell(self, report: Report) -> None:
        """Write it down and hand it on, where anybody wants to know."""
        if self._record is not None:
            self._record.append(report)
        if isinstance(report, Event) and report.kind == "warning":
            LOG.warning(report.text)
        if self._trackers is not None:
            if isinstance(report, Snapshot):
                self._trackers.log(report.step, self._figures.of_snapshot(report))
            elif isinstance(report, Event):
                self._trackers.event(report.step, report.kind, report.text)
            for text in self._trackers.complaints():
                self.state.warn(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the service, trackers and threads; rows can still be read and saved. May be called again, and is at the end of
        ``with adaptive_rec.wrap(...) as runtime:``."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        self.give_up_ahead()
        if self.state.rows_placed:
            for report in self.last_report():
                self.tell(report)
        self.mailbox.close("the loop has ended")
        self.publisher.enter("finished")
        if self._trackers is not None:
            self._trackers.close()
            for text in self._trackers.complaints():
                LOG.warning(text)
        if self._record is not None:
            self._record.close()
        if self._served is not None:
            self._served.close()
        self.observer.close()
        self.store.close()
