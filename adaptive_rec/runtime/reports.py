"""Snapshots: the run in numbers, every `report_every` steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.embedding.optimizer import LearningRates
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.errors import NotFiniteError
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.state.run_state import RunState

if TYPE_CHECKING:
    from adaptive_rec.runtime.ranks import Ranks
    from adaptive_rec.runtime.row_figures import DiskFigures, KeyFigures


class Reports:
    """Makes snapshots in two halves, so that training does not wait for a device.

    `begin` takes the counters; the loss is still on the device then. `finish` makes and publishes the snapshot when the loss has
    arrived, a few steps later.
    """

    def __init__(
        self,
        state: RunState,
        observer: Observer,
        reclassifier: Reclassifier,
        mailbox: Mailbox,
        publisher: Publisher,
        losses: Callable[[], Fetched],
        learning_rates: Callable[[], LearningRates | None],
        ends_on_bad_loss: bool = True,
    ) -> None:
        """`losses` fetches the sum of the losses of all samples so far; not a number where no losses are recorded."""
        self._state = state
        self._observer = observer
        self._reclassifier = reclassifier
        self._mailbox = mailbox
        self._publisher = publisher
        self._losses = losses
        self._learning_rates = learning_rates
        self._ends_on_bad_loss = ends_on_bad_loss
        self._due: tuple[dict[str, float], dict[str, Any], Fetched, bool] | None = None
        self._ranks = None if state.store.group.is_alone else _ranks_of(state)
        self._disk = _disk_of(state) if state.store.cold.on_disk else None

    def start(self) -> None:
        """Start the run's clock and what reports are counted from."""
        self._state.recorder.start(self.totals())
        if self._ranks is not None:
            self._ranks.start()
        if self._disk is not None:
            self._disk.start()
        if self._state.input.keys is not None:
            _keys_of(self._state).start()

    def totals(self) -> dict[str, float]:
        """Return all counts with the sum of all losses, for which it waits."""
        return {**self._state.counts(), "loss_sum": float(self._losses().array())}

    def begin(self, interim: bool = False) -> None:
        """Take the counters of a snapshot; an `interim` one is not due. The snapshot before must be finished."""
        assert self._due is None
        counts = {**self._state.counts(), "seconds": self._state.recorder.seconds}
        self._due = counts, self._fields(counts, interim), self._losses(), interim

    def finish(self, wait: bool) -> Iterator[Snapshot]:
        """Publish the snapshot under way, if its loss has arrived or may be waited for. Raises NotFiniteError where the loss is
        not finite and the run is to end then."""
        if self._due is None or not (wait or self._state.store.peers.has_arrived(self._due[2])):
            return
        (counts, fields, loss_sum, interim), self._due = self._due, None
        snapshot = self._state.recorder.snapshot({**counts, "loss_sum": float(loss_sum.array())}, interim, **fields)
        self._mailbox.publish(snapshot)
        self._publisher.board()
        if self._ends_on_bad_loss and not math.isfinite(snapshot.loss):
            text = f"the loss must stay finite, got {snapshot.loss} by step {snapshot.step}; lower the learning rates"
            raise NotFiniteError(text, snapshot.step)
        yield snapshot

    def made(self, interim: bool = True) -> bool:
        """Whether the present step has its snapshot, `interim` ones included."""
        return self._state.recorder.is_reported(self._state.tally.counters.steps, interim)

    def up_to_here(self) -> Iterator[Snapshot]:
        """Publish an interim snapshot of the present step, where the run stands still or ends, unless there is one."""
        yield from self.finish(wait=True)
        if not self.made():
            self.begin(interim=True)
            yield from self.finish(wait=True)

    def _fields(self, counts: Mapping[str, float], interim: bool) -> dict[str, Any]:
        state, store = self._state, self._state.store
        by_table = [state.tally.lookups_T, state.tally.hot_lookups_T, store.index.hot_rows_T, self._observer.stale.rows_T]
        lookups, lookups_hot, hot_rows, stale_rows = store.group.total(np.stack(by_table)).tolist()
        rates = self._learning_rates()
        ranks, straggler = ((), None) if self._ranks is None else self._ranks.report()
        return {
            "step": state.step,
            "steps_total": state.steps_total,
            "hot_rows": sum(hot_rows),
            "stale_rows": sum(stale_rows),
            "placement_version": state.placement_version,
            "stale_threshold": self._reclassifier.stale_threshold,
            "stale_agreement": self._observer.stale.agreement,
            "dense_lr": math.nan if rates is None else rates.dense,
            "embedding_lr": math.nan if rates is None else rates.embedding,
            "stage_seconds": {stage: round(seconds, 4) for stage, seconds in dict(state.times.seconds).items()},
            "tables": {
                "lookups": lookups, "lookups_hot": lookups_hot, "hot_rows": hot_rows, "stale_rows": stale_rows,
            },
            "ranks": ranks,
            "straggler": straggler,
            "disk": None if self._disk is None else self._disk.report(counts, interim),
            "keys": None if state.input.keys is None else _keys_of(state).report(interim),
            "skipping": state.skipping,
        }


def _ranks_of(state: RunState) -> Ranks:
    from adaptive_rec.runtime.ranks import Ranks

    return Ranks(state)


def _disk_of(state: RunState) -> DiskFigures:
    from adaptive_rec.runtime.row_figures import DiskFigures

    return DiskFigures(state)


def _keys_of(state: RunState) -> KeyFigures:
    from adaptive_rec.runtime.row_figures import KeyFigures

    return KeyFigures(state)
