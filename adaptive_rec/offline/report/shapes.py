"""What the files of a run directory must hold for a report. A value that does not fit is left out, and the report says so."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, model_validator

from adaptive_rec.system.strict_json import StrictShape

Whole = Annotated[int, Field(ge=0, le=2**63)]
Figure = Annotated[float, Field(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Moment = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Seconds since 1970, to the end of the year 9999."""


class ReportTotals(StrictShape):
    """Counters since the run's start. Further ones are numbers too."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Figure]

    steps: Whole
    samples_seen: Whole
    samples_trained: Whole
    samples_popular: Whole
    lookups: Whole
    lookups_hot: Whole
    row_updates: Whole
    row_updates_skipped: Whole
    host_to_device_bytes: Whole
    device_to_host_bytes: Whole
    migrated_rows: Whole


class ReportTables(StrictShape):
    lookups: list[Whole]
    lookups_hot: list[Whole]

    @model_validator(mode="after")
    def _check_length(self) -> ReportTables:
        if len(self.lookups) != len(self.lookups_hot):
            raise ValueError("lookups and lookups_hot must have a value for each table")
        return self


class ReportLine(StrictShape):
    """All that plots need of a snapshot, which lines of other versions may not have."""

    step: Whole
    steps_total: Whole | None
    seconds: Seconds
    loss: Figure | None
    hot_rows: Whole
    stale_rows: Whole
    stage_seconds: dict[str, Figure]
    totals: ReportTotals
    tables: ReportTables


class ReportRanking(StrictShape):
    groups: Whole
    groups_with_positive: Whole
    groups_with_both: Whole
    metrics: dict[str, Figure | None]


class ReportEvaluation(StrictShape):
    step: Whole
    auc: Figure | None = None
    logloss: Figure | None = None
    calibration: Figure | None = None
    samples: Whole | None = None
    ranking: ReportRanking | None = None


class ReportEvent(StrictShape):
    step: Whole
    kind: str
    text: str
    time: Moment | None = None
    details: dict[str, Any] = {}


class TableFacts(StrictShape):
    name: str
    rows: Whole
    dim: Whole


class RunFacts(StrictShape):
    """``run.json``."""

    run_name: str | None = None
    started: Moment | None = None
    device: str = ""
    precision: str = ""
    own_loop: bool = False
    tables: list[TableFacts] = []
    version: str | None = None
    command: str | None = None


class FinalQuality(StrictShape):
    """The score of a run's end."""

    auc: Figure | None = None
    logloss: Figure | None = None
    calibration: Figure | None = None
    samples: Whole | None = None
    ranking: ReportRanking | None = None


class FinalDisk(StrictShape):
    rows_read: Whole = 0
    rows_written: Whole = 0
    size_bytes: Whole = 0


class FinalFigures(StrictShape):
    """``summary.json``."""

    action: str | None = None
    steps: Whole = 0
    steps_total: Whole = 0
    samples_seen: Whole = 0
    samples_trained: Whole = 0
    samples_skipped: Whole = 0
    weight_trained: Figure = 0.0
    malformed_rows: Whole = 0
    row_updates: Whole = 0
    row_updates_skipped: Whole = 0
    seconds: Seconds = 0.0
    samples_per_second: Figure = 0.0
    followed: bool = False
    eval: FinalQuality | None = None
    eval_mode: str = ""
    eval_step: Whole | None = None
    hot_lookup_ratio: Figure = 0.0
    popular_sample_ratio: Figure = 0.0
    hot_rows: Whole = 0
    stale_rows: Whole = 0
    total_rows: Whole = 0
    host_to_device_bytes: Whole = 0
    device_to_host_bytes: Whole = 0
    migrated_rows: Whole = 0
    device_tier_bytes: Whole = 0
    device_peak_bytes: Whole = 0
    peak_rss_bytes: Whole = 0
    disk: FinalDisk | None = None
    seconds_by_stage: dict[str, Figure] = {}


class KnobFacts(StrictShape):
    policy: str = ""
    hot_budget_bytes: Whole = 0


class RunSection(StrictShape):
    batch_size: Whole = 0


class DataSection(StrictShape):
    source: str = ""


class ConfigFacts(StrictShape):
    """``config.toml``."""

    run: RunSection = RunSection()
    data: DataSection = DataSection()
    knobs: KnobFacts = KnobFacts()


def parsed_toml(data: bytes) -> dict[str, Any] | None:
    """Return the tables of a TOML file, or None."""
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def fitting(shape: type[StrictShape], values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values without those that do not fit a shape, and what is wrong with these, one text each."""
    try:
        shape.model_validate(values)
    except ValidationError as error:
        wrong: dict[str, str] = {}
        for each in error.errors(include_url=False):
            name = str(each["loc"][0])
            wrong.setdefault(name, f"{'.'.join(map(str, each['loc']))}: {each['msg']}, got {str(each['input'])[:50]!r}")
        return {name: value for name, value in values.items() if name not in wrong}, list(wrong.values())
    return values, []
