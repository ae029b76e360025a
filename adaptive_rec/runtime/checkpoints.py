"""Checkpoints of a run while it trains: begun when one is due or asked for, written by a thread, told when they are there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from adaptive_rec.checkpoint.due import Saving
from adaptive_rec.checkpoint.writing import Writing, Written, newest_saved, state_key
from adaptive_rec.errors import CheckpointError, ConflictError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event
from adaptive_rec.system.beside import give_way

if TYPE_CHECKING:
    from adaptive_rec.runtime.loop import Runtime

GIVES_WAY = 10
"""Niceness of the writing thread: a tenth of a training thread's share where they want the same core."""


class Checkpoints:
    """One is written at a time. All but the writing itself is the training thread's.

    Its begin is in the journal before it is on the disk, as a run may go on from it as soon as it is there; and its end is in the
    journal before anybody is told of it.
    """

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
        if self._writing is not None and self._writing.of == state_key(run, run.checkpoints):
            self._asked.append(command)
            return
        yield from self.written(wait=True)
        if (name := newest_saved(run, run.checkpoints)) is not None:
            event = self._written_event(name)
            yield event
            command.answer({"step": event.step, **event.details})
            return
        self._asked.append(command)
        try:
            yield from self._begin()
        except BaseException:
            self._asked.remove(command)  # whoever hears of this answers it
            raise

    def at_the_end(self) -> Iterator[Event]:
        """One of the run's end, written at once. Raises CheckpointError where it cannot be."""
        run = self._runtime
        assert run.checkpoints is not None
        if (name := newest_saved(run, run.checkpoints)) is not None:
            yield self._written_event(name)
            return
        self._writing = Writing(run, run.checkpoints)
        yield self._begun_event(self._writing.name)
        self._writing.write()
        written = self._ended(self._writing)
        if written.error is not None:
            yield self._failed(written.error, written.name)
            raise written.error
        yield self._told(written)

    def written(self, wait: bool) -> Iterator[Event]:
        """Tell what became of the one under way, if it is there, or else wait for it."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return
        began = time.perf_counter()
        with self._runtime.recorder.paused():
            self._thread.join()
        self.stall_seconds += time.perf_counter() - began
        yield from self._end()

    def close(self) -> None:
        """Have the one under way written to its end, though the run has broken off."""
        if self._thread is not None:
            self._thread.join()
        for _ in self._end():
            pass
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
            self._answer(error)
            return
        yield self._begun_event(self._writing.name)
        thread = threading.Thread(target=write_beside, args=(self._writing,), name="checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another
            self._writing.give_up(error)
            yield from self._end()
            return
        self._thread = thread

    def _end(self) -> Iterator[Event]:
        """Tell of the one that was under way, if any, then answer those who asked for it."""
        if self._writing is None:
            return
        written = self._ended(self._writing)
        if written.error is not None:
            yield self._failed(written.error, written.name)
            self._answer(written.error)
            return
        event = self._told(written)
        yield event
        self._answer({"step": written.step, **event.details})

    def _ended(self, writing: Writing) -> Written:
        written = writing.end()
        self._writing = self._thread = None
        self.stall_seconds += written.stall_seconds  # of those given up, too
        return written

    def _told(self, written: Written) -> Event:
        if written.complaint:
            self._runtime.unsaid.append(written.complaint)
        values = asdict(written)
        details = {name: values[name] for name in ("kind", "rows", "size_bytes", "seconds", "stall_seconds")}
        self.newest = {"name": written.name, "step": written.step, **details}
        self._runtime.publisher.board()
        return self._written_event(written.name, **details)

    def _failed(self, error: CheckpointError, name: str = "") -> Event:
        run = self._runtime
        self.failed += 1
        text = f"no checkpoint was written, training goes on: {error}"
        return Event(run.step_number, "checkpoint_failed", text, {"checkpoint": name} if name else {})

    def _answer(self, outcome: Any) -> None:
        asked, self._asked = self._asked, []
        for command in asked:
            command.answer(outcome)

    def _begun_event(self, name: str) -> Event:
        run = self._runtime
        return Event(run.step_number, "saving", f"checkpoint {name} begun", {"checkpoint": name})

    def _written_event(self, name: str, **details: Any) -> Event:
        run = self._runtime
        return Event(run.step_number, "checkpoint", f"checkpoint {name} written", {"checkpoint": name, **details})


def write_beside(writing: Writing) -> None:
    """Write on a thread that gives way: on few cores the threads of a step wait for one another, so each that is held up holds up
    all of them."""
    give_way(GIVES_WAY)
    writing.write()
