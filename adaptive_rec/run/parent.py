"""The run and the checkpoint that a branch began with: the part `parent` of its ``run.json``. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from adaptive_rec.checkpoint.manifest import GENERATION_NAME
from adaptive_rec.config.faults import rule_broken_by
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.config.tree import DESCRIPTION
from adaptive_rec.errors import UsageError
from adaptive_rec.system.regular_files import read_json


class ParentRun(Frozen):
    """Where a branch comes from, and what its parent had done by then."""

    run: str
    """The parent's directory, absolute. It may be gone."""
    checkpoint: str = Field(pattern=GENERATION_NAME)
    """Name of the checkpoint, in both runs."""
    step: int = Field(ge=0)
    seconds: float = Field(ge=0)
    """Seconds of training before the branch, of all runs that it comes from."""
    processor_seconds: float = Field(0.0, ge=0)
    seconds_by_stage: dict[str, float] = {}
    samples_seen: int = Field(ge=0)
    """Samples read before the branch."""
    knobs: dict[str, Any] = {}
    """Knobs that the branch was given: they change before its first step."""
    settings: dict[str, dict[str, Any]] = {}
    """Old and new values of other settings that it was given and that change its course."""

    @property
    def place(self) -> dict[str, Any]:
        """Run, checkpoint and step, for the journal and for clients."""
        return {"run": self.run, "checkpoint": self.checkpoint, "step": self.step}

    @property
    def text(self) -> str:
        """The parent in a word."""
        return f"{Path(self.run).name}@{self.step}"


def parent_of(run: Path) -> ParentRun | None:
    """Return where a run comes from; None where it is no branch. Raises UsageError where its description is damaged."""
    path = run / DESCRIPTION
    found = read_about(run).get("parent")
    if found is None:
        return None
    try:
        return ParentRun.model_validate(found)
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(map(str, ("parent", *fault["loc"])))
        raise UsageError(f"{path} must say where the branch comes from: {name} {rule_broken_by(fault)}") from None


def read_about(run: Path) -> Mapping[str, Any]:
    """Return the description of a run; nothing where there is none, or none that can be read."""
    try:
        about = read_json(run / DESCRIPTION)
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
