"""``--patience N``, and what a run on files of one's own starts from: several passes, until a validation slice gets no better."""

from __future__ import annotations

import argparse
import os

from adaptive_rec.cli.parser import whole_number
from adaptive_rec.config.tree import given_keys, load_config

PATIENCE = 3
"""Evaluations without a better one after which a run on files of one's own stops."""
MOST_PASSES = 20
"""Passes over the training data at the most, where evaluations decide when a run stops."""
EVALUATIONS = 2
"""Evaluations of each pass."""
MOST_PATIENCE = 1 << 30
SAMPLES_AND_TIMES = frozenset({"eval.mode", "eval.every_steps", "eval.count"})
"""Settings of `eval` that say which samples are scored when: who names one on files of their own gets no more than was named."""


def stopping_settings(args: argparse.Namespace, config: str | None, settings: list[str]) -> list[str]:
    """Return the settings that --patience stands for, and those that a run on files of one's own starts from: settings that the
    user gave, in CONFIG, the environment or `settings`, stay as they are."""
    patience = None if args.patience is None else whole_number("--patience", args.patience, 0, MOST_PATIENCE)
    if args.patience is None and not starts_on_own_files(args):
        return []
    if patience is not None and (args.resume or args.replay):
        return [f"eval.patience={patience}"]
    given = given_keys(config, os.environ, settings)
    if patience is None and given & {"run.steps", "data.epochs", *SAMPLES_AND_TIMES}:
        return []
    data = load_config(config, os.environ, [*settings, "eval.patience=0"]).data
    if patience is None and (data.follow or data.order == "time"):
        return []
    found: dict[str, int | str] = {"eval.patience": PATIENCE if patience is None else patience}
    if patience is None and "eval.patience" in given:
        if not load_config(config, os.environ, [*settings, "eval.mode=validation"]).eval.patience:
            return []
        del found["eval.patience"]
    if patience == 0 or data.follow:
        return _texts(found)
    if "eval.mode" not in given:
        found |= {"eval.mode": "validation"}
    if not given & {"eval.every_steps", "eval.count", "eval.per_epoch"}:
        found |= {"eval.per_epoch": EVALUATIONS}
    if "data.epochs" not in given and data.order != "time":
        found |= {"data.epochs": MOST_PASSES}
    return _texts(found)


def _texts(found: dict[str, int | str]) -> list[str]:
    return [f"{key}={value}" for key, value in found.items()]


def starts_on_own_files(args: argparse.Namespace) -> bool:
    """Return whether a command line begins a run on files of the user's own, with no configuration of theirs."""
    named = args.label is not None or args.schema is not None
    return named and not (args.config or args.resume or args.replay)
