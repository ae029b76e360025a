"""A schema as the text of a TOML file, with remarks for the person who edits it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from adaptive_rec.config.knobs import Frozen
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.schema_columns import DenseColumn


def schema_toml(
    schema: Schema,
    remarks: Mapping[str, str] | None = None,
    unused: Mapping[str, str] | None = None,
    proposed: Sequence[DenseColumn] = (),
) -> str:
    """Write a schema as TOML, to be edited.

    `remarks` explain columns that are used, `unused` those that are not; they are comments, and so are dense columns that are
    `proposed`.
    """
    remarks = remarks or {}
    lines = [f"label = {toml(schema.label)}", ""] if schema.label else ["# every row has label 1", ""]
    for kind, columns in (("dense", schema.dense), ("sparse", schema.sparse)):
        if not columns:
            continue
        lines.append(f"{kind} = [")
        for column in columns:
            remark = remarks.get(column.column, "")
            lines.append(f"  {toml(_without_defaults(column))}," + (f"  # {schema_comment(remark)}" if remark else ""))
        lines += ["]", ""]
    if schema.min_count > 1:
        lines += [
            f"min_count = {schema.min_count}  # values that occur less often share one row, which unknown values read too",
            "",
        ]
    if schema.time.column:
        lines += [f"time = {toml(_without_defaults(schema.time))}", ""]
    if schema.weight:
        lines += [f"weight = {toml(schema.weight)}", ""]
    if schema.class_weight:
        lines += [f"class_weight = {toml(schema.class_weight)}", ""]
    if schema.group.column:
        lines += [f"group = {toml(_without_defaults(schema.group))}", ""]
    if unused:
        lines.append("# Columns that are not used:")
        lines += [f"#   {schema_comment(column)}: {schema_comment(why)}" for column, why in unused.items()]
        lines.append("")
    if proposed:
        lines.append("# Times as numbers, for days and weeks that recur; put these lines into dense = [...], above min_count:")
        lines += [f"#   {toml(_without_defaults(column))}," for column in proposed]
        lines.append("")
    if schema.implicit is not None:
        lines += ["[implicit]", *(f"{name} = {toml(value)}" for name, value in schema.implicit if value), ""]
    written = _without_defaults(schema.file)
    if isinstance(written, dict) and written:
        lines += ["[file]", *(f"{name} = {toml(value)}" for name, value in written.items()), ""]
    return "\n".join(lines)


def _without_defaults(part: Frozen) -> Any:
    values = part.model_dump(exclude_defaults=True)
    return values["column"] if list(values) == ["column"] else values


def toml(value: Any) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's only further rule for texts
    return repr(value)


def schema_comment(text: str) -> str:
    """Return a text without characters that end a comment or that TOML forbids in one."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
