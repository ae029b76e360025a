"""Rules of the watchdog as text: what each means, and what a wrong one is told."""

from __future__ import annotations

import dataclasses
import re

import pytest

from adaptive_rec.config.tree import load_config, to_toml
from adaptive_rec.config.watch_rule import (
    ACTIONS,
    DISK_FREE,
    EVALUATION_METRICS,
    REPORT_METRICS,
    RuleKnob,
    WatchRule,
    parse_rule,
)
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Quality
from adaptive_rec.service.metric_families import WATCHDOG_ACTIONS
from adaptive_rec.service.metric_history import COLUMNS, TRAFFIC

RULES = {
    "loss is nan: rollback": {"metric": "loss", "comparison": "is nan", "action": "rollback"},
    "loss>3x its mean for 2 reports:rollback skipping data with lr_factor*=0.5,clip_norm=1": {
        "metric": "loss", "comparison": "> mean", "value": 3.0, "mean_of": 10, "lasts": 2, "action": "rollback",
        "skips_data": True, "knobs": (RuleKnob("lr_factor", 0.5, multiplies=True), RuleKnob("clip_norm", 1.0)),
    },
    "samples_per_second < 1e3 for 2 windows: warn": {
        "metric": "samples_per_second", "comparison": "<", "value": 1000.0, "lasts": 2, "unit": "windows", "action": "warn",
    },
    "auc falls 0.01 below its best for 3 evaluations: pause": {
        "metric": "auc", "comparison": "falls below best", "value": 0.01, "lasts": 3, "unit": "evaluations", "action": "pause",
    },
    "logloss rises .02 above its best: stop": {
        "metric": "logloss", "comparison": "rises above best", "value": 0.02, "unit": "evaluations", "action": "stop",
    },
    "hot_lookup_ratio > 2x its mean of 50: checkpoint": {
        "metric": "hot_lookup_ratio", "comparison": "> mean", "value": 2.0, "mean_of": 50, "action": "checkpoint",
    },
    "disk_free < 5GiB: warn": {"metric": "disk_free", "comparison": "<", "value": 5.0 * 2**30, "action": "warn"},
    "loss > 3: rollback with hot_budget_bytes=4MiB": {
        "metric": "loss", "comparison": ">", "value": 3.0, "action": "rollback", "knobs": (RuleKnob("hot_budget_bytes", "4MiB"),),
    },
}  # fmt: skip

WRONG = {
    "loss is nan": "a rule must be `METRIC CONDITION",
    "los is nan: warn": "metric must be one of loss, .* got 'los' .*did you mean loss",
    "loss is nan for 2 reports: warn": "must be without `for`",
    "loss >= 3: warn": "compared with must be a finite number, got '= 3'",
    "loss is high: warn": "condition must be `is nan`, .* got 'is high'",
    "loss > inf: warn": "must be a finite number, got 'inf'",
    "disk_free < lots: warn": "must be a size such as 5GiB, got 'lots'",
    "auc falls 0 below its best: warn": "must be above 0, got 0",
    "loss > 2x its mean of 0: warn": "a mean must be of 1 to 1000 values",
    "auc < 0.7 for 2 reports: warn": "`for` must count evaluations or windows",
    "loss > 3 for 0 reports: warn": "a number from 1 to 1000",
    "loss > 3 for ever: warn": "a number from 1 to 1000",
    "loss > 3: explode": "action must be one of warn, pause, .* got 'explode'",
    "loss > 3: pause skipping data": "no options but those of rollback",
    "loss > 3: rollback skipping": "no options but those of rollback",
    "loss > 3: rollback with lr_facto*=0.5": "unknown knob lr_facto; did you mean lr_factor",
    "loss > 3: rollback with lr_factor=2 for 0 steps": "`for N steps`, 1 or more, or until the end, got `for 0 steps`",
    "loss > 3: rollback with lr_factor=2 for 3 reports": "`for N steps`, 1 or more, or until the end, got `for 3 reports`",
    "loss > 3: rollback with lr_factor=11": "lr_factor must be at most 10, got 11",
    "loss > 3: rollback with lr_factor*=0": "factor of lr_factor must be a number above 0, got '0'",
    "loss > 3: rollback with policy*=2": "must be a number, policy is not",
    "loss > 3: rollback with lr_factor*=1e308, report_every*=1e308": r"report_every must stay a finite number, got 20 \* 1e\+308",
    "loss > 3: rollback with clip_norm=1, clip_norm=2": "must change each knob once",
    "loss > 3: " + "x" * 500: "at most 500 characters",
}


@pytest.mark.parametrize("text", RULES)
def test_a_rule_means_what_it_says(text: str) -> None:
    found, expected = parse_rule(text), RULES[text]
    ordinary = WatchRule(text, "", "<")
    for field in dataclasses.fields(WatchRule):
        if field.name not in ("text", "value") or field.name in expected:
            assert getattr(found, field.name) == expected.get(field.name, getattr(ordinary, field.name)), field.name


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_rule_is_refused_by_name_rule_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"watch\.rules.*" + WRONG[text]) as found:
        load_config(None, {}, [f"watch.rules={[text]}"])
    assert len(text) > 500 or re.escape(repr(text)) in re.escape(str(found.value))


def test_a_list_of_rules_survives_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = load_config(None, {}, [f"watch.rules={list(RULES)}", "watch.max_rollbacks=1"])
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(str(tmp_path / "config.toml"), {}).watch == config.watch
    with pytest.raises(ConfigError, match=r"must name each rule once, got 'loss is nan: warn' 2 times"):
        load_config(None, {}, ["watch.rules=['loss is nan: warn', 'loss is nan: warn']"])


def test_a_factor_multiplies_the_knob_in_effect() -> None:
    knobs = load_config(None, {}, ["knobs.lr_factor=0.8", "knobs.report_every=15"]).knobs
    (lr, every) = parse_rule("loss > 3: rollback with lr_factor*=0.5, report_every*=0.5").knobs
    assert (lr.of(knobs), every.of(knobs)) == (0.4, 8)
    (decay,) = parse_rule("loss > 3: rollback with decay*=0.5").knobs
    with pytest.raises(ConfigError, match="knobs.decay must be a number to be multiplied by 0.5, it is auto"):
        decay.of(knobs.changed({"decay": "auto"}))


def test_metrics_and_actions_are_those_of_the_api() -> None:
    assert {*REPORT_METRICS} == {*COLUMNS} - {"step", "seconds", *TRAFFIC}
    assert {*EVALUATION_METRICS} == {field.name for field in dataclasses.fields(Quality)} - {"samples", "ranking"}
    assert DISK_FREE not in COLUMNS
    assert {*WATCHDOG_ACTIONS} == {*ACTIONS, "fail"}
