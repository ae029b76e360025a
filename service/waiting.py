"""Why a run has not carried out a command yet, so that nobody waits for an answer without knowing."""

from __future__ import annotations

import time

from adaptive_rec.service.hello import Values
from adaptive_rec.service.problems import ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.trainer_link import REPLY_SECONDS, SentCommand
from adaptive_rec.units import clock

SOON_SECONDS = 0.5
"""A phase without step boundaries that has lasted so long is not waited for."""
LOOK_SECONDS = 0.05
BUSY = {
    "starting": "the run has been starting for {age}",
    "evaluating": "the run has been evaluating for {age}",
    "rolling_back": "the run has been going back to a checkpoint for {age}",
    "checkpointing": "the run has been copying a checkpoint for {age}",
}
"""Phases in which no command is carried out."""


def check_open(view: RunView) -> None:
    """Raise a problem where the run takes no more commands, as it is finishing."""
    if view.board().get("phase") == "finishing":
        raise ProblemError(409, "the run is finishing, it takes no more commands")


async def outcome_soon(view: RunView, sent: SentCommand) -> Values | None:
    """Return the outcome of a command; None where the run has accepted it and cannot carry it out soon, or has not in time."""
    link = view.commands()
    while time.monotonic() - sent.sent_at < REPLY_SECONDS:
        reply = await link.reply(sent, LOOK_SECONDS)
        if reply is not None:
            return reply
        if sent.accepted.done() and _busy_phase(view) is not None:
            return None
    return sent.outcome.result() if sent.outcome.done() else None


def _busy_phase(view: RunView) -> str | None:
    """Return which phase has no step boundary for a while; None where a step may end at any moment."""
    board, now = view.board(), time.monotonic()
    phase, age = board.get("phase", "starting"), now - board.get("phase_since", now)
    if phase in BUSY:
        return BUSY[phase].format(age=clock(age)) if age >= SOON_SECONDS else None
    pulse = view.pulse()
    if phase != "training" or pulse is None or now - pulse[1] < REPLY_SECONDS:
        return None
    if pulse[0] == 0 or pulse[0] == board.get("began_at_step"):
        return f"the first step has been under way for {clock(now - pulse[1])}, kernels may be compiled for it"
    return f"step {pulse[0] + 1} has been under way for {clock(now - pulse[1])}"


def reason(view: RunView, effect: str) -> str:
    """Return why a command waits, and when it is carried out. `effect`: who does what then, such as "the change takes effect"."""
    phase = view.board().get("phase", "starting")
    why = _busy_phase(view) or ("a step is under way" if phase == "training" else f"the run is {phase.replace('_', ' ')}")
    return f"{why}; {effect} at the next step boundary"


def checkpoint_reason(view: RunView) -> str:
    """Return why a requested checkpoint has no end yet: it has still to begin, or is being written."""
    if (busy := _busy_phase(view)) is not None:
        return f"{busy}; the checkpoint begins at the next step boundary"
    return "the checkpoint is being written beside training; the event checkpoint reports its end"
