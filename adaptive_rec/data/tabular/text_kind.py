"""What a column of texts is to a model where its texts are more than names: dates, numbers written for people, lists of
ids.

A whole column decides, never a single value. Where two readings are possible, the column stays a category or is not
used, and the reason says which line of the schema takes the other one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.data.tabular.bags import MISSING_WORDS, lists_of
from adaptive_rec.data.tabular.kinds import INTEGER
from adaptive_rec.data.tabular.sample import Judged
from adaptive_rec.data.tabular.values import NUMBER
from adaptive_rec.data.tabular.written_numbers import CURRENCY, PATTERNS, Format, written_numbers

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED_AT, FIRST = 10_000, 100
"""Values, evenly spread, by which lists are found, and the first ones, which must not say otherwise."""
MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*[.]?"
WEEKDAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*[.]?,? "
TIME = (
    "[0-2]?[0-9]:[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?(?: ?[APap][.]?[Mm][.]?)?"
    "(?: ?(?:Z|[A-Z]{3,4}|[-+][0-9]{2}(?::?[0-9]{2})?))?"
)
DAYS = (
    "[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}",
    "[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4}",
    "[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}",
    "(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])",
    f"[0-9]{{1,2}}[- /.]*{MONTH}[- /,]*[0-9]{{2,4}}",
    f"{MONTH} ?[0-9]{{1,2}}(?:st|nd|rd|th)?,? [0-9]{{4}}",
    "[0-9]{1,2} [0-9]{1,2}, [0-9]{4}",
    f"{MONTH}[- ]?[0-9]{{4}}",
    f"{MONTH} +[0-9]{{1,2}} {TIME} [0-9]{{4}}",
    "[0-9]{8}[T ][0-9]{2}:?[0-9]{2}(?::?[0-9]{2})?Z?",
)
DATE = f"^(?i:(?:{WEEKDAY})?(?:{'|'.join(DAYS)})(?:(?:[T,]|:| )+ ?{TIME})?|{TIME})$"
OTHER_ZONE = "^[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}[T ].*$|^[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4}[T ].*$"
CODE, NO_CODE = "^[0-9]+[eE][0-9]+$", r"[.]|[eE][-+]"
"""What looks like a float and is a code, 3e8, unless other numbers of the column are written with points."""
FEW_GROUPS = 50
"""With more groups of three digits, of which none begins with 0, the groups may be ids rather than thousands."""
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
TWO_WAYS = "numbers that can be read in two ways"
UNIT = f"^[-+]?{CURRENCY}?[0-9][0-9.,]* ?[A-Za-zµ°/]{{1,12}}$"
NEARLY_ALL = 0.9


def text_kind(name: str, values: pa.Array, is_id: bool, distinct: int) -> Judged | None:
    """Judge texts (V) of a column that are no plain numbers, none of them missing; None where they are names. `is_id`:
    the column's name is one of ids. `distinct`: different values."""
    found = _date_kind(values) or _number_kind(name, values, is_id) or _brackets_kind(values) or _separator_kind(values)
    if found is None and not is_id and distinct > max(100, LEAST_RATIO[False] * len(values)):
        return _one_off_kind(values)
    return found


def are_codes(values: pa.Array, is_id: bool) -> bool:
    """Whether texts that can be read as floats are codes, as 3e8 and 1e5 are."""
    some = _evenly(values)
    return _any(some, CODE) and (is_id or not _any(some, NO_CODE))


def are_thousands(values: pa.Array) -> bool:
    """Whether texts that can be read as floats are whole numbers with points between groups, as 999 and 12.500 are: all
    with a point have three digits behind it, which a float with decimals has not everywhere."""
    if not _all(values, "^-?(0|[1-9][0-9]{0,2}([.][0-9]{3})?)$") or _all(values, "[.]"):
        return False
    return _any(values, "[.][0-9]*0$") and _ratio(values, "[.]") * len(values) >= FEW_GROUPS


