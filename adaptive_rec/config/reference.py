"""The written reference of all keys: `python -m adaptive_rec.config.reference > configs/base.toml`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from functools import reduce
from typing import Any, get_args

from adaptive_rec.config.tree import Config, leaves

WIDTH = 110
MIB = 1 << 20

HEADER = """\
# Every key of the configuration with its default, its unit and its purpose.
# Generated from the code by `python -m adaptive_rec.config.reference > configs/base.toml`; a test keeps the two the same.
#
# Layers, the later wins: these defaults < a preset or TOML file < environment variables such as ADAPTIVE_REC_RUN__STEPS
# < flags and `--set section.key=value`. Sizes in bytes may be written as "256MiB".
# Keys under [knobs] are starting values: they may change during a run. All others are fixed for it.
"""

LIMITS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


RESOLVED = """\
# A configuration as it was resolved: every key with its value, its unit and its purpose. Train with it: adaptive-rec train FILE
"""


def render_base() -> str:
    """Return the text of ``base.toml``."""
    return render(Config(), HEADER)


def render(config: Config, header: str = RESOLVED) -> str:
    """Return a configuration as TOML with a comment for each key: all sections and keys in the order of the models."""
    lines, section = [header.rstrip()], ""
    for key, field in leaves(Config):
        parent, _, name = key.rpartition(".")
        if parent != section:
            lines += ["", f"[{parent}]"]
            section = parent
        value = reduce(getattr, key.split("."), config)
        lines += ["", *key_comment(field), f"{name} = {toml_value(value, key_unit(field))}"]
    return "\n".join(lines) + "\n"


def key_comment(field: Any) -> list[str]:
    """Return the purpose of a key, its unit and its limits, as comment lines."""
    allowed = [f"one of {', '.join(choices(field))}"] if choices(field) else []
    notes = ", ".join([key_unit(field), *allowed, *_limits(field)])
    return textwrap.wrap(f"{field.description} ({notes})", WIDTH, initial_indent="# ", subsequent_indent="# ")


def key_unit(field: Any) -> str:
    """Return the unit of a key's value."""
    return str((field.json_schema_extra or {}).get("unit", ""))


def _limits(field: Any) -> Iterator[str]:
    for rule in field.metadata:
        for attribute, text in LIMITS.items():
            if getattr(rule, attribute, None) is not None:
                yield text.format(getattr(rule, attribute))


def toml_value(value: Any, unit: str = "") -> str:
    """Return a value as TOML: whole mebibytes as text, lists wrapped."""
    if unit == "bytes" and value and value % MIB == 0:
        return f'"{value // MIB}MiB"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(str(name))} = {toml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        text = ", ".join(toml_value(item) for item in value)
        if len(text) <= WIDTH - 20:
            return f"[{text}]"
        return "[\n" + textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ") + ",\n]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def choices(field: Any) -> tuple[Any, ...]:
    """Return the allowed values of a Literal field, or an empty tuple."""
    return tuple(a for a in get_args(field.annotation) if isinstance(a, str))


if __name__ == "__main__":
    print(render_base(), end="")
