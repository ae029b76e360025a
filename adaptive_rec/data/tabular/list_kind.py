"""Whether texts hold several values each: in brackets, or with a separator between them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.data.tabular.bags import MISSING_WORDS, lists_of
from adaptive_rec.data.tabular.kinds import INTEGER
from adaptive_rec.data.tabular.matches import FIRST, all_match, evenly, match_ratio
from adaptive_rec.data.tabular.sample import Judged
from adaptive_rec.data.tabular.values import NUMBER

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATORS = {
    "\x1d": "the character 0x1d", "\x1e": "the character 0x1e", "\x1f": "the character 0x1f", "\x01": "the character 0x01",
    "\x02": "the character 0x02", "\x03": "the character 0x03", "|": "bars", "^": "carets", ";": "semicolons",
    "\t": "tabs", "#": "number signs", ",": "commas", " ": "spaces",
}  # fmt: skip
STRONG = frozenset("\x1d\x1e\x1f\x01\x02\x03\t|^")
"""Separators that texts hardly have for another reason."""
LEAST_RATIO = {True: 0.05, False: 0.3}
"""Share of the texts that a separator divides: of a strong one, of another one."""
MOST_DISTINCT = {True: 0.5, False: 0.2}
"""Distinct parts beside all of them where parts recur: of ids, of words, as words of a language recur, too."""
LEAST_SHARED = {True: 0.2, False: 0.5}
"""Share of the later parts that are first ones elsewhere, of ids, of words: the parts of an address or a name have
their places."""
LEAST_ROWS = 1000
"""Fewer texts do not show whether parts recur."""
BRACKETS = r"^\s*(?:\[(?s:.*)\]|\{(?s:.*)\}|\((?s:.*),(?s:.*)\)|\(\)|array\((?s:.*)\)|(?:frozen)?set\((?s:.*)\))\s*$"
ID_PART = "^[A-Za-z_.:-]{0,8}[0-9][A-Za-z0-9_:-]*$"
DECIMAL = r"^[-+]?[0-9]*[.][0-9]*[1-9][0-9]*(?:[eE][-+]?[0-9]+)?$|^[-+]?[0-9.]+[eE]-[0-9]+$"
NEARLY_ALL = 0.9


def proposal(name: str, values: pa.Array) -> str:
    """Return which line of the schema makes lists of texts that may hold several values; nothing where they hardly
    do."""
    some = evenly(values)
    if match_ratio(some, BRACKETS) > NEARLY_ALL and match_ratio(some, r"[,\s]") > LEAST_RATIO[True]:
        return f"; to have lists: {schema_line(name, list='brackets')}"
    for separator in SEPARATORS:
        strong, found = separator in STRONG, _parts(some, separator)
        recur = found.recurring_ratio <= MOST_DISTINCT[found.ids] and found.shared_ratio >= LEAST_SHARED[found.ids] / 2
        if found.ratio >= LEAST_RATIO[strong] and (strong or recur or found.ids):
            return f"; to have lists: {schema_line(name, separator=found.separator)}"
    return ""


def schema_line(name: str, **settings: str) -> str:
    parts = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in {"column": name, **settings}.items())
    return f"{{ {', '.join(parts)} }}"


def brackets_kind(values: pa.Array) -> Judged | None:
    import pyarrow.compute as pc

    if not all_match(values.slice(0, FIRST), BRACKETS) and match_ratio(evenly(values), BRACKETS) <= NEARLY_ALL:
        return None
    lists, bad_V = lists_of(values, "")
    if bad_V.mean() > 0.5:
        return "unused", {}, "lists of lists, or objects"
    if bad_V.any() or pc.mean(pc.greater(pc.list_value_length(lists), 1).cast("int8")).as_py() < LEAST_RATIO[True]:
        return None
    parts = lists.flatten().drop_null()
    if match_ratio(parts, DECIMAL) > 0.5:
        return "unused", {}, "lists of numbers that are not whole"
    if len(values) >= LEAST_ROWS and pc.count_distinct(parts).as_py() == len(parts):
        return "unused", {}, "lists whose values are all different"
    return "sparse", {"list": "brackets", **type_of(parts)}, "lists of categories in brackets"


def separator_kind(values: pa.Array) -> Judged | None:
    import pyarrow.compute as pc

    some = evenly(values)
    for separator, name in SEPARATORS.items():
        strong, found = separator in STRONG, _parts(some, separator)
        if found.ratio < LEAST_RATIO[strong]:
            continue
        if found.decimal:
            return "unused", {}, f"lists of numbers that are not whole, with {name} between them"
        recur = found.recurring_ratio <= MOST_DISTINCT[found.ids or strong] or (strong and len(values) < LEAST_ROWS)
        shared = strong or found.shared_ratio >= LEAST_SHARED[found.ids]
        if recur and shared and (found.ids or separator != " "):
            column = {"separator": found.separator} | type_of(pc.split_pattern(values, found.separator).flatten())
            return "sparse", column, f"lists of categories with {name} between them"
    return None


@dataclass(frozen=True)
class _Parts:
    """What some texts are divided into by a separator."""

    separator: str
    """With the spaces that are around it everywhere."""
    ratio: float
    """Share of the texts that are divided."""
    recurring_ratio: float
    """Distinct parts beside all of them."""
    shared_ratio: float
    """Share of the parts behind the first one of a text that are first ones elsewhere."""
    ids: bool
    """All parts have a digit and no space."""
    decimal: bool
    """The parts are numbers, and most of them decimal ones."""


def _parts(some: pa.Array, separator: str) -> _Parts:
    import pyarrow as pa
    import pyarrow.compute as pc

    divided = pc.match_substring(some, separator)
    ratio = pc.mean(divided.cast("int8")).as_py()
    if ratio < LEAST_RATIO[True]:
        return _Parts(separator, ratio, 1.0, 0.0, False, False)
    if separator != " ":
        count = pc.sum(pc.count_substring(some, separator)).as_py()
        for wide in (f" {separator} ", f"{separator} ", 2 * separator):
            if wide.count(separator) * pc.sum(pc.count_substring(some, wide)).as_py() == count:
                separator = wide
                break
    lists = pc.split_pattern(some, separator)
    first = pc.list_element(lists, 0)
    at = np.asarray(lists.offsets)
    later = lists.values.filter(pa.array(~np.isin(np.arange(len(lists.values)), at[:-1])))
    parts = pa.concat_arrays([first.filter(divided), later])
    distinct = pc.unique(parts)
    named = distinct.filter(pc.not_equal(distinct, ""))
    shared_ratio = pc.mean(pc.is_in(later, pc.unique(first)).cast("int8")).as_py() or 0.0
    decimal = len(named) > 0 and match_ratio(named, DECIMAL) > 0.5 and all_match(named, NUMBER)
    return _Parts(separator, ratio, len(distinct) / len(parts), shared_ratio, all_match(named, ID_PART), decimal)


def type_of(parts: pa.Array) -> dict[str, Any]:
    """Return the type of values where they are whole numbers of 64 bits: so they are the same ids in a Parquet file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    distinct = pc.unique(parts)
    distinct = distinct.filter(pc.invert(pc.is_in(distinct, pa.array(MISSING_WORDS))))
    if not len(distinct) or not all_match(distinct, INTEGER):
        return {}
    try:
        lowest = pc.min(pc.replace_substring_regex(distinct, r"\.0+$", "").cast(pa.int64())).as_py()
    except pa.ArrowInvalid:
        return {}
    return {"type": "integer"} if lowest > -(2**63) else {}
