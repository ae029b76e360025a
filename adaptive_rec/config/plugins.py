"""Finds a user's class by its name: a built-in name, an entry point, or ``package.module:Class``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from adaptive_rec.config.trust import TRUST
from adaptive_rec.errors import ConfigError, did_you_mean


def find_plugin(key: str, name: str, built_in: Mapping[str, str], group: str) -> Any:
    """Return the class that `name` stands for. Raises ConfigError, also where it may not be imported.

    `key` is the setting that holds the name, `built_in` maps names to ``package.module:Class``, `group` is that of entry points.
    """
    TRUST.check(key, name)
    place = built_in.get(name, name)
    try:
        if ":" in place:
            return TRUST.load(place)
        points = {point.name: point for point in entry_points(group=group)}
        if name in points:
            return points[name].load()
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(f"{key} {name} cannot be loaded: {type(error).__name__}: {error}") from error
    known = (*built_in, *points)
    raise ConfigError(
        f"{key} must be one of {', '.join(known)} or package.module:Class, got {name!r}{did_you_mean(name, known)}"
    )
