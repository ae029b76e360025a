"""Rules of the watchdog as text: `loss > 3x its mean for 2 reports: rollback skipping data with lr_factor*=0.5`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from adaptive_rec.config.knobs import WHOLE_NUMBERS, Knobs
from adaptive_rec.config.metrics import BY_SAMPLE, RANKING_NAMES, is_ranking_metric
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.units import parse_size

REPORT_METRICS = (
    "loss",
    "samples_per_second",
    "hot_lookup_ratio",
    "popular_sample_ratio",
    "skipped_sample_ratio",
    "skipped_row_update_ratio",
    "hot_rows",
    "stale_rows",
    "stale_threshold",
    "stale_agreement",
    "dense_lr",
    "embedding_lr",
)
"""Metrics of a report, by their names in metrics.jsonl; a rule may also watch `DISK_FREE`, which is read at each report."""
EVALUATION_METRICS = tuple(metric.name for metric in BY_SAMPLE)
"""Metrics of each evaluation; a rule may also watch those of `eval.metrics`."""
DISK_FREE = "disk_free"
"""Free bytes of the disk under the run's directory or under `run.disk`, whichever has fewer."""

Comparison = Literal["is nan", "<", ">", "falls below best", "rises above best", "> mean"]
Unit = Literal["reports", "windows", "evaluations"]
WatchAction = Literal["warn", "pause", "checkpoint", "rollback", "stop"]
ACTIONS: tuple[WatchAction, ...] = ("warn", "pause", "checkpoint", "rollback", "stop")

MEAN_OF = 10
"""Reports or evaluations in a mean, where a rule does not say how many."""
MOST_REPORTS = 1000
LONGEST_RULE = 500

SHAPE = "METRIC CONDITION [for N reports|windows|evaluations]: ACTION"
CONDITIONS = (
    "`is nan`, `< V`, `> V`, `falls V below its best`, `rises V above its best` or `> Vx its mean [of N]`, and may end in "
    "`for N reports`, `for N windows` or `for N evaluations`"
)
NUMBER = r"([^\s:]+)"
PATTERNS: tuple[tuple[str, Comparison], ...] = (
    (r"is nan", "is nan"),
    (rf"falls\s+{NUMBER}\s+below\s+its\s+best", "falls below best"),
    (rf"rises\s+{NUMBER}\s+above\s+its\s+best", "rises above best"),
    (r">\s*([^\sx:]+)\s*x\s+its\s+mean(?:\s+of\s+(\d+))?", "> mean"),
    (r"<\s*(\S.*)", "<"),
    (r">\s*(\S.*)", ">"),
)


@dataclass(frozen=True)
class RuleKnob:
    """A knob that a rule changes as the run goes on from a checkpoint."""

    name: str
    value: Any
    """The new value, or the factor."""
    multiplies: bool = False

    def of(self, knobs: Knobs) -> Any:
        """Return the knob's new value, from those in effect. Raises ConfigError where these cannot be multiplied."""
        if not self.multiplies:
            return self.value
        before = getattr(knobs, self.name)
        if isinstance(before, str):
            raise ConfigError(f"knobs.{self.name} must be a number to be multiplied by {self.value:g}, it is {before}")
        value = before * self.value
        if not math.isfinite(value):
            raise ConfigError(f"knobs.{self.name} must stay a finite number, got {before} * {self.value:g}")
        return round(value) if self.name in WHOLE_NUMBERS else value


@dataclass(frozen=True)
class WatchRule:
    """What a run is watched for, and what happens then."""

    text: str
    metric: str
    comparison: Comparison
    value: float = math.nan
    mean_of: int = MEAN_OF
    lasts: int = 1
    """Reports, windows or evaluations in a row for which the condition must hold."""
    unit: Unit = "reports"
    action: WatchAction = "warn"
    skips_data: bool = False
    """Whether a rollback leaves out the samples of the steps that it takes back."""
    knobs: tuple[RuleKnob, ...] = ()
    knobs_steps: int = 0
    """Steps after which they are what they were before; 0: they stay."""

    @property
    def of_steps(self) -> bool:
        """Whether each step is watched, not reports: this is `loss is nan`."""
        return self.metric == "loss" and self.comparison == "is nan"

    @property
    def of_evaluations(self) -> bool:
        """Whether its metric is one of evaluations."""
        return is_of_evaluations(self.metric)


def is_of_evaluations(metric: str) -> bool:
    """Whether a rule's metric is one of evaluations."""
    return metric in EVALUATION_METRICS or is_ranking_metric(metric)


def parse_rule(text: str) -> WatchRule:
    """Read a rule. Raises ValueError, whose text says what a rule must be and what this one is."""
    if len(text) > LONGEST_RULE:
        raise ValueError(f"a rule must have at most {LONGEST_RULE} characters, got {len(text)}")
    condition, colon, action = text.partition(":")
    words = re.fullmatch(r"\s*(\w+(?:@\w*)?)\s*(\S.*)", condition)
    if not colon or words is None:
        raise ValueError(f"a rule must be `{SHAPE}`, got {text!r}")
    metric, rest = words.groups()
    known = (*REPORT_METRICS, *EVALUATION_METRICS, DISK_FREE)
    if metric not in known and not is_ranking_metric(metric):
        hint = did_you_mean(metric, known)
        names = f"{', '.join(known)}, {RANKING_NAMES}"
        raise ValueError(f"a rule's metric must be one of {names}, got {metric!r} in {text!r}{hint}")
    rest, lasts, unit = _duration(rest.strip(), metric, text)
    comparison, value, mean_of = _comparison(rest, metric, text)
    rule = WatchRule(text, metric, comparison, value, mean_of, lasts, unit, *_action(action.strip(), text))
    if rule.of_steps and lasts > 1:
        raise ValueError(f"`loss is nan` must be without `for`, as it is checked in each step, got {text!r}")
    return rule