def proposal(name: str, values: pa.Array) -> str:
    """Return which line of the schema makes lists of texts that may hold several values; nothing where they hardly
    do."""
    some = _evenly(values)
    if _ratio(some, BRACKETS) > NEARLY_ALL and _ratio(some, r"[,\s]") > LEAST_RATIO[True]:
        return f"; to have lists: {_line(name, list='brackets')}"
    for separator in SEPARATORS:
        strong, found = separator in STRONG, _parts(some, separator)
        recur = found.recurring_ratio <= MOST_DISTINCT[found.ids] and found.shared_ratio >= LEAST_SHARED[found.ids] / 2
        if found.ratio >= LEAST_RATIO[strong] and (strong or recur or found.ids):
            return f"; to have lists: {_line(name, separator=found.separator)}"
    return ""


def _line(name: str, **settings: str) -> str:
    parts = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in {"column": name, **settings}.items())
    return f"{{ {', '.join(parts)} }}"


# Dates and numbers ---------------------------------------------------------------------------------------------------


def _date_kind(values: pa.Array) -> Judged | None:
    return ("unused", {}, "a time") if _all(values, DATE) or _all(values, OTHER_ZONE) else None


def _number_kind(name: str, values: pa.Array, is_id: bool) -> Judged | None:
    format_, why = number_format(values)
    if why:
        us, eu = _line(name, format="us"), _line(name, format="eu")
        return "unused", {}, why + (f"; {us} is for 1,234.5, {eu} for 1.234,5" if why == TWO_WAYS else "")
    if not format_:
        return None
    found = written_numbers(values, format_).values_B
    if is_id and (found == np.floor(found)).all() and not _any(values, f"%|{CURRENCY}"):
        return None
    low, high = found.min(), found.max()
    why = f"numbers from {low:g} to {high:g}, written for people"
    return "dense", {"transform": "standard", "format": format_}, why


def number_format(values: pa.Array) -> tuple[Format, str]:
    """Return the format in which all texts are numbers that are written for people; or nothing, and why they are not
    used where they are such numbers and it is not sure which."""
    fits: list[Format] = [name for name in ("us", "eu") if _all(values, PATTERNS[name])]
    if not fits or written_numbers(values, fits[0]).bad_B.any():
        return "", ""
    money = {sign.strip() for sign in _found(values, f"(?P<found>{CURRENCY})")}
    if len(money) > 1:
        return "", f"amounts in several currencies: {', '.join(sorted(money)[:3])}"
    if _any(values, "%") and not _all(values, "%|^[-+]?0([.,]0*)?$"):
        return "", "percentages among other numbers"
    commas, points = _any(values, ","), _any(values, "[.]")
    if not _any(values, "[^0-9, ]") and _may_be_lists(values) and ("us" not in fits or _separator_kind(values)):
        return "", ""
    if len(fits) == 1 or not (commas or points):
        return fits[0], ""
    if are_thousands(values):
        return "eu", ""
    if commas and not points and _any(values, "^[^0-9]*0,"):
        return "eu", ""
    if commas and not points and not _all(values, ","):
        return "us", ""
    return "", TWO_WAYS


def _may_be_lists(values: pa.Array) -> bool:
    """Whether texts of digits with commas or spaces may be lists of ids. No id begins with 0; decimals have one length,
    or do not end in 0."""
    import pyarrow.compute as pc

    if _any(values, "[, ]0[0-9]|^0[, ]"):
        return False
    if _all(values, PATTERNS["us"]):
        return bool(pc.sum(pc.count_substring_regex(values, "[, ]")).as_py() >= FEW_GROUPS)
    lengths = pc.utf8_length(pc.replace_substring_regex(values, "^[0-9]*,?", ""))
    return bool(pc.count_distinct(lengths.filter(pc.greater(lengths, 0))).as_py() > 1 and _any(values, ",[0-9]+0$"))


def _one_off_kind(values: pa.Array) -> Judged | None:
    """Judge texts that hardly recur: what are numbers but for a unit or for some words says nothing as a category."""
    import pyarrow.compute as pc

    if _all(values, UNIT):
        return "unused", {}, "numbers with a unit behind them; write them without it to use them"
    some = _evenly(values)
    is_number = pc.or_(pc.match_substring_regex(some, NUMBER), pc.match_substring_regex(some, PATTERNS["us"]))
    is_number = pc.or_(is_number, pc.match_substring_regex(some, PATTERNS["eu"]))
    if pc.mean(is_number.cast("int8")).as_py() < NEARLY_ALL:
        return None
    other = some.filter(pc.invert(is_number))
    but = f", but for {ascii(other[0].as_py())[:40]}" if len(other) else " in several formats"
    return "unused", {}, "numbers" + but


