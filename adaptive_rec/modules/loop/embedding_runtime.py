"""The runtime of a user's training loop: a session between whose boundaries the loop's own calls make the steps."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.modules.loop import gradient_rules  # noqa: F401 - it registers its rules
from adaptive_rec.modules.loop.ahead import LookupModule, LoopAhead
from adaptive_rec.modules.loop.checks import check_loop_change, check_ranks, check_same
from adaptive_rec.modules.loop.dense_steps import DenseSteps
from adaptive_rec.modules.loop.finite_sums import sum_check
from adaptive_rec.modules.loop.ids import LoopIds
from adaptive_rec.modules.loop.lookahead import Ahead, Sparse
from adaptive_rec.modules.loop.lookups import Passes, Reads, RowLookups
from adaptive_rec.modules.loop.losses import LoopLosses
from adaptive_rec.modules.loop.own_rows import OwnRows
from adaptive_rec.modules.loop.rates import Rates
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.row_states import RowStates
from adaptive_rec.modules.loop.setup import Setup
from adaptive_rec.modules.loop.shared_rows import loop_rows
from adaptive_rec.modules.loop.state_dict import LoopParts, collect_loop_state, restore_loop_state
from adaptive_rec.modules.loop.stats import RuntimeStats, stats_of
from adaptive_rec.modules.loop.steps import LoopSteps
from adaptive_rec.modules.loop.table_rates import TableRates
from adaptive_rec.modules.loop.table_weights import TableWeights
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers
from adaptive_rec.modules.loop.watch import LoopWatch
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.evictions import Evictions
from adaptive_rec.runtime.session import Session


class EmbeddingRuntime(Session):
    """Tables in two tiers for modules under autograd. `wrap` returns one; a module that is not wrapped has one as ``runtime``.

    A forward call reads rows from both tiers (`lookups`). A step of the optimizer that holds the tables' weights, or the end of
    a backward pass where rows are updated there, is a step (`steps`). Between two steps rows move and commands are carried
    out (`Session`)."""

    kept_by = "keep model.state_dict() and runtime.state_dict(), or copy.deepcopy(model), which is an ordinary model"

    def __init__(
        self, tables: Sequence[TableSpec], setup: Setup, rates: Rates | Sequence[Rates], dtype: torch.dtype
    ) -> None:
        """`rates`: those of all tables, or of each. `dtype`: type of the tables."""
        rates_T = TableRates(rates, len(tables))
        check_same(setup.group, tables, rates_T, dtype)
        kinds = rates_T.kinds
        ownership = Ownership(RowSpace.by_pool(tuple(tables), kinds), setup.group.ranks, setup.group.rank, kinds)
        config, policy, store = setup.build(ownership.own, rates_T, dtype)
        super().__init__(config, policy, store, ends_on_bad_loss=False)
        self.control = Control(
            self.state, self.reclassifier, self.splitting, self.mailbox, self.publisher, self.reports,
            how_it_stops=self._how_it_stops,
        )  # fmt: skip
        self.dtype = store.dtype
        """Type that updates and optimizer state are computed in."""
        self._stop_is_read = False
        """Whether the user's loop has read `stop_requested`."""
        steps_T = np.zeros(len(tables), dtype=np.int64)
        dense_steps = DenseSteps(store, rates_T, steps_T, store.dtype)
        rows = loop_rows(setup.group, ownership, store, dense_steps, rates_T.moving is not None)
        self.tables = TablesInTiers(
            self.state, rows, rates_T, steps_T, dense_steps, sum_check(rows, store), Ahead(store), dtype,
            setup.update == "backward",
        )  # fmt: skip
        self.raw_ids: LoopIds | None = self._follow_raw_ids(setup) if setup.raw else None
        """The raw ids of all tables; None where ids are rows."""
        reads, self._losses, self._watch = Reads(), LoopLosses(store), LoopWatch(self, self.tables)
        self.weights = TableWeights(self.tables, reads)
        self.states = RowStates(self.tables, self.weights)
        self.steps = LoopSteps(self.tables, self.observer, reads, self.weights, self._losses, self._end_step)
        self.lookups = RowLookups(self.tables, reads, Passes(self.steps.end_pass), self.start)
        self._ahead = LoopAhead(self.tables, self.raw_ids, self.publisher, config.run)
        self._saved_parts = LoopParts(self.tables, self.observer, self.reclassifier, self.raw_ids)

    def _follow_raw_ids(self, setup: Setup) -> LoopIds:
        """Have raw ids get rows and lose them in this session."""
        rows, tables, shared = self.rows, self.space.tables, setup.shared_rows
        own_rows_T = [table.rows - setup.padded for table in tables]
        raw_ids = LoopIds(own_rows_T, shared, rows, self.store.seed, self.knobs.admit_after, lambda: self.step_number)
        if not rows.group.is_alone:
            self.evictions = Evictions(self.state, self.observer, rows)
            for number, table in enumerate(tables):  # owners draw rows by their numbers among their own
                rows.draw(number, np.arange(shared), np.arange(shared), table.rows)
            rows.finish_draws()
        self.state.input.follow_keys(raw_ids)
        return raw_ids

    # For the user ----------------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """Present learning rate of the rows; that of the first optimizer, where they have several."""
        return self.tables.rates.lr

    @lr.setter
    def lr(self, value: float) -> None:
        distinct = self.tables.rates.distinct
        if len(distinct) > 1:
            raise ConfigError(f"lr must be set in the param groups of the tables' optimizers, as there are several, got {value}")
        distinct[0].set_lr(value)

    def set_knobs(self, **changes: Any) -> None:
        """Change knobs between two steps. Raises ConfigError, and changes nothing, for a wrong name or value."""
        self.tables.life.check()
        self.mailbox.change_knobs(**changes)

    def record_loss(self, loss: Tensor | float) -> None:
        """Record the mean loss of the present step for the dashboard, metrics and trackers; optional. A loss counts for its step
        when it is recorded before rows are updated, and for the next step after it. A step without a loss counts with the
        last one."""
        self._losses.record(loss)

    def stats(self) -> RuntimeStats:
        """Return figures of everything done so far."""
        return stats_of(self.state, ratio(self.steps.parts.steps_ahead, self.step_number))

    def gradients(self) -> dict[str, RowGradient]:
        """Return the gradients that wait for the optimizer's step, by the names of their tables."""
        return self.weights.gradients()

    def table(self, number: int) -> Tensor:
        """Return a copy of a table's rows (rows, dim), in host memory."""
        return self.weights.table(number)

    def set_table(self, number: int, rows: Tensor) -> None:
        """Set all rows of a table, in both tiers; their optimizer state stays."""
        self.weights.set_table(number, rows)

    def export_tables(
        self, out: str | Path, form: str = "safetensors", part_size: int | str | None = None
    ) -> list[Path]:
        """Write all tables to a new folder for other programs, part by part: no table is held in memory, and no row moves.

        `form`: "safetensors", where `part_size` ("2GiB") limits the rows of a file and larger tables get several, or
        "npy", files that NumPy maps and reads row by row. ``tables.json`` says which rows each file has, ``keys.safetensors`` the
        rows of raw ids. Of several ranks, all of which must call it, the first writes. Returns the files. Raises UsageError,
        CheckpointError where they cannot be written, RankError where another rank has failed.
        """
        from adaptive_rec.modules.loop.table_export import write_tables_of_loop  # late: a training loads nothing of it

        self.tables.life.check()
        return write_tables_of_loop(self.tables, self.raw_ids, Path(out), form, part_size)

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
        return self._ahead.over(loader, sparse, depth)

    @property
    def stop_requested(self) -> bool:
        """Whether somebody has asked the loop to stop, from the dashboard, over HTTP or with ``adaptive-rec stop``. A loop over
        `prefetch` ends by itself; any other loop reads this after each step and ends where it is true."""
        self._stop_is_read = True
        return self.state.stop_requested

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer state of all rows, which rows are hot, and all counts, for ``torch.save`` with the model's state
        dict."""
        self.tables.life.check()
        self.tables.sums.settle()
        self.tables.dense_steps.settle_all()
        return collect_loop_state(self._saved_parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of the same tables and rule; the rows come with the model's state dict. Knobs, rates and
        budget stay those of this runtime. Raises CheckpointError where the state does not fit."""
        self.tables.life.check()
        self.tables.ahead.drop()
        restore_loop_state(self._saved_parts, state)
        self.states.were_loaded()
        if self.state.rows_placed:
            self.begin()

    # Watch and steer -------------------------------------------------------------------------------------------------

    def serve(self, out: str | Path | None = None, **where: Any) -> str:
        """Serve this loop as ``adaptive-rec train`` serves a run: dashboard, HTTP API, Prometheus metrics and shell commands.
        Returns the address; ``adaptive-rec dashboard`` prints a link that signs you in.

        `out` is the run's directory (runs/TIME-POLICY); `where` may be ``host``, ``port``, ``allow_hosts``, ``token_file``.
        Raises UsageError.
        """
        url = self._watch.serve(out, **where)
        atexit.register(self.close)
        return url

    @property
    def dashboard_url(self) -> str:
        """The link that signs in to the dashboard and permits changes. Empty where the loop is not served."""
        return self._watch.dashboard_url

    def track(self, name: str, folder: str | Path) -> None:
        """Send figures to a tracker ("tensorboard" or package.module:Class), which may write files to a folder."""
        self._watch.track(name, Path(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the runtime was closed."""
        return self.tables.life.closed

    def close(self) -> None:
        """End the service, trackers and threads; rows can still be read and saved. It may be called again, and a ``with`` block
        of the runtime calls it."""
        if self.closed or self.tables.life.is_forked:  # the service is that of the process which began it
            return
        self.tables.life.end()
        atexit.unregister(self.close)
        self.tables.ahead.drop()
        if self.state.rows_placed:
            for report in self.last_report():
                self._watch.emit(report)
        self.mailbox.close("the loop has ended")
        self.publisher.enter("finished")
        self._watch.close()
        self.observer.close()
        self.store.close()

    # For modules and their tables ------------------------------------------------------------------------------------

    @property
    def rows(self) -> OwnRows:
        """The rows of all tables."""
        return self.tables.rows

    @property
    def space(self) -> RowSpace:
        """The row space of the model's tables; that of the store has the rows that this process owns."""
        return self.rows.space

    @property
    def updates_in_backward(self) -> bool:
        """Whether the end of a backward pass is a step; otherwise gradients wait in ``weight.grad`` for an optimizer's."""
        return self.tables.updates_in_backward

    @property
    def looks_ahead(self) -> bool:
        """Whether a loop over `prefetch` is under way."""
        return self._ahead.runs

    def register(self, name: str, module: LookupModule) -> None:
        """Make a module known to `prefetch`."""
        self._ahead.register(name, module)

    # As a session ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start training, or resume it from a state that was loaded."""
        check_ranks(self.rows.group)
        with self.tables.turn:
            if not self.state.rows_placed:
                self.begin()
        self.publisher.enter("training")

    def _end_step(self) -> None:
        """Do what is due after a step."""
        if self.raw_ids is not None:
            self.raw_ids.step_made()
        for report in self.boundary():
            self._watch.emit(report)

    def losses(self) -> Fetched:
        return self._losses.fetch()

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        raw = self.state.input.keys is not None
        check_loop_change(before, after, raw, self.rows.group, self.tables.rates, self.store)
        super().check_knobs(before, after)

    def _how_it_stops(self) -> str:
        if self.looks_ahead:
            return "prefetch ends after this step; the loop saves by itself"
        if self._stop_is_read:
            return "the loop reads stop_requested and ends by itself"
        raise ConflictError(
            "a loop of the user's own must use runtime.prefetch or read runtime.stop_requested to be stopped from outside, "
            "this one does neither"
        )
