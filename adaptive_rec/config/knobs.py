"""Knobs: the settings that may change while a run is under way. Everything else is configuration and frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
)

from adaptive_rec.config.faults import describe_faults, faults
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.units import parse_size

LARGEST = (1 << 63) - 1
MOST_STEPS, MOST_BYTES = 10**9, 1 << 50
"""Upper bounds of knobs that count steps and bytes; a value above them is a mistake. At a thousand steps a second 10**9 of them
take eleven days, and no device has a pebibyte."""
LONGEST_NAME, LONGEST_DETAIL, MOST_FAULTS = 100, 500, 20
"""Limits of what an error says of wrong knobs to a client, which may have sent anything."""


LONGEST_WHY = 500
"""Characters of the reason for a change."""


class KnobError(ConfigError):
    """Knobs that break rules: the text of the error, and the rules and values of each wrong knob for programs."""

    def __init__(self, text: str, faults: Iterable[tuple[str, str]], faq: str = "knobs") -> None:
        """`faults` are pairs of a knob and a rule that it breaks. The rules of one knob (a number, or a word) are joined."""
        super().__init__(text, faq=faq)
        by_knob: dict[str, list[str]] = {}
        for name, rule in faults:
            by_knob.setdefault(name[:LONGEST_NAME], []).append(rule)
        self.errors = [
            {"knob": name, "detail": " or ".join(rules)[:LONGEST_DETAIL]}
            for name, rules in list(by_knob.items())[:MOST_FAULTS]
        ]
        self.detail = "; ".join(f"{each['knob']}: {each['detail']}" for each in self.errors)


def _parse_bytes(value: Any) -> Any:
    """Read sizes such as ``"256MiB"``; leave everything else to the integer check."""
    return parse_size(value) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]

CONFIGURED = "configured"
"""The value of a knob that leaves a fixed setting as it is."""
Interval = Annotated[int, Field(ge=0, le=MOST_STEPS)] | Literal["configured"]
IntervalSeconds = Annotated[float, Field(ge=0, le=MOST_STEPS)] | Literal["configured"]


MOST_AHEAD = 64
"""Limit of batches that are made ready ahead of the step."""


def knob(default: Any, unit: str, why: str, **limits: Any) -> Any:
    """Return a field with its unit and one line on its purpose."""
    return Field(default, description=why, json_schema_extra={"unit": unit}, **limits)


class Frozen(BaseModel):
    """Immutable settings: unknown keys, wrong types and infinities are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="after")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        """Refuse whole numbers that no array can hold; Python's have no limit."""
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, int) and abs(part) > LARGEST:
                raise ValueError(f"must be at most {LARGEST}, got {str(part)[:40]}")
        return value