# Several values ------------------------------------------------------------------------------------------------------


def _brackets_kind(values: pa.Array) -> Judged | None:
    import pyarrow.compute as pc

    if not _all(values.slice(0, FIRST), BRACKETS) and _ratio(_evenly(values), BRACKETS) <= NEARLY_ALL:
        return None
    lists, bad_V = lists_of(values, "")
    if bad_V.mean() > 0.5:
        return "unused", {}, "lists of lists, or objects"
    if bad_V.any() or pc.mean(pc.greater(pc.list_value_length(lists), 1).cast("int8")).as_py() < LEAST_RATIO[True]:
        return None
    parts = lists.flatten().drop_null()
    if _ratio(parts, DECIMAL) > 0.5:
        return "unused", {}, "lists of numbers that are not whole"
    if len(values) >= LEAST_ROWS and pc.count_distinct(parts).as_py() == len(parts):
        return "unused", {}, "lists whose values are all different"
    return "sparse", {"list": "brackets", **type_of(parts)}, "lists of categories in brackets"


def _separator_kind(values: pa.Array) -> Judged | None:
    import pyarrow.compute as pc

    some = _evenly(values)
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
    decimal = len(named) > 0 and _ratio(named, DECIMAL) > 0.5 and _all(named, NUMBER)
    return _Parts(separator, ratio, len(distinct) / len(parts), shared_ratio, _all(named, ID_PART), decimal)


def type_of(parts: pa.Array) -> dict[str, Any]:
    """Return the type of values where they are whole numbers of 64 bits: so they are the same ids in a Parquet file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    distinct = pc.unique(parts)
    distinct = distinct.filter(pc.invert(pc.is_in(distinct, pa.array(MISSING_WORDS))))
    if not len(distinct) or not _all(distinct, INTEGER):
        return {}
    try:
        lowest = pc.min(pc.replace_substring_regex(distinct, r"\.0+$", "").cast(pa.int64())).as_py()
    except pa.ArrowInvalid:
        return {}
    return {"type": "integer"} if lowest > -(2**63) else {}


def header_kind(kind: str, values: pa.Array) -> Judged | None:
    """Judge texts whose header says what they are, as those of RecBole's files do: `token`, `token_seq`, `float`,
    `float_seq`."""
    import pyarrow.compute as pc

    if kind == "token_seq":
        parts = pc.split_pattern(values, " ").flatten()
        return "sparse", {"separator": " ", **type_of(parts)}, "lists of categories, as its header says"
    if kind == "float_seq":
        return "unused", {}, "lists of numbers, as its header says"
    if kind == "token":
        return "sparse", type_of(values), "a category, as its header says"
    return ("dense", {"transform": "standard"}, "numbers, as its header says") if _all(values, NUMBER) else None


# Regular expressions on columns --------------------------------------------------------------------------------------


def _evenly(values: pa.Array) -> pa.Array:
    """Return some values from everywhere."""
    import pyarrow as pa

    if len(values) <= LOOKED_AT:
        return values
    return values.take(pa.array(np.arange(LOOKED_AT) * len(values) // LOOKED_AT))


def _all(values: pa.Array, pattern: str) -> bool:
    """Whether all values match. The first ones mostly say no."""
    import pyarrow.compute as pc

    parts = (values.slice(0, FIRST), values.slice(FIRST))
    return all(pc.all(pc.match_substring_regex(part, pattern)).as_py() is not False for part in parts)


def _any(values: pa.Array, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _ratio(values: pa.Array, pattern: str) -> float:
    import pyarrow.compute as pc

    return float(pc.mean(pc.match_substring_regex(values, pattern).cast("int8")).as_py() or 0.0)


def _found(values: pa.Array, pattern: str) -> list[str]:
    """Return the different texts that the group `found` matches."""
    import pyarrow.compute as pc

    found = pc.struct_field(pc.extract_regex(values, pattern), "found")
    return [text for text in pc.unique(found).to_pylist() if text]
