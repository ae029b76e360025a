"""What a column of texts is to a model where its texts are more than names: dates, numbers written for people, lists of
ids.

A whole column decides, never a single value. Where two readings are possible, the column stays a category or is not
used, and the reason says which line of the schema takes the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adaptive_rec.data.tabular.dense_transform import transform_of
from adaptive_rec.data.tabular.list_kind import (
    LEAST_RATIO,
    NEARLY_ALL,
    brackets_kind,
    schema_line,
    separator_kind,
    type_of,
)
from adaptive_rec.data.tabular.matches import all_match, any_match, evenly, match_ratio, matched
from adaptive_rec.data.tabular.sample import Judged
from adaptive_rec.data.tabular.values import NUMBER
from adaptive_rec.data.tabular.written_numbers import CURRENCY, PATTERNS, Format, written_numbers

if TYPE_CHECKING:
    import pyarrow as pa

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
TWO_WAYS = "numbers that can be read in two ways"
UNIT = f"^[-+]?{CURRENCY}?[0-9][0-9.,]* ?[A-Za-zµ°/]{{1,12}}$"


def text_kind(name: str, values: pa.Array, is_id: bool, distinct: int) -> Judged | None:
    """Judge texts (V) of a column that are no plain numbers, none of them missing; None where they are names. `is_id`:
    the column's name is one of ids. `distinct`: different values."""
    found = _date_kind(values) or _number_kind(name, values, is_id) or brackets_kind(values) or separator_kind(values)
    if found is None and not is_id and distinct > max(100, LEAST_RATIO[False] * len(values)):
        return _one_off_kind(values)
    return found


def are_codes(values: pa.Array, is_id: bool) -> bool:
    """Whether texts that can be read as floats are codes, as 3e8 and 1e5 are."""
    some = evenly(values)
    return any_match(some, CODE) and (is_id or not any_match(some, NO_CODE))


def are_thousands(values: pa.Array) -> bool:
    """Whether texts that can be read as floats are whole numbers with points between groups, as 999 and 12.500 are: all
    with a point have three digits behind it, which a float with decimals has not everywhere."""
    if not all_match(values, "^-?(0|[1-9][0-9]{0,2}([.][0-9]{3})?)$") or all_match(values, "[.]"):
        return False
    return any_match(values, "[.][0-9]*0$") and match_ratio(values, "[.]") * len(values) >= FEW_GROUPS


# Dates and numbers ---------------------------------------------------------------------------------------------------


def _date_kind(values: pa.Array) -> Judged | None:
    return ("unused", {}, "a time") if all_match(values, DATE) or all_match(values, OTHER_ZONE) else None


def _number_kind(name: str, values: pa.Array, is_id: bool) -> Judged | None:
    format_, why = number_format(values)
    if why:
        us, eu = schema_line(name, format="us"), schema_line(name, format="eu")
        return "unused", {}, why + (f"; {us} is for 1,234.5, {eu} for 1.234,5" if why == TWO_WAYS else "")
    if not format_:
        return None
    found = written_numbers(values, format_).values_B
    if is_id and (found == np.floor(found)).all() and not any_match(values, f"%|{CURRENCY}"):
        return None
    low, high = found.min(), found.max()
    why = f"numbers from {low:g} to {high:g}, written for people"
    return "dense", {**transform_of(found), "format": format_}, why


def number_format(values: pa.Array) -> tuple[Format, str]:
    """Return the format in which all texts are numbers that are written for people; or nothing, and why they are not
    used where they are such numbers and it is not sure which."""
    fits: list[Format] = [name for name in ("us", "eu") if all_match(values, PATTERNS[name])]
    if not fits or written_numbers(values, fits[0]).bad_B.any():
        return "", ""
    money = {sign.strip() for sign in matched(values, f"(?P<found>{CURRENCY})")}
    if len(money) > 1:
        return "", f"amounts in several currencies: {', '.join(sorted(money)[:3])}"
    if any_match(values, "%") and not all_match(values, "%|^[-+]?0([.,]0*)?$"):
        return "", "percentages among other numbers"
    commas, points = any_match(values, ","), any_match(values, "[.]")
    if not any_match(values, "[^0-9, ]") and _may_be_lists(values) and ("us" not in fits or separator_kind(values)):
        return "", ""
    if len(fits) == 1 or not (commas or points):
        return fits[0], ""
    if are_thousands(values):
        return "eu", ""
    if commas and not points and any_match(values, "^[^0-9]*0,"):
        return "eu", ""
    if commas and not points and not all_match(values, ","):
        return "us", ""
    return "", TWO_WAYS


def _may_be_lists(values: pa.Array) -> bool:
    """Whether texts of digits with commas or spaces may be lists of ids. No id begins with 0; decimals have one length,
    or do not end in 0."""
    import pyarrow.compute as pc

    if any_match(values, "[, ]0[0-9]|^0[, ]"):
        return False
    if all_match(values, PATTERNS["us"]):
        return bool(pc.sum(pc.count_substring_regex(values, "[, ]")).as_py() >= FEW_GROUPS)
    lengths = pc.utf8_length(pc.replace_substring_regex(values, "^[0-9]*,?", ""))
    return bool(pc.count_distinct(lengths.filter(pc.greater(lengths, 0))).as_py() > 1 and any_match(values, ",[0-9]+0$"))


def _one_off_kind(values: pa.Array) -> Judged | None:
    """Judge texts that hardly recur: what are numbers but for a unit or for some words says nothing as a category."""
    import pyarrow.compute as pc

    if all_match(values, UNIT):
        return "unused", {}, "numbers with a unit behind them; write them without it to use them"
    some = evenly(values)
    is_number = pc.or_(pc.match_substring_regex(some, NUMBER), pc.match_substring_regex(some, PATTERNS["us"]))
    is_number = pc.or_(is_number, pc.match_substring_regex(some, PATTERNS["eu"]))
    if pc.mean(is_number.cast("int8")).as_py() < NEARLY_ALL:
        return None
    other = some.filter(pc.invert(is_number))
    but = f", but for {ascii(other[0].as_py())[:40]}" if len(other) else " in several formats"
    return "unused", {}, "numbers" + but


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
    if not all_match(values, NUMBER):
        return None
    return "dense", transform_of(pc.cast(values, "float64").to_numpy(zero_copy_only=False)), "numbers, as its header says"
