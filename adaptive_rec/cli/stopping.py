"""``--patience N``, and what a run on prepared files of one's own starts from by their size."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from adaptive_rec.cli.parser import preset_for, whole_number
from adaptive_rec.config.tree import given_keys, load_config

MOST_PASSES = 20
"""Passes over the training data at the most, where evaluations decide when a run stops."""
EVALUATIONS = 2
"""Evaluations of each pass."""
SMALL_ROWS = range(1 << 12, 1 << 15)
"""Numbers of training rows for which one pass is too short, and two are not too many (measured: docs/measurements.md,
"Defaults of files of one's own")."""
LEAST_PER_ROW = 2
"""Training rows for each row of the tables with which a second pass helps; with fewer, it fits rows that were looked up a few
times to their few samples."""
FOR_FEWEST = {"optimizer.eps": 1e-8}
"""With fewer rows than that, a run is so short that first steps must be long."""
FOR_SMALL = {"data.epochs": 2, "optimizer.embedding_lr": 0.05}
MOST_PATIENCE = 1 << 30


def stopping_settings(args: argparse.Namespace, config: str | None, settings: list[str]) -> list[str]:
    """Return the settings that --patience stands for, and those that a run on files of one's own starts from by their size:
    settings that the user gave, in CONFIG, the environment or `settings`, stay as they are."""
    given = given_keys(config, os.environ, settings)
    by_size = {key: value for key, value in settings_by_size(args, settings).items() if key not in given}
    if args.patience is None:
        if given & {"run.steps", "data.order"} or _scores_what_comes_next(config, given, settings):
            by_size.pop("data.epochs", None)
        return _texts(by_size)
    by_size.pop("data.epochs", None)
    return [*_texts(by_size), *_texts(_patience(args, config, given, settings))]


def _patience(args: argparse.Namespace, config: str | None, given: set[str], settings: list[str]) -> dict[str, int | str]:
    """Return the settings that --patience stands for."""
    patience = whole_number("--patience", args.patience, 0, MOST_PATIENCE)
    if args.resume or args.replay:
        return {"eval.patience": patience}
    resolved = load_config(config, os.environ, settings)
    data = resolved.data
    found: dict[str, int | str] = {"eval.patience": patience}
    if patience == 0 or data.follow:
        return found
    if "eval.mode" not in given:
        found |= {"eval.mode": "validation"}
    validates = "eval.mode" not in given or resolved.eval.validates
    if validates and "eval.train_slice" not in given and not data.implicit.negatives:
        found |= {"eval.train_slice": "true"}
    next_window = _scores_what_comes_next(config, given, settings)
    if not next_window and not given & {"eval.every_steps", "eval.count", "eval.per_epoch"}:
        found |= {"eval.per_epoch": EVALUATIONS}
    if not next_window and "data.epochs" not in given and data.order != "time":
        found |= {"data.epochs": MOST_PASSES}
    return found


def _scores_what_comes_next(config: str | None, given: set[str], settings: list[str]) -> bool:
    """Return whether evaluations are of the next window of the stream, which has one pass."""
    return "eval.mode" in given and load_config(config, os.environ, settings).eval.mode == "next_window"


def _texts(found: Mapping[str, int | float | str]) -> list[str]:
    return [f"{key}={value}" for key, value in found.items()]


def settings_by_size(args: argparse.Namespace, settings: list[str]) -> dict[str, int | float]:
    """Return what a run starts from on a folder that was prepared from few rows of files of the user's own, or would be, of
    `unprepared_rows` in the file and in its tables; nothing where the user gives a configuration."""
    from adaptive_rec.data.prepare.meta import load_meta
    from adaptive_rec.data.prepare.place import is_prepared

    if args.config or args.resume or args.replay or args.data is None:
        return {}
    if any(setting.startswith("data.implicit.negatives=") for setting in settings):  # the preset of positives alone has its own
        return {}
    found: tuple[int, int] | None = getattr(args, "unprepared_rows", None)
    if found is None:
        if preset_for(args.data) != "clicks_small" or not is_prepared(args.data):
            return {}
        meta = load_meta(Path(args.data))
        found = meta.rows, sum(table.rows for table in meta.tables)
    first, last = load_config("clicks_small", os.environ, settings).data.train_range
    rows = int(found[0] * (last - first))
    if rows in SMALL_ROWS:
        return FOR_SMALL if rows >= LEAST_PER_ROW * found[1] else {}
    return FOR_FEWEST if rows < SMALL_ROWS.start else {}
