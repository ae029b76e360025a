"""A run's configuration, key by key, from its `config.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from adaptive_rec.service.hello import Values
from adaptive_rec.service.problems import ProblemError
from adaptive_rec.system.regular_files import open_regular

MOST_BYTES = 1 << 20
UNKNOWN = "Not a key of this version."


def config_keys(run: Path) -> list[Values]:
    """Return every key with its value, default, unit and purpose, in the order of the reference; keys that this version does not
    know come last. Raises a problem where the file cannot be read."""
    from adaptive_rec.config.reference import key_unit
    from adaptive_rec.config.tree import Config, leaves

    values, defaults = flat(_read(run / "config.toml")), Config().model_dump(mode="json")
    found = []
    for key, field in leaves(Config):
        value, default = _of(values, key), _at(defaults, key)
        changed = value is not None and value != default
        found.append(_key_entry(key, value, default, changed, key_unit(field), field.description or ""))
    known = {each["key"] for each in found}
    strange = [key for key in values if not any(key == name or key.startswith(f"{name}.") for name in known)]
    return [*found, *(_key_entry(key, values[key], None, True, "", UNKNOWN) for key in strange)]


def _key_entry(key: str, value: Any, default: Any, changed: bool, unit: str, why: str) -> Values:
    return {"key": key, "value": value, "default": default, "changed": changed, "unit": unit, "why": why}


def _read(path: Path) -> Values:
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ProblemError(404, f"config.toml must have at most {MOST_BYTES} bytes, it has more")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ProblemError(404, f"config.toml cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ProblemError(404, f"config.toml must be TOML: {str(error)[:200]}") from None


def flat(tree: Values, prefix: str = "") -> Values:
    """Return the values of a tree by their dotted keys."""
    found: Values = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        found |= flat(value, f"{key}.") if value and isinstance(value, dict) else {key: value}
    return found


def _of(values: Values, key: str) -> Any:
    """Return the value of a key; that of a key which is a table itself, such as options by name, as a table."""
    inner = {name.removeprefix(f"{key}."): value for name, value in values.items() if name.startswith(f"{key}.")}
    return inner or values.get(key)


def _at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree
