"""The runtime that trains at present, for what outlives it where the run goes back to a checkpoint: signals, screen, sidecar."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import ConflictError
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.state_writer import StateWriter
from adaptive_rec.live.telemetry import Evaluation, finite
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.state.run_state import RunState

HAS_ENDED = "the run has ended"
NOT_UNDONE = "the run went back to a checkpoint while this undo waited: see what the knobs are, and ask again"
GOES_BACK = "the run is going back to a checkpoint; try again when it trains"


@dataclass(frozen=True)
class LastStanding:
    """What clients see while no runtime trains."""

    step: int
    knobs: Knobs
    knobs_step: int
    knob_changes: int
    rollbacks: int
    hurried: bool
    phase: str = "rolling_back"


class CurrentRun:
    """The runtime that trains at present; none while a rollback replaces it. The mailbox and the shared state stay the same."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime: Runtime | None = runtime
        self.mailbox: Mailbox = runtime.mailbox
        self._state: LastStanding | None = None
        self._writer: StateWriter | None = None
        """Where the last runtime has published, while there is none."""
        self._hurried = False
        self._hurry_scoring: Callable[[], None] | None = None
        """Ends the scoring of a run that has ended."""
        self._board: dict[str, Any] = {}
        """What a run that has ended has published last."""

    @property
    def runtime(self) -> Runtime | None:
        return self._runtime

    @property
    def state(self) -> RunState | LastStanding:
        runtime = self._runtime
        if runtime is not None:
            return runtime.state
        assert self._state is not None
        return self._state

    def hurry(self) -> None:
        """Stop after the step and leave out long work. Signal handlers may call it."""
        self._hurried = True
        if (runtime := self._runtime) is not None:
            runtime.hurry()
        if (hurry := self._hurry_scoring) is not None:
            hurry()

    def find_keys(self, table: int, keys: Sequence[int]) -> Mapping[str, Any]:
        """Return where raw keys of a table are. Raises ConfigError where ids are rows, ConflictError while no runtime trains."""
        if (runtime := self._runtime) is None:
            raise ConflictError(HAS_ENDED if self._board else GOES_BACK)
        return runtime.find_keys(table, keys)

    # For the sidecar, which publishes what it opens ------------------------------------------------------------------

    @property
    def publisher(self) -> CurrentRun:
        return self

    def open(self) -> StateWriter:
        """Publish the run from now on."""
        assert self._runtime is not None
        return self._runtime.publisher.open()

    def close(self) -> None:
        """Stop publishing."""
        if self._runtime is not None:
            self._runtime.publisher.close()
        elif self._writer is not None:
            self._writer.close()

    # The training thread replaces it ---------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Let the runtime go, whose memory another one needs. Clients see that the run goes back; commands but undoes wait."""
        self._leave("rolling_back")
        self.mailbox.let_go(GOES_BACK)
        self.mailbox.refuse_undoes(NOT_UNDONE)

    def _leave(self, phase: str) -> None:
        """Let the runtime go in a phase."""
        runtime = self._runtime
        assert runtime is not None
        runtime.publisher.enter(phase)
        state = runtime.state
        self._state = LastStanding(
            state.step, state.knobs, state.knobs_step, state.knob_changes, state.rollbacks, state.hurried, phase
        )
        self._writer = runtime.publisher.hand_over()
        self._runtime = None

    def end(self, phase: str) -> None:
        """Let the runtime of a run go that has ended. Clients see it as it was then."""
        assert self._runtime is not None
        self._board = self._runtime.publisher.values()
        self._leave(phase)
        self.mailbox.let_go(HAS_ENDED)

    def score_with(self, hurry: Callable[[], None]) -> None:
        """Have signals end the scoring of a run that has ended by `hurry`."""
        self._hurry_scoring = hurry
        if self._hurried:
            hurry()

    def enter(self, phase: str, held_out: Evaluation | None = None) -> None:
        """Publish the phase of a run, and at its end the score of the held-out samples by the best model."""
        if self._runtime is not None:
            if held_out is not None:
                self._runtime.state.set_held_out(held_out)
            self._runtime.publisher.enter(phase)
            return
        assert self._state is not None
        self._state = replace(self._state, phase=phase, hurried=self._hurried)
        scored = None if held_out is None else finite(held_out.figures())
        self._board |= {"phase": phase, "phase_since": time.monotonic(), "held_out": scored}
        if self._writer is not None:
            self._writer.write_board(self._board)
            self._writer.pulse(self._state.step)

    def follow(self, runtime: Runtime) -> None:
        """Show another runtime, which trains from now on."""
        self._runtime = runtime
        if self._writer is not None:
            runtime.publisher.take_over(self._writer)
            self._writer = None
        self.mailbox.changed(runtime.knobs)
        if self._hurried:
            runtime.hurry()
