"""Valid lines of a run's files. Other lines, damaged by a crash or a full disk, are left out."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from adaptive_rec.service.hello import LAST_SECOND, Count, Values

MAX_STEP = 2**53

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Name = Annotated[str, Field(max_length=100)]


class FileLine(BaseModel):
    """A line with finite numbers. Nothing is converted; other fields are allowed."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class SnapshotTables(FileLine):
    lookups: list[Count] = []
    lookups_hot: list[Count] = []
    hot_rows: list[Count] = []
    stale_rows: list[Count] = []


class SnapshotLine(FileLine):
    step: Step
    seconds: Number
    steps_total: Step | None = None
    samples_per_second: Number | None = None
    loss: Number | None = None
    hot_lookup_ratio: Number | None = None
    popular_sample_ratio: Number | None = None
    skipped_sample_ratio: Number | None = None
    skipped_row_update_ratio: Number | None = None
    hot_rows: Count = 0
    stale_rows: Count = 0
    placement_version: Count = 0
    stale_threshold: Number | None = None
    totals: dict[Name, Number] = {}
    stage_seconds: dict[Name, Number] = {}
    tables: SnapshotTables = SnapshotTables()


class EvaluationLine(FileLine):
    step: Step
    auc: Number | None = None
    logloss: Number | None = None
    accuracy: Number | None = None
    normalized_entropy: Number | None = None
    calibration: Number | None = None
    samples: Count | None = None


class EventLine(FileLine):
    time: Annotated[float, Field(ge=0, le=LAST_SECOND)]
    step: Step
    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,50}$")]
    text: str
    details: dict[str, Any] = {}


class KnobChangeLine(FileLine):
    new: int | Number | str


class KnobDetails(FileLine):
    changed: dict[Name, KnobChangeLine]


class KnobsLine(EventLine):
    details: KnobDetails  # type: ignore[assignment]


class MemorySummary(FileLine):
    """Device memory in a run's `summary.json`. Older versions did not write it."""

    device_staging_bytes: Count = 0
    device_peak_bytes: Count = 0


def parsed(line: bytes) -> Values | None:
    """Return the JSON object on a line, or None. NaN, half surrogate pairs and very deep nesting are not accepted."""
    try:
        value = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def fits(shape: type[FileLine], value: Values) -> bool:
    """Return whether a line has a shape."""
    try:
        shape.model_validate(value)
    except ValidationError:
        return False
    return True
