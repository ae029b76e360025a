"""Checkpoints of a run while it trains: begun when one is due or asked for, written by a thread, told when they are there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from adaptive_rec.checkpoint.saving import Saving
from adaptive_rec.checkpoint.writing import Writing, Written, is_saved, state_key
from adaptive_rec.errors import CheckpointError, ConflictError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.telemetry import Event

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime

GIVES_WAY = 10
"""Niceness of the writing thread: a tenth of a training thread's share where they want the same core."""


class Checkpoints:
    """One is written at a time. All but the writing itself is the training thread's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._due = Saving(runtime.config.checkpoint)
        self._writing: Writing | None = None
        self._thread: threading.Thread | None = None
        self._asked: list[Command] = []
        """Commands to be answered when it is written."""
        self.newest: dict[str, Any] | None = None
        """The last one that was written, for those who look."""
        self.failed = 0
        """How many were given up."""
        self.stall_seconds = 0.0
        """How long training stood still for all of them."""

    @property
    def is_busy(self) -> bool:
        """Whether one is being written."""
        return self._thread is not None and self._thread.is_alive()

    def when_due(self) -> Iterator[Event]:
        """Tell of what was written meanwhile, and begin another where its time has come."""
        run = self._runtime
        yield from self.written(wait=False)
        last = run.stop_requested or run.step_number >= run.steps_total  # one follows in any case
        if run.checkpoints is None or last or not self._due.is_due(run.step_number, busy=self._writing is not None):
            return
        yield from self._begin()
        self._due.begin()

    def asked(self, command: Command) -> Iterator[Event]:
        """Begin one, which is answered when it is there. Raises ConflictError where there is no place for it."""
        run = self._runtime
        if run.checkpoints is None:
            raise ConflictError("this run has no folder for checkpoints")
        if self._writing is None and run.saved is not None and is_saved(run, run.checkpoints):
            event = self._written_event(run.saved.name)
            yield event
            command.answer({"step": event.step, **event.details})
            return
        if self._writing is None or self._writing.of != state_key(run, run.checkpoints):
            yield from self.written(wait=True)
            self._asked.append(command)
            yield from self._begin()
        else:
            self._asked.append(command)

    def written(self, wait: bool) -> Iterator[Event]:
        """Tell what became of the one under way, if it is there, or else wait for it."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return
        self._thread.join()
        yield self._end()

    def close(self) -> None:
        """Have the one under way written to its end, though the run has broken off."""
        if self._thread is not None:
            self._thread.join()
        if self._writing is not None:
            self._end()
        self._answer(ConflictError("the run has ended"))

    def _begin(self) -> Iterator[Event]:
        run = self._runtime
        assert run.checkpoints is not None
        yield from self.written(wait=True)
        try:
            with run.recorder.paused(), run.during("checkpointing"):
                self._writing = Writing(run, run.checkpoints)
        except CheckpointError as error:
            yield self._failed(error)
            return
        # In the journal first: a run may go on from it as soon as it is there.
        yield Event(
            run.step_number, "saving", f"checkpoint {self._writing.name} begun", {"checkpoint": self._writing.name}
        )
        self._thread = threading.Thread(target=write_beside, args=(self._writing,), name="checkpoint", daemon=True)
        self._thread.start()

    def _end(self) -> Event:
        assert self._writing is not None
        written = self._writing.end()
        self._writing = self._thread = None
        self.stall_seconds += written.stall_seconds
        if written.error is not None:
            return self._failed(written.error)
        if written.complaint:
            self._runtime.unsaid.append(written.complaint)
        details = told(written)
        self.newest = {"name": written.name, "step": written.step, **details}
        event = self._written_event(written.name, **details)
        self._answer({"step": written.step, **event.details})
        self._runtime.publisher.board()
        return event

    def _failed(self, error: CheckpointError) -> Event:
        run = self._runtime
        self.failed += 1
        self._answer(error)
        return Event(run.step_number, "checkpoint_failed", f"no checkpoint was written, training goes on: {error}")

    def _answer(self, outcome: Any) -> None:
        asked, self._asked = self._asked, []
        for command in asked:
            command.answer(outcome)

    def _written_event(self, name: str, **details: Any) -> Event:
        return Event(
            self._runtime.step_number, "checkpoint", f"checkpoint {name} written", {"checkpoint": name, **details}
        )


def write_beside(writing: Writing) -> None:
    """Write on a thread that gives way: on few cores the threads of a step wait for one another, so each that is held up holds up
    all of them."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GIVES_WAY)  # on Linux, of this thread alone
    writing.write()


def told(written: Written) -> dict[str, Any]:
    """What an event says of a checkpoint."""
    return {
        name: value
        for name, value in asdict(written).items()
        if name in ("kind", "rows", "size_bytes", "seconds", "stall_seconds")
    }
