"""A schema inferred from the first rows of a file. A person reads it, and may edit it, before or after the first run.

Names say most: a whole number called `user_id` is a category, one called `timestamp` is a time. Values decide the rest. Where
both
are possible, a whole number becomes a category: that costs rows in a table, while a category that is taken for a quantity says
nothing.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.split_facts import tells
from adaptive_rec.data.tabular.bags import is_text, lists_of
from adaptive_rec.data.tabular.column_kind import judge, judge_words
from adaptive_rec.data.tabular.first_rows import MOST_BAD_RATIO, STRICT, Reading, first_rows
from adaptive_rec.data.tabular.label import Label, parse_label
from adaptive_rec.data.tabular.number_kind import counted_values, second_kind
from adaptive_rec.data.tabular.sample import Judged, Sample, words_in_order
from adaptive_rec.data.tabular.schema import PLAIN_NAME, Schema, parse_schema
from adaptive_rec.data.tabular.schema_columns import CLOCKS, DenseColumn, ImplicitPart
from adaptive_rec.data.tabular.schema_file import FileSchema
from adaptive_rec.data.tabular.times import unit_of_column
from adaptive_rec.data.tabular.values import LARGEST, categories, label_numbers, numbers
from adaptive_rec.data.tabular.written_numbers import written_numbers
from adaptive_rec.errors import DataError, UsageError, did_you_mean

CHECKED_NUMBERS = 1000
MOST_WORDS = 20
"""With more values a column is no answer, of which one is the label."""
YES = frozenset("yes y positive pos click clicked buy".split())
"""Words for a label of 1."""
ANSWERS = frozenset("rating ratings star stars score review comment feedback label liked".split())
"""Last words of the names of columns that say what a user made of an item, in a log of positives alone."""
SHARED_BELOW = 2
"""`min_count` of an inferred schema: a value that occurs once says little, and the row that all of them share is read for values
that are unknown when the model is used (measured: docs/benchmarks.md, "A CSV file against logistic regression")."""


@dataclass
class Inferred:
    """A schema and the reasons for it."""

    schema: Schema
    remarks: dict[str, str]
    """Why a column is dense or sparse."""
    unused: dict[str, str]
    """Why a column is not used."""
    notes: list[str]
    proposed: list[DenseColumn] = field(default_factory=list)
    """Dense columns that a person may add: hours and weekdays of times."""
    samples: dict[str, Sample] = field(default_factory=dict)
    """The first values of each column."""

    def fits(self, schema: Schema) -> bool:
        """Whether a schema that was inferred before reads these first values too, and as lists and times what is one."""
        if any(column not in self.samples for column in schema.columns) or self.schema.time.unit != schema.time.unit:
            return False
        lists = {column.column for column in self.schema.sparse if column.separator or column.list}
        known = [("dense", column) for column in schema.dense] + [("sparse", column) for column in schema.sparse]
        return all(
            _is_read(self.samples[column.column], kind, column.model_dump(exclude_defaults=True)) for kind, column in known
        ) and all(column.separator or column.list or column.column not in lists for column in schema.sparse)


def infer(
    path: Path,
    label: str,
    reading: Reading = STRICT,
    others: Sequence[Path] = (),
    file: FileSchema | None = None,
    implicit: ImplicitPart | None = None,
) -> Inferred:
    """Infer the schema of a file, and of others that are read with it. `label` is a column or a comparison, `file` what is known
    of how they are written; `implicit`: every row is a positive, and there is no label. Raises UsageError for a label, or a
    column of items or users, that cannot be one."""
    paths, file = [path, *others], file or FileSchema()
    try:
        rows = first_rows(paths, file, reading)
    except DataError as error:
        if "must be in utf-8" not in str(error) or "UTF-16" in str(error):
            raise
        rows = first_rows(paths, file.model_copy(update={"encoding": "latin-1"}), reading)
        rows.notes.append(f"{path.name} is not in UTF-8: it is read as latin-1; change encoding in the schema if that is wrong")
    samples = {name: Sample.of(name, column) for name, column in rows.columns.items()}
    remarks: dict[str, str] = {}
    unused = dict(rows.unread)
    choice = check_choice(path, implicit, samples) if implicit else ()
    answer = "" if implicit else check_label(path, label, samples, MOST_BAD_RATIO if reading.skip_bad_rows else 0.0).column
    dense: list[dict[str, Any]] = []
    sparse: list[dict[str, Any]] = []
    for name in rows.columns:
        if name and name == answer:
            continue
        kind, column, why = _taken(samples[name]) if name else ("unused", {}, "it has no name")
        if name in choice:
            kind, column, why = _as_category(samples[name], kind, column, why)
        elif implicit and words_in_order(name.partition(":")[0])[-1] in ANSWERS:
            kind, why = "unused", "known only once the item was chosen, it seems; list it if it is known before"
        if name in rows.of_two_types:
            kind, column, why = _of_two_types(kind, column, why, rows.of_two_types[name])
        one_kind = kind == "unused" or name in choice or name in rows.of_two_types
        also = None if one_kind else second_kind(samples[name], kind, column)
        samples[name].forget_numbers()
        if kind == "unused":
            unused[name or '""'] = why
            continue
        remarks[name] = why
        (dense if kind == "dense" else sparse).append({"column": name, **column})
        if also and _is_read(samples[name], *also):
            (dense if also[0] == "dense" else sparse).append({"column": name, **also[1]})
    if not sparse:
        why = "; ".join(f"{name}: {text}" for name, text in (unused | remarks).items())
        beside = f" beside the label {label}" * bool(label)
        raise UsageError(
            f"{path} must have at least one column of categories{beside}; found {why or 'none'}; "
            "--schema FILE can name one that was not taken for a category",
            faq="no-categories",
        )
    give_names(sparse)
    settings = rows.file.model_dump(exclude_defaults=True)
    values = {"label": label, "dense": dense, "sparse": sparse, "min_count": SHARED_BELOW, "file": settings}
    if implicit is not None:
        values |= {"label": "", "min_count": 1, "implicit": implicit.model_dump()}
    schema = parse_schema(values, f"the schema of {path}")
    proposed = [clock for name, why in unused.items() if why.startswith("a time") for clock in _clocks(samples[name])]
    return Inferred(schema, remarks, unused, rows.notes, proposed, samples)


def _clocks(sample: Sample) -> list[DenseColumn]:
    """Return the dense columns that a column of times may become; none where the times are no times of a clock."""
    try:
        unit: Any = unit_of_column(sample.values)
    except DataError:
        return []
    return [DenseColumn(column=sample.name, transform=transform, unit=unit) for transform in CLOCKS]


def _taken(sample: Sample) -> Judged:
    """Return what a column is, as `judge` does, with settings by which the reader takes all its first values."""
    import pyarrow as pa

    kind, column, why = judge(sample)
    if kind == "unused" or _is_read(sample, kind, column):
        return kind, column, why
    text = {**column, "type": "text"}
    if kind == "sparse" and pa.types.is_string(sample.values.type) and _is_read(sample, kind, text):
        return judge_words(sample)
    return "unused", {}, f"{why}, but not all of its values can be read as such"


def _as_category(sample: Sample, kind: str, column: dict[str, Any], why: str) -> Judged:
    """Return the column of items or users as a category, whatever its name and its values look like."""
    if kind == "sparse" and not ("separator" in column or "list" in column):
        return kind, column, why
    found = f"{counted_values(sample.distinct)} in the first {sample.rows:,} rows"
    for settings in ({"type": "integer"}, {}, {"type": "text"}):
        if _is_read(sample, "sparse", settings):
            return "sparse", settings, found
    raise UsageError(f"--item and --user must be columns of single values, {sample.name} is not: {why}")


def check_choice(path: Path, implicit: ImplicitPart, samples: dict[str, Sample]) -> tuple[str, ...]:
    """Return the columns of items and users. Raises UsageError where there is no such column, or both are one."""
    named = {"--item": implicit.item, "--user": implicit.user}
    for option, column in named.items():
        if column and column not in samples:
            known, hint = ", ".join(samples), did_you_mean(column, samples)
            raise UsageError(
                f"{option} must be a column of {path}, got {column!r}; the first line names {known}{hint}", faq="label-column"
            )
    if implicit.item == implicit.user:
        raise UsageError(f"--user must be another column than --item, got {implicit.user!r} for both")
    return tuple(filter(None, named.values()))


def _is_read(sample: Sample, kind: str, column: dict[str, Any]) -> bool:
    """Return whether the reader takes all values of a column that is dense or sparse."""
    if kind == "dense":
        some = sample.unique.slice(0, CHECKED_NUMBERS)  # `judge` has read all of them already
        written = column.get("format")
        found = written_numbers(some, written) if written else numbers(some)
        return found is not None and not found.bad_B.any() and not bool((np.abs(found.values_B) > LARGEST).any())
    try:
        array, bad_U = lists_of(sample.unique, sample.name) if "list" in column else (sample.unique, np.zeros(0, dtype=bool))
        categories_found = categories(array, column.get("type", ""), column.get("separator", ""), sample.name)
    except DataError:
        return False
    return not (bad_U.any() or categories_found.bad_N.any())


def _of_two_types(kind: str, column: dict[str, Any], why: str, reason: str) -> Judged:
    """Return what a column is whose types in two files have only their text in common."""
    if reason:
        return "unused", {}, reason
    if "separator" in column or "list" in column:
        return "unused", {}, f"{why} in one file, and values of another type in another"
    return (kind, {"type": "text"} | column, f"{why}; of two types") if kind == "sparse" else (kind, column, why)


def check_label(path: Path, label: str, samples: dict[str, Sample], most_bad_ratio: float = 0.0) -> Label:
    """Return the label's column. Raises UsageError where there is none, or where it does not hold two classes, but for some rows
    that are left out."""
    target = parse_label(label)
    if label in samples and target.column != label:
        raise UsageError(
            f"--label must be a column or a comparison, {label!r} is both in {path}: rename the column that is called so"
        )
    if target.column not in samples:
        check_one_label(path, label, samples)
        known = ", ".join(samples)
        raise UsageError(
            f"--label must be a column of {path}, or a comparison such as 'rating >= 4', got {label!r}; the first line names "
            f"{known}{did_you_mean(target.column, samples)}",
            faq="label-column",
        )
    sample = samples[target.column]
    found = label_numbers(sample.values, target.equals)
    most_bad = most_bad_ratio * len(sample.values)
    if found is None or np.count_nonzero(found.bad_B) > most_bad:
        got = (
            "values that are no numbers"
            if found is None
            else ascii(sample.values[int(np.flatnonzero(found.bad_B)[0])].as_py())
        )
        raise UsageError(
            f"--label must be a column of 0 and 1 (or true and false), {target.column} holds {got}{_as_label(target, sample)}",
            faq="label-values",
        )
    values_B = found.values_B[~np.isnan(found.values_B)]
    if not len(values_B):
        raise UsageError(
            f"--label must be a column of 0 and 1, {target.column} is empty in the first {sample.rows:,} rows",
            faq="label-values",
        )
    if target.rule.endswith("1") and np.count_nonzero(~np.isin(values_B, (0.0, 1.0))) > most_bad:
        low, high = values_B.min(), values_B.max()
        above_B = values_B[values_B > low]
        bar = max(np.median(values_B), above_B.min()) if len(above_B) else low  # the median of a rare label is its lowest value
        raise UsageError(
            f"--label must be a column of 0 and 1, {target.column} holds numbers from {low:g} to {high:g}; a comparison "
            f"makes a label of it: --label '{target.column} >= {bar:g}'",
            faq="label-values",
        )
    return target


def check_one_label(path: Path, label: str, samples: dict[str, Sample]) -> None:
    """Raise UsageError where --label lists columns of a file, or comparisons of some. It says which of them tell another one:
    as a feature of the run for that one, such a column would be known only with the label."""
    listed = [part for each in label.split(",") if (part := each.strip())]
    if len(listed) < 2 or any(parse_label(part).column not in samples for part in listed):
        return
    ways = " and ".join(f"--label {shlex.quote(part)}" for part in listed)
    labels = {part: _labels_of(samples, part) for part in listed}
    told = [
        f"{other} tells {part} ({found}), so leave it out of the schema of the run for {part}"
        for part, labels_S in labels.items()
        for other, others_S in labels.items()
        if other != part and labels_S is not None and others_S is not None
        if (found := tells(others_S.astype(np.int64), labels_S))
    ]
    raise UsageError(
        f"--label must be one label, got {label!r}, {len(listed)} columns of {path}: a model learns one. Train a run for each "
        f"({ways}), or make one column of them{''.join(f'; {words}' for words in told)}"
    )


def _labels_of(samples: dict[str, Sample], label: str) -> NDArray[np.float64] | None:
    """Return the labels of the first rows; None where a column has other values than 0 and 1."""
    target = parse_label(label)
    found = label_numbers(samples[target.column].values, target.equals)
    labels_S = None if found is None else target.of(found.values_B)
    return labels_S if labels_S is not None and np.isin(labels_S, (0.0, 1.0)).all() else None


def _as_label(target: Label, sample: Sample) -> str:
    """Return the way to a label from a column of a few texts; nothing where it is another one."""
    import pyarrow.compute as pc

    words = Counter(pc.utf8_trim_whitespace(sample.values).to_pylist()) if is_text(sample.values.type) else Counter()
    if target.rule.endswith("1") and 2 <= len(words) <= MOST_WORDS:
        one = min(words, key=lambda word: (word.lower() not in YES, words[word]))
        return f"; a comparison makes a label of it: --label {shlex.quote(f'{target.column} == {one}')}"
    return ""


def give_names(sparse: list[dict[str, Any]]) -> None:
    """Give a name of its own to each column that is called otherwise than a feature may be."""
    taken = {column["column"] for column in sparse}
    for column in sparse:
        if not PLAIN_NAME.fullmatch(column["column"]):
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", column.get("name") or column["column"]).strip("_")[:60] or "column"
            number = 1
            while (name := plain if number == 1 else f"{plain}_{number}") in taken:
                number += 1
            taken.add(name)
            column["name"] = name
