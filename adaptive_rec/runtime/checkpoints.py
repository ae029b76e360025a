"""Checkpoints of a run while it trains: started when one is due or requested, written by a thread, reported when written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.rollback_target import whole_of_step
from adaptive_rec.checkpoint.run_state import RunParts
from adaptive_rec.checkpoint.writing import Writing, Written, newest_saved, state_key
from adaptive_rec.config.checkpoint import CheckpointConfig
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import CheckpointError, ConflictError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.system.background import give_way

GIVES_WAY = 10
"""Niceness of the writing thread: it gets a tenth of a training thread's share of a core that both want."""


class CheckpointSchedule:
    """Decides when the next checkpoint is due: by steps, by the clock, or by both. This never affects training results."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self.restart()

    def restart(self) -> None:
        """Start the interval again."""
        self._since = time.monotonic()

    def is_due(self, knobs: Knobs, step: int | None, busy: bool) -> bool:
        """Return whether a checkpoint is due. While one is being written (`busy`), only a step count makes the next one due;
        without a `step` that was just made, only the clock."""
        every_steps, every_seconds = self._config.intervals(knobs)
        by_clock = bool(every_seconds) and not busy and time.monotonic() - self._since >= every_seconds
        return by_clock or (step is not None and bool(every_steps) and step % every_steps == 0)


class Checkpoints:
    """Writes one checkpoint at a time. A thread writes it; the training thread does everything else.

    The journal has its start before the disk has the checkpoint, as a run may be resumed from it at once; and the journal has its
    end before anybody gets a reply.
    """

    def __init__(
        self, parts: RunParts, folder: Path | None, publisher: Publisher, journal: Path | None = None
    ) -> None:
        """Without a `folder` no checkpoint is written and none can be requested. `journal`: the file that has the events yielded
        here; it is on the disk before a checkpoint is."""
        self._parts = parts
        self._state = parts.state
        self._group = parts.state.store.group
        self._folder, self._journal = folder, journal
        self._publisher = publisher
        self._schedule = CheckpointSchedule(parts.state.config.checkpoint)
        self._expect()
        self._writing: Writing | None = None
        self._thread: threading.Thread | None = None
        self._requests: list[Command] = []
        """Commands that get a reply when it is written."""

    def when_due(self) -> Iterator[Event]:
        """Report the checkpoint that was written meanwhile, and start another if one is due."""
        state = self._state
        yield from self.written(wait=False)
        self._expect()
        last = state.stop_requested or state.step == state.steps_total  # one follows in any case
        if self._folder is None or last:
            return
        if not self._group.tell(self._schedule.is_due(state.knobs, state.step, busy=self._writing is not None)):
            return
        yield from self._begin()
        self._schedule.restart()

    def _expect(self) -> None:
        """Show clients the present intervals."""
        if self._folder is not None:
            self._state.checkpoints.expect(*self._state.config.checkpoint.intervals(self._state.knobs))

    def while_waiting(self) -> Iterator[Event]:
        """Report the checkpoint that was written meanwhile, and start another if the clock says so and the run has moved on."""
        yield from self.written(wait=False)
        if self._folder is None or self._writing is not None:
            return
        if not self._group.tell(self._schedule.is_due(self._state.knobs, None, busy=False)):
            return
        if self._newest(self._folder) is None:
            yield from self._begin()
        self._schedule.restart()

    def requested(self, command: Command) -> Iterator[Event]:
        """Start a checkpoint and reply when it is written. Raises ConflictError where the run has no folder for it."""
        if self._folder is None:
            raise ConflictError("this run has no folder for checkpoints")
        if self._writing is not None and self._writing.of == state_key(self._parts, self._folder):
            self._requests.append(command)
            return
        yield from self.written(wait=True)
        if (name := self._newest(self._folder)) is not None:
            event = self._written_event(name)
            yield event
            command.answer({"step": event.step, **event.details})
            return
        self._requests.append(command)
        try:
            yield from self._begin()
        except BaseException:
            self._requests.remove(command)  # the caller replies to it
            raise

    def of_the_best(self) -> Iterator[Event]:
        """Start a checkpoint of the best model so far."""
        if self._folder is not None:
            yield from self._begin()
            self._schedule.restart()

    def at_once(self) -> Iterator[Event]:
        """Write a checkpoint while training waits. One that cannot be written is reported."""
        yield from self._begin()
        yield from self.written(wait=True)

    def whole_of_step(self, step: int) -> str | None:
        """Return the name of the newest checkpoint of a step, where it is whole. Several processes must call it together."""
        first = self._group.rank == 0 and self._folder is not None
        found: str | None = self._group.tell(whole_of_step(self._folder, step) if first and self._folder is not None else None)
        return found

    def at_the_end(self) -> Iterator[Event]:
        """Write a checkpoint of the run's end at once. Raises CheckpointError where it cannot be written."""
        assert self._folder is not None
        if (name := self._newest(self._folder)) is not None:
            yield self._written_event(name)
            return
        try:
            self._writing = Writing(self._parts, self._folder, journal=self._journal)
        except CheckpointError as error:
            yield self._failed(error, what="the last checkpoint was not written")
            raise
        yield self._begun_event(self._writing.name)
        self._writing.write()
        written = self._ended(self._writing)
        if written.error is not None:
            yield self._failed(written.error, written.name, "the last checkpoint was not written")
            raise written.error
        yield self._report(written)

    def _newest(self, folder: Path) -> str | None:
        """Return the name of the newest checkpoint if it has the present state of the run, as rank 0 finds it."""
        found: str | None = self._group.tell(newest_saved(self._parts, folder))
        return found

    def written(self, wait: bool) -> Iterator[Event]:
        """Report the checkpoint under way once it is written, by all processes; `wait` for that, or return if it is not."""
        if self._thread is None or (not wait and self._group.any_true(self._thread.is_alive())):
            return
        began = time.perf_counter()
        with self._state.recorder.paused():
            self._thread.join()
        self._state.checkpoints.add_stall(time.perf_counter() - began)
        yield from self._end()

    def close(self) -> None:
        """Let the checkpoint under way be written to its end, even if the run has failed."""
        if self._thread is not None:
            self._thread.join()
        if self._group.is_alone:
            for _ in self._end():
                pass
        elif self._writing is not None:  # the run has failed, so the other processes will not write their parts
            self._writing.give_up()
        self._answer(ConflictError("the run has ended"))

    def _begin(self) -> Iterator[Event]:
        assert self._folder is not None
        yield from self.written(wait=True)
        try:
            with self._state.recorder.paused(), self._publisher.during("checkpointing"):
                self._writing = Writing(self._parts, self._folder, journal=self._journal)
        except CheckpointError as error:
            yield self._failed(error)
            self._answer(error)
            return
        yield self._begun_event(self._writing.name)
        thread = threading.Thread(target=write_beside, args=(self._writing,), name="checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another
            self._writing.fail(error)
            yield from self._end()
            return
        self._thread = thread

    def _end(self) -> Iterator[Event]:
        """Report the checkpoint under way, if any, then reply to those who requested it."""
        if self._writing is None:
            return
        written = self._ended(self._writing)
        if written.error is not None:
            yield self._failed(written.error, written.name)
            self._answer(written.error)
            return
        event = self._report(written)
        yield event
        self._answer({"step": written.step, **event.details})

    def _ended(self, writing: Writing) -> Written:
        written = writing.end()
        self._writing = self._thread = None
        self._state.checkpoints.add_stall(written.stall_seconds)  # of a failed one, too
        return written

    def _report(self, written: Written) -> Event:
        if written.complaint:
            self._state.warn(written.complaint)
        values = asdict(written)
        details = {name: values[name] for name in ("kind", "rows", "size_bytes", "seconds", "stall_seconds")}
        self._state.checkpoints.set_newest({"name": written.name, "step": written.step, **details})
        self._publisher.board()
        return self._written_event(written.name, **details)

    def _failed(
        self, error: CheckpointError, name: str = "", what: str = "no checkpoint was written, training continues"
    ) -> Event:
        self._state.checkpoints.add_failure()
        text = f"{what}: {error}"
        return Event(self._state.step, "checkpoint_failed", text, {"checkpoint": name} if name else {})

    def _answer(self, outcome: Any) -> None:
        requests, self._requests = self._requests, []
        for command in requests:
            command.answer(outcome)

    def _begun_event(self, name: str) -> Event:
        return Event(self._state.step, "saving", f"checkpoint {name} started", {"checkpoint": name})

    def _written_event(self, name: str, **details: Any) -> Event:
        return Event(self._state.step, "checkpoint", f"checkpoint {name} written", {"checkpoint": name, **details})


def write_beside(writing: Writing) -> None:
    """Write at low priority: on few cores the threads of a step wait for one another, so a delay of one delays all of them."""
    give_way(GIVES_WAY)
    writing.write()