def _duration(rest: str, metric: str, text: str) -> tuple[str, int, Unit]:
    """Return a condition without its `for N UNIT`, and these."""
    own: Unit = "evaluations" if is_of_evaluations(metric) else "reports"
    found = re.fullmatch(r"(.*\S)\s+for\s+(.*)", rest)
    if found is None:
        return rest, 1, own
    counted = re.fullmatch(r"(\d+)\s+(report|window|evaluation)s?", found[2].strip())
    if counted is None or not 1 <= int(counted[1]) <= MOST_REPORTS:
        raise ValueError(
            f"`for` must be followed by a number from 1 to {MOST_REPORTS} and reports, windows or evaluations, got {text!r}"
        )
    unit: Unit = {"report": "reports", "window": "windows", "evaluation": "evaluations"}[counted[2]]  # type: ignore[assignment]
    if unit not in (own, "windows"):
        raise ValueError(f"`for` must count {own} or windows where the metric is {metric}, got {text!r}")
    return found[1], int(counted[1]), unit


def _comparison(rest: str, metric: str, text: str) -> tuple[Comparison, float, int]:
    for pattern, comparison in PATTERNS:
        found = re.fullmatch(pattern, rest)
        if found is None:
            continue
        if comparison == "is nan":
            return comparison, math.nan, MEAN_OF
        value = _number(found[1], metric, text)
        mean_of = int(found[2] or MEAN_OF) if comparison == "> mean" else MEAN_OF
        if not 1 <= mean_of <= MOST_REPORTS:
            raise ValueError(f"a mean must be of 1 to {MOST_REPORTS} values, got {text!r}")
        if comparison not in ("<", ">") and value <= 0:
            raise ValueError(
                f"the number in a condition on a best or a mean must be above 0, got {found[1]} in {text!r}"
            )
        return comparison, value, mean_of
    raise ValueError(f"a rule's condition must be {CONDITIONS}, got {rest!r} in {text!r}")


def _number(word: str, metric: str, text: str) -> float:
    """Read a number, or of `disk_free` a size."""
    what = "a size such as 5GiB" if metric == DISK_FREE else "a finite number"
    try:
        value = float(parse_size(word)) if metric == DISK_FREE else float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"the value that {metric} is compared with must be {what}, got {word!r} in {text!r}")
    return value


def _action(words: str, text: str) -> tuple[WatchAction, bool, tuple[RuleKnob, ...], int]:
    """Return an action, whether data is skipped, and the knobs that are changed, with the steps for which they are."""
    name, _, options = words.partition(" ")
    if name not in ACTIONS:
        raise ValueError(f"a rule's action must be one of {', '.join(ACTIONS)}, got {name!r} in {text!r}")
    found = re.fullmatch(r"\s*(skipping\s+data)?\s*(?:(?:\s|^)with\s+(\S.*?)(?:\s+for\s+(.*))?)?", options)
    if found is None or (options.strip() and name != "rollback"):
        raise ValueError(
            f"an action must have no options but those of rollback: `skipping data` and `with KNOB=VALUE, KNOB*=FACTOR "
            f"[for N steps]`, got {options.strip()!r} in {text!r}"
        )
    steps = re.fullmatch(r"(\d{1,12})\s+steps?", found[3].strip()) if found[3] is not None else None
    if found[3] is not None and (steps is None or int(steps[1]) == 0):
        raise ValueError(
            f"knobs must be changed `for N steps`, 1 or more, or until the end, got `for {found[3]}` in {text!r}"
        )
    return name, bool(found[1]), _knobs(found[2], text) if found[2] else (), int(steps[1]) if steps else 0


def _knobs(words: str, text: str) -> tuple[RuleKnob, ...]:
    changes = [_knob(each.strip(), text) for each in words.split(",")]
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise ValueError(f"a rule must change each knob once, got {text!r}")
    try:
        Knobs().changed({change.name: change.of(Knobs()) for change in changes})
    except ConfigError as error:
        raise ValueError(f"{error}, in {text!r}") from None
    return tuple(changes)


def _knob(words: str, text: str) -> RuleKnob:
    found = re.fullmatch(r"(\w+)\s*(\*?=)\s*(\S+)", words)
    if found is None:
        raise ValueError(f"a knob must be changed by KNOB=VALUE or KNOB*=FACTOR, got {words!r} in {text!r}")
    name, multiplies = found[1], found[2] == "*="
    if name not in Knobs.model_fields:
        raise ValueError(f"unknown knob {name}{did_you_mean(name, Knobs.model_fields)}, in {text!r}")
    if not multiplies:
        return RuleKnob(name, _literal(found[3], name))
    default = getattr(Knobs(), name)
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise ValueError(f"a knob that is multiplied must be a number, {name} is not, in {text!r}")
    try:
        factor = float(found[3])
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"the factor of {name} must be a number above 0, got {found[3]!r} in {text!r}")
    return RuleKnob(name, factor, multiplies=True)


def _literal(word: str, name: str) -> Any:
    """Read a number; other values stay text, such as a size, for the knob's own rules."""
    for kind in (int, float) if name in WHOLE_NUMBERS else (float, int):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
