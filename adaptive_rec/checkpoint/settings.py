"""Settings that a run keeps when it is resumed: a checkpoint has them, and another value is refused. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.errors import CheckpointError

MOST_CHANGED = 5
"""Changed settings that an error names besides the first one."""

MAY_CHANGE = ("epochs", "follow_idle_seconds")
"""Keys of `data` that may be others: they say where the stream ends."""


def run_settings(config: Config) -> dict[str, Any]:
    """Return the settings that must not change when a run is resumed."""
    # Where the next window is scored, dense columns are scaled by the first batch.
    batch_size = {"run.batch_size": config.run.batch_size} if config.eval.mode == "next_window" else {}
    return {
        "embedding_optimizer": config.optimizer.embedding,
        "dense_optimizer": config.optimizer.dense,
        "precision": config.run.precision,
        "row_precision": config.run.row_precision,
        "seed": config.run.seed,
        "data": config.data.model_dump(mode="json"),
        "eval.mode": config.eval.mode,
        **batch_size,
        **({"eval.validation_ratio": config.eval.validation_ratio} if config.eval.validates else {}),
    }


def check_saved_settings(expected: Mapping[str, Any], found: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise CheckpointError where the settings of a run, `expected`, are not those that a checkpoint was `found` with."""
    # The reader's position is valid only on the same stream; where it ends may change. Other data has other tables.
    data = {key: value for key, value in expected["data"].items() if key not in MAY_CHANGE}
    saved = found.get("data")
    if isinstance(saved, dict):  # settings that older versions did not have
        saved = {**DataConfig().model_dump(mode="json"), **saved}
    found = {"eval.mode": "held_out", **found}
    changed = [*_changed("data", saved, data)]
    rest = ((key, value) for key, value in expected.items() if key != "data")
    _check_none(changed or [each for key, value in rest for each in _changed(key, found.get(key), value)], checkpoint)


def check_model(before: Config, after: Config, checkpoint: Path) -> None:
    """Raise CheckpointError where a run is to go on from a checkpoint with another model than it has had."""
    _check_none(list(_changed("model", before.model.model_dump(mode="json"), after.model.model_dump(mode="json"))), checkpoint)


def _check_none(changed: list[tuple[str, str]], checkpoint: Path) -> None:
    """Raise CheckpointError with the settings that have changed."""
    if changed:
        (name, rule), *others = changed
        more = "".join(f"; {name} {rule}" for name, rule in others[:MOST_CHANGED])
        left = f"; and {len(others) - MOST_CHANGED} more" if len(others) > MOST_CHANGED else ""
        raise CheckpointError(f"{name} of checkpoint {checkpoint} {rule}{more}{left}", faq="other-settings")


def _changed(name: str, was: Any, now: Any) -> Iterator[tuple[str, str]]:
    """Yield the settings that differ from the saved ones, each with a rule that has both values."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key, value in now.items():
            yield from _changed(f"{name}.{key}", was.get(key), value)
    elif _is_list_of_parts(was) and _is_list_of_parts(now) and len(was) == len(now):
        for one, other in zip(was, now, strict=True):
            yield from _changed(f"{name}.{one.get('name')}", one, other)
    elif was != now:
        yield name, f"must be {_brief(was)}, got {_brief(now)}"


def _is_list_of_parts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _brief(value: Any) -> str:
    if _is_list_of_parts(value):
        return f"{len(value)} of them"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:70]} ... {text[-25:]}"
