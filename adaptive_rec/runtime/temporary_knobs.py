"""Knobs that a rule of the watchdog has changed for some steps, and what they are afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.saved import Saved, parts_by_number


@dataclass(frozen=True)
class TemporaryKnob:
    """A knob with another value until a step."""

    until_step: int
    before: Any
    now: Any
    """The value that the rule has set. A knob that has another one by then was changed by somebody else, and stays."""


class TemporaryKnobs:
    """Set by a rollback, which has them in its command; kept in checkpoints until their steps are over."""

    def __init__(self, rollback: Rollback | None) -> None:
        """`rollback`: the one by which the run goes on."""
        self._set_now = {} if rollback is None else rollback.command.note.get("temporary", {})
        self._of: dict[str, TemporaryKnob] = {}
        self._returning: set[str] = set()
        """Those that were told to go back. They are known until they have: a rule may roll the run back before."""
        self._take_new()

    def _take_new(self) -> None:
        self._of |= {name: TemporaryKnob(**values) for name, values in self._set_now.items()}
        self._returning -= self._set_now.keys()

    def note_of(self, changes: Mapping[str, Any], knobs: Knobs, until_step: int) -> dict[str, Any]:
        """Return what a rollback's command must say of changes that last until a step. A knob that is changed again before its
        steps are over goes back to what it was at first."""
        lasting = {name: getattr(knobs, name) for name in changes}
        for name, value in lasting.items():
            if name in self._of and self._of[name].now == value:
                lasting[name] = self._of[name].before
        return {name: asdict(TemporaryKnob(until_step, lasting[name], value)) for name, value in changes.items()}

    def over(self, step: int, knobs: Knobs) -> dict[str, Any]:
        """Return the values that knobs go back to at a step, once."""
        ended = {name: each for name, each in self._of.items() if step >= each.until_step}
        for name in [name for name, each in ended.items() if getattr(knobs, name) != each.now]:
            del self._of[name], ended[name]
            self._returning.discard(name)
        found = {name: each.before for name, each in ended.items() if name not in self._returning}
        self._returning |= found.keys()
        return found

    def still_returning(self, knobs: Knobs) -> dict[str, Any]:
        """Return the values of knobs that were told to go back and have not: a signal came in between."""
        told = {name: self._of[name] for name in self._of if name in self._returning}
        return {name: each.before for name, each in told.items() if getattr(knobs, name) == each.now}

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return parts_by_number(
            {"knob": name, "values": asdict(each), "returning": name in self._returning}
            for name, each in self._of.items()
        )

    def set_state(self, parts: list[Saved]) -> None:
        self._of = {part.text("knob"): TemporaryKnob(**part.part("values").everything()) for part in parts}
        # older versions did not save which were told to go back
        self._returning = {part.text("knob") for part in parts if part.has("returning") and part.flag("returning")}
        self._take_new()