class Knobs(Frozen):
    """Live settings of placement, tracking and skipping. They take effect at a step boundary."""

    policy: str = knob(
        "hotline",
        "name",
        "What decides which rows are hot and what is skipped: by name, by entry point, or as package.module:Class.",
        min_length=1,
    )
    hot_budget_bytes: Bytes = knob(
        8 << 20,
        "bytes",
        "Device memory for hot rows: weights, optimizer state and movement record together.",
        ge=0,
        le=MOST_BYTES,
    )
    reclassify_every: PositiveInt = knob(
        100,
        "steps",
        "Length of a window: rows change class only at its end. Under the policy adaptive windows are 1 to 8 of these.",
        le=MOST_STEPS,
    )
    max_moved_bytes: Bytes = knob(
        64 << 20,
        "bytes",
        "Most bytes that one reclassification may move between the tiers.",
        ge=0,
        le=MOST_BYTES,
    )
    hysteresis: float = knob(
        0.1,
        "ratio",
        "A cold row replaces a hot one only when it is estimated this much more popular. 1 where run.host_memory is set.",
        ge=0,
        le=10,
    )
    sample_ratio: float = knob(0.5, "ratio", "Share of the samples whose lookups the sketch counts.", gt=0, le=1)
    decay: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = knob(
        0.6,
        "ratio",
        "Factor of a window's counts at its end; a smaller one forgets faster. auto remembers for as long as hot rows last, and "
        "is the default where run.host_memory is set. The policy adaptive finds its own.",
    )
    action: Literal["freeze", "drop", "subsample"] = knob(
        "subsample",
        "name",
        "What stale rows save: freeze skips their updates, drop skips popular samples that mostly touch them, "
        "subsample keeps such a sample with keep_probability and weights it up.",
    )
    stale_metric: Literal[
        "popularity", "max_abs", "relative_l2", "per_touch", "step_length", "net_over_path", "signal_to_noise"
    ] = knob(
        "popularity",
        "name",
        "The measure by which a hot row counts as settled: see docs/staleness.md. All but popularity need a record of movement "
        "beside each hot row, which counts towards hot_budget_bytes.",
    )
    stale_threshold: Annotated[float, Field(ge=0)] | Literal["search"] = knob(
        "search",
        "movement",
        "Movement under which a row is stale; search finds the value that meets target_skip_ratio.",
    )
    target_skip_ratio: float = knob(
        0.3,
        "ratio",
        "Wanted share of popular samples (drop, subsample) or of hot row updates (freeze) to skip; 0 skips nothing. The policy "
        "adaptive skips what has settled, be it more or less, by the rule signal_to_noise.",
        ge=0,
        le=0.95,
    )
    alpha: float = knob(
        0.9, "ratio", "Share of a popular sample's lookups that must be stale for it to be skipped.", gt=0, le=1
    )
    keep_probability: float = knob(
        0.42, "ratio", "Chance that subsample keeps a stale sample, at weight 1/chance.", gt=0, lt=1
    )
    probe_ratio: float = knob(
        0.0625,
        "ratio",
        "Share of steps that skip nothing; they measure movement, where the rule of staleness goes by it.",
        gt=0,
        le=1,
    )
    min_probe_touches: PositiveInt = knob(
        2,
        "probe steps",
        "Probe steps of a window (by popularity: counted steps) that must have touched a hot row before it may be stale.",
        le=MOST_STEPS,
    )
    min_touch_ratio: float = knob(
        0.3,
        "ratio",
        "Share of a window's probe steps (by popularity: of the counted steps) that must have touched a row for it to be stale: "
        "rows seldom touched still learn.",
        ge=0,
        le=1,
    )
    guard_ratio: float = knob(
        0.0625,
        "ratio",
        "Share of the steps in which the policy adaptive has a twin of the model skip, to find what that costs. Half as many "
        "full steps of the twin follow, so the work of training grows by up to 1.5 times this share.",
        gt=0,
        le=1,
    )
    guard_max_logloss_increase: float = knob(
        0.001,
        "nats",
        "Logloss that the policy adaptive may lose by skipping, by what its trials have found (at 95 %). At 0 nothing is "
        "skipped, and no trial is made.",
        ge=0,
        le=10,
    )
    prefetch_depth: int = knob(
        4,
        "batches",
        "Batches made ready ahead of the step (on a CPU with few cores: read); 0 does it in line.",
        ge=0,
        le=MOST_AHEAD,
    )
    lookahead_batches: PositiveInt = knob(
        2,
        "batches",
        "Batches that the policy cdlrm looks ahead: their rows are made hot together. More move fewer rows.",
        le=MOST_STEPS,
    )
    admit_after: PositiveInt = knob(
        1,
        "lookups",
        "With data.ids=raw: estimated lookups after which an id gets a row of its own; 1 admits all.",
        le=1 << 20,
    )
    evict_ratio: float = knob(
        0.0,
        "ratio",
        "With data.ids=raw: most rows of a full table that ids may lose at the end of a window, for ids that are due for one; 0 "
        "lets each id keep its row.",
        ge=0,
        le=0.5,
    )
    evict_after: int = knob(
        0,
        "steps",
        "With data.ids=raw: steps without a lookup after which an id loses its row at the end of a window, full table or not; at "
        "the latest after twice as many, and a window. 0 lets each id keep its row.",
        ge=0,
        le=MOST_STEPS,
    )
    lr_factor: float = knob(
        1.0, "factor", "Factor of the learning rates, of the dense part and of rows, besides their schedule's.", ge=0, le=10
    )
    embedding_lr_factor: float = knob(
        1.0, "factor", "Factor of the rows' learning rate, besides lr_factor.", ge=0, le=10
    )
    schedule_offset: int = knob(
        0,
        "steps",
        "Steps that the schedule of the learning rates (optimizer.warmup_steps, decay_start) is ahead of the run's; less than 0: "
        "behind.",
        ge=-MOST_STEPS,
        le=MOST_STEPS,
    )
    clip_norm: float = knob(
        0.0,
        "norm",
        "Limit of the L2 norm of the dense part's gradients in a step: where it is larger, all gradients, those of rows too, are "
        "scaled by limit / norm. 0 clips nothing.",
        ge=0,
    )
    eval_every_steps: Interval = knob(
        CONFIGURED, "steps", "Steps between evaluations; configured: as eval.every_steps and eval.count say, 0: only at the end."
    )
    checkpoint_every_steps: Interval = knob(
        CONFIGURED, "steps", "Steps between checkpoints; configured: as checkpoint.every_steps says, 0: none by steps."
    )
    checkpoint_every_seconds: IntervalSeconds = knob(
        CONFIGURED, "seconds", "Seconds between checkpoints; configured: as checkpoint.every_seconds says, 0: none by time."
    )
    report_every: PositiveInt = knob(
        20, "steps", "Steps between two published snapshots and lines of metrics.jsonl.", le=MOST_STEPS
    )

    def changed(self, changes: dict[str, Any]) -> Knobs:
        """Return these knobs with some new values, checked as a whole. Raises ConfigError where one is invalid."""
        unknown = [name for name in changes if name not in Knobs.model_fields][:MOST_FAULTS]
        hints = {name: did_you_mean(name[:LONGEST_NAME], Knobs.model_fields) for name in unknown}
        lines = [f"unknown knob {name}{hint}" for name, hint in hints.items()]
        broken = [(name, f"unknown knob{hint}") for name, hint in hints.items()]
        known = {name: value for name, value in changes.items() if name in Knobs.model_fields}
        try:
            found = Knobs.model_validate({**self.model_dump(), **known})
        except ValidationError as error:
            lines.append(describe_faults(error, "knobs."))
            broken += dict.fromkeys((key, rule) for key, _, rule in faults(error))
        if broken:
            raise KnobError("\n".join(lines), broken)
        return found

    def patched(self, patch: Mapping[str, Any], configured: Knobs) -> Knobs:
        """These knobs with values from a JSON merge patch: 3.0 is 3, and null restores the configured value.

        Raises KnobError for all wrong knobs together."""
        values: dict[str, Any] = {}
        for name, value in patch.items():
            if value is None:
                value = getattr(configured, name, None)
            elif isinstance(value, float) and value.is_integer() and name in WHOLE_NUMBERS:
                value = int(value)
            values[name] = value
        return self.changed(values)

    def eviction_fault(self, raw_ids: bool) -> tuple[str, str] | None:
        """Return the name of a knob that would have ids lose their rows though they are no raw ids, and the broken rule."""
        for name in () if raw_ids else ("evict_ratio", "evict_after"):
            if value := getattr(self, name):
                return name, f"must be 0 unless data.ids=raw, got {value}"
        return None

    def differences(self, after: Knobs) -> dict[str, dict[str, Any]]:
        """Return the old and the new value of every knob that other knobs change."""
        old, new = self.model_dump(), after.model_dump()
        return {name: {"old": old[name], "new": new[name]} for name in new if new[name] != old[name]}


WHOLE_NUMBERS = {
    name
    for name, rules in Knobs.model_json_schema()["properties"].items()
    if "integer" in (rules.get("type"), *(branch.get("type") for branch in rules.get("anyOf", ())))
}
"""Names of knobs whose numbers are whole."""


def within_bounds(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return knob values from a run's files, those above an upper bound lowered to it.

    Older versions had no such bounds, and runs may hold a huge number for "never" or "everything". The bound means the same.
    """
    bounds = {
        name: rule.le
        for name, field in Knobs.model_fields.items()
        for rule in field.metadata
        if getattr(rule, "le", None) in (MOST_STEPS, MOST_BYTES)
    }
    return {
        name: bounds[name] if name in bounds and type(value) is int and bounds[name] < value <= LARGEST else value
        for name, value in saved.items()
    }


def knobs_version(values: Mapping[str, Any]) -> str:
    """Return a version of knob values; equal values have equal versions."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
