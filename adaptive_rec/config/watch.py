"""The settings of the watchdog: rules, and how often they may roll a run back."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from adaptive_rec.config.knobs import Frozen, knob
from adaptive_rec.config.watch_rule import WatchRule, parse_rule

MOST_RULES = 50


class WatchConfig(Frozen):
    rules: tuple[str, ...] = Field(
        (),
        description='What a run is watched for and what happens then, such as "loss is nan: rollback" (docs/howto/watchdogs.md).',
        json_schema_extra={"unit": "rules"},
        max_length=MOST_RULES,
        strict=False,
    )
    max_rollbacks: int = knob(
        3, "rollbacks", "Rollbacks by rules that may take back the same step; where a rule asks for one more, at_limit says.",
        ge=0, le=1000,
    )  # fmt: skip
    at_limit: Literal["fail", "pause"] = knob(
        "fail",
        "name",
        "What a rule does that may not, or cannot, roll back: end the run with an error and no further checkpoint, or pause it.",
    )

    @field_validator("rules")
    @classmethod
    def _check_rules(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            parse_rule(text)
        if double := next((text for text in texts if texts.count(text) > 1), None):
            raise ValueError(f"must name each rule once, got {double!r} {texts.count(double)} times")
        return texts

    def parsed(self) -> list[WatchRule]:
        """Return the rules."""
        return [parse_rule(text) for text in self.rules]
