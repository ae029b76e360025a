"""The runtime of a user's training loop: statistics, state and service around the steps of `autograd.py`."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError, ConflictError, UsageError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.sidecar import Sidecar
from adaptive_rec.live.telemetry import Event, Snapshot, ratio
from adaptive_rec.modules.loop_ahead import LoopAhead
from adaptive_rec.modules.loop_directory import LOG, LoopDirectory
from adaptive_rec.modules.options import Setup
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.state_dict import LoopParts, collect_loop_state, restore_loop_state
from adaptive_rec.modules.stats import RuntimeStats, stats_of
from adaptive_rec.run.new_directory import named_directory, new_directory
from adaptive_rec.runtime.session import Report
from adaptive_rec.tracker.feed import Trackers
from adaptive_rec.tracker.values import SnapshotFigures
from adaptive_rec.units import printable


class EmbeddingRuntime(LoopAhead):
    """Tables in two tiers for modules under autograd. `wrap` returns one; a module that is not wrapped has one as ``runtime``."""

    def __init__(
        self, tables: Sequence[TableSpec], setup: Setup, rates: Rates | Sequence[Rates], dtype: torch.dtype
    ) -> None:
        super().__init__(tables, setup, rates, dtype)
        self._saved_parts = LoopParts(
            self.state, self.rows, self.rates.name, self.steps_T, self.observer, self.reclassifier, self.raw_ids
        )
        self._directory: LoopDirectory | None = None
        self._sidecar: Sidecar | None = None
        self._trackers: Trackers | None = None
        self._figures = SnapshotFigures([table.name for table in tables])

    # For the user ----------------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """Present learning rate of the rows; that of the first optimizer, where they have several."""
        return self.rates.lr

    @lr.setter
    def lr(self, value: float) -> None:
        if len(self.rates.distinct) > 1:
            raise ConfigError(f"lr must be set in the param groups of the tables' optimizers, as there are several, got {value}")
        self.rates.distinct[0].set_lr(value)

    def set_knobs(self, **changes: Any) -> None:
        """Change knobs between two steps. Raises ConfigError, and changes nothing, for a wrong name or value."""
        self.check_process()
        self.mailbox.change_knobs(**changes)

    def record_loss(self, loss: Tensor | float) -> None:
        """Record the mean loss of the present step for the dashboard, metrics and trackers; optional. A loss counts for its step
        when it is recorded before rows are updated, and for the next step after it. A step without a loss counts with the
        last one."""
        given = torch.as_tensor(loss).detach()
        if given.numel() != 1:
            raise UsageError(
                f"loss must be one number, the mean over the step's samples, got shape {tuple(given.shape)}"
            )
        known, self._loss = self._loss is not None, given.reshape(()).to(self._loss_sum)
        if not known:  # the first loss may come after its step
            self._loss_sum += self._loss * self._samples

    def stats(self) -> RuntimeStats:
        """Return figures of everything done so far."""
        return stats_of(self.state, ratio(self._parts.steps_ahead, self.step_number))

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer state of all rows, which rows are hot, and all counts, for ``torch.save`` with the model's state
        dict."""
        self.check_process()
        self.settle_sums()
        self.dense_steps.settle_all()
        return collect_loop_state(self._saved_parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of the same tables and rule; the rows come with the model's state dict. Knobs, rates and
        budget stay those of this runtime. Raises CheckpointError where the state does not fit."""
        self.check_process()
        self.release_ahead()
        restore_loop_state(self._saved_parts, state)
        for number in range(len(self.steps_T)):
            self.dense_steps.begin_anew(number)  # every row was saved at the present step
            if (entry := self.row_state(number)) is not None:
                entry.forget()
        self.show_states()
        if self.state.rows_placed:
            self.begin()

    # Watch and steer -------------------------------------------------------------------------------------------------

    def serve(self, out: str | Path | None = None, **where: Any) -> str:
        """Serve this loop as ``adaptive-rec train`` serves a run: dashboard, HTTP API, Prometheus metrics and shell commands.
        Returns the address; ``adaptive-rec dashboard`` prints a link that signs you in.

        `out` is the run's directory (runs/TIME-POLICY); `where` may be ``host``, ``port``, ``allow_hosts``, ``token_file``.
        Raises UsageError.
        """
        self._check_open("served")
        if not self.rows.group.is_alone:
            raise ConfigError(f"a loop that is served must be of one process, there are {self.rows.group.ranks}")
        if self._sidecar is not None:
            raise ConflictError(f"the loop must not be served already, it is at {self._sidecar.url}")
        options = ServeOptions(**where)
        if not self.state.rows_placed:
            self.begin()
        named = new_directory(named_directory(self.knobs.policy)) if out is None else nullcontext(Path(out))
        with named as place:
            directory = LoopDirectory(self, place)
        try:
            self._sidecar = Sidecar(options, place, self, LOG.warning).__enter__()
        except BaseException:
            directory.close()
            raise
        self._directory = directory
        self.publisher.enter("training")
        atexit.register(self.close)
        return self._sidecar.url

    def _check_open(self, what: str) -> None:
        self.check_process()
        if self.closed:
            raise ConflictError(f"the runtime was closed, so it cannot be {what} any more")

    @property
    def dashboard_url(self) -> str:
        """The link that signs in to the dashboard and permits changes. Empty where the loop is not served."""
        return self._sidecar.dashboard_url if self._sidecar is not None else ""

    def track(self, name: str, folder: str | Path) -> None:
        """Send figures to a tracker ("tensorboard" or package.module:Class), which may write files to a folder."""
        self._check_open("tracked")
        self._trackers = self._trackers or Trackers([], Path(folder))
        self._trackers.add(name, Path(folder), self.step_number)

    def emit(self, report: Report) -> None:
        """Pass a report on to the journal, the log and the trackers."""
        if self._directory is not None:
            self._directory.append(report)
        if isinstance(report, Event) and report.kind == "warning":
            LOG.warning(printable(report.text))
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
        """End the service, trackers and threads; rows can still be read and saved. It may be called again, and a ``with`` block
        of the runtime calls it."""
        if self.closed or self.is_forked:  # the service is that of the process which began it
            return
        self.closed = True
        atexit.unregister(self.close)
        self.release_ahead()
        if self.state.rows_placed:
            for report in self.last_report():
                self.emit(report)
        self.mailbox.close("the loop has ended")
        self.publisher.enter("finished")
        if self._trackers is not None:
            self._trackers.close()
            for text in self._trackers.complaints():
                LOG.warning(printable(text))
        if self._directory is not None:
            self._directory.close()
        if self._sidecar is not None:
            self._sidecar.__exit__()
        self.observer.close()
        self.store.close()
