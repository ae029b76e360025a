"""A rollback: a run that trains goes on from an earlier checkpoint of its own, in the same process.

Clients request it over the link, and the training thread may request it too, by a command in the run's mailbox:
``mailbox.send(rollback_command(skip_data=True, knobs={"lr_factor": 0.5}, why="the loss spikes"))``. It is carried out at the next
step boundary. Where the run cannot go back, training continues, and the journal has a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from adaptive_rec.batch import Position
from adaptive_rec.config.knobs import LONGEST_WHY
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.knob_patch import KnobPatches
from adaptive_rec.live.mailbox import Answer, Command, ignore

PARTS = ("checkpoint", "to_step", "skip_data", "knobs", "why")
"""What a client may say of a rollback."""


@dataclass(frozen=True)
class Rollback:
    """A rollback that a run has accepted: its loop ends, and the run goes on from the checkpoint."""

    command: Command
    checkpoint: str
    """Name of the checkpoint, which was just read and found whole."""
    from_step: int
    """The last step that was made before."""
    knobs: Mapping[str, Any]
    """New values of knobs that differ from those of the checkpoint."""
    skip_to: Position | None = None
    """Where the stream goes on; None: where it stood at the checkpoint."""
    on_slice: bool = False
    """Whether the run goes on with the validation slice, as its passes have ended."""

    @property
    def differs(self) -> bool:
        """Whether the run goes on in another state than the checkpoint's."""
        return bool(self.knobs) or self.skip_to is not None or self.on_slice


def rollback_command(
    checkpoint: str | None = None,
    to_step: int | None = None,
    skip_data: bool = False,
    knobs: Mapping[str, Any] | None = None,
    why: str = "",
    answer: Answer = ignore,
) -> Command:
    """Return the command to go back to a checkpoint: by name, the newest one at or before `to_step`, or the newest of all.

    `skip_data`: do not train again on the samples seen since then. `knobs`: new values, in effect before the next step.
    `answer` is called once the run trains from there, or with the error. Raises ConfigError for values of other types.
    """
    if checkpoint is not None and not isinstance(checkpoint, str):
        raise ConfigError(f"checkpoint must be the name of one, or null, got {str(checkpoint)[:50]!r}")
    if to_step is not None and (type(to_step) is not int or to_step < 0):
        raise ConfigError(f"to_step must be a number of steps from 0 on, or null, got {str(to_step)[:50]!r}")
    if checkpoint is not None and to_step is not None:
        raise ConfigError(
            f"checkpoint or to_step must name the checkpoint, got both: {checkpoint[:50]!r} and {to_step}"
        )
    if not isinstance(skip_data, bool):
        raise ConfigError(f"skip_data must be true or false, got {str(skip_data)[:50]!r}")
    if knobs is not None and not isinstance(knobs, Mapping):
        raise ConfigError(f"knobs must be an object of knobs, got {str(knobs)[:50]!r}")
    if not isinstance(why, str) or len(why) > LONGEST_WHY:
        raise ConfigError(f"why must be a text of at most {LONGEST_WHY} characters, got {str(why)[:50]!r}")
    values = {"checkpoint": checkpoint, "to_step": to_step, "skip_data": skip_data, "knobs": dict(knobs or {})}
    return Command("rollback", values, answer, {"why": why} if why else {})


def requested_rollback(message: Mapping[str, Any], patches: KnobPatches, answer: Answer) -> Command:
    """Return the command of a client's message. Raises ConfigError, or ConflictError for knobs that the run cannot take."""
    given = {name: message[name] for name in PARTS if message.get(name) is not None}
    command = rollback_command(**given, answer=answer)
    return replace(command, values={**command.values, "knobs": patches.values(command.values["knobs"])})
