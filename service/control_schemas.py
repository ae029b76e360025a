"""Models of the answers on knobs and on commands, for the API's description."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from adaptive_rec.service.documented import Answer, example

KnobValue = int | float | str


class Knob(Answer):
    desired: KnobValue
    effective: KnobValue
    default: KnobValue
    minimum: float | None
    maximum: float | None
    exclusive_minimum: bool
    exclusive_maximum: bool
    choices: list[str] | None
    type: Literal["integer", "number", "string", "number_or_choice"]
    unit: str
    why: str


class KnobList(Answer):
    knobs: dict[str, Knob]
    pending: Annotated[bool, Field(description="Whether a desired value is not in effect yet")]
    reason: Annotated[str | None, Field(description="Why it is not, and until when; null where nothing is pending")]
    effective_since_step: int


class KnobChange(BaseModel):
    old: KnobValue
    new: KnobValue


class KnobsChanged(Answer):
    """A change of knobs and the step at which it took effect; null if it is pending."""

    pending: bool
    reason: Annotated[str | None, Field(description="Why it is pending, and until when; else null")]
    dry_run: bool
    applied_at_step: int | None
    changed: dict[str, KnobChange]
    desired: dict[str, KnobValue]
    effective: dict[str, KnobValue]


class Done(BaseModel):
    """A command and the step at which it was carried out; null if it is pending."""

    model_config = ConfigDict(extra="allow", **example(command="pause", step=437, pending=False, reason=None))
    command: str
    step: int | None
    pending: bool
    reason: Annotated[str | None, Field(description="Why it is pending, and until when; else null")]
