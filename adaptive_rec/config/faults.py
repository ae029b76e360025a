"""Broken rules of settings and files in the project's words: pydantic finds them, and its own sentences reach no user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

RULES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "byte_size": "must be a size such as 64MiB",
    "bytes_type": "must be bytes",
    "dict_type": "must be a section with keys",
    "extra_forbidden": "is not a known key",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_type": "must be a whole number",
    "json_invalid": "must be JSON",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "mapping_type": "must be a section with keys",
    "missing": "must be given",
    "model_attributes_type": "must be a section with keys",
    "model_type": "must be a section with keys",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a text",
    "string_unicode": "must be text in UTF-8",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "tuple_type": "must be a list",
}
"""The sentence of each kind of fault, with its limits."""

BRANCH = re.compile(r"constrained|literal\[|(float|bool|int|str)$|function")
"""Parts of a location that name a branch of a union or a check."""

WITHOUT_VALUE = ("missing",)
"""Kinds of faults that have no value of their own: pydantic shows all that stands beside the missing one."""


def rule_broken_by(fault: Mapping[str, Any]) -> str:
    """Return the rule that a fault breaks, without the value."""
    if fault["type"] in RULES:
        limits = fault.get("ctx", {}).items()
        return RULES[fault["type"]].format(**{name: _short(limit) for name, limit in limits})
    return re.sub(r"^(Input|String|List|Tuple|Dictionary|Value) should ", "must ", fault["msg"].removeprefix("Value error, "))


def _short(limit: Any) -> Any:
    """Return a limit without needless decimals: 1.0 is 1."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


MOST_SHOWN = 40
"""Characters of a value that a sentence shows."""


def rule_and_value(fault: Mapping[str, Any]) -> str:
    """Return the rule that a fault breaks with the value; our own rules contain it."""
    if fault["type"] in ("value_error", *WITHOUT_VALUE):
        return rule_broken_by(fault)
    return f"{rule_broken_by(fault)}, got {value_in_sentence(fault['input'])}"


def value_in_sentence(value: Any) -> str:
    """Return a value as it stands in a sentence: the start of one that is long, such as all of a file that is no JSON."""
    if isinstance(value, str | bytes) and len(value) > MOST_SHOWN:
        return f"{value[:MOST_SHOWN]!r} ..."
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of lists in one another
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= 2 * MOST_SHOWN else f"{text[:2 * MOST_SHOWN]} ..."


def describe_faults(error: ValidationError, prefix: str = "") -> str:
    """Return a validation error as lines of name, rule and value."""
    lines = [f"{prefix}{key}{joint}{rule}" if key or joint == " " else rule for key, joint, rule in faults(error)]
    return "\n".join(dict.fromkeys(lines))


def faults(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    """Yield key, separator and rule of each fault."""
    for fault in error.errors(include_url=False):
        # keys of ours never look like branches
        path = [str(part) for part in fault["loc"] if not BRANCH.match(str(part))]
        yield ".".join(path), ": " if fault["type"] == "value_error" else " ", rule_and_value(fault)
