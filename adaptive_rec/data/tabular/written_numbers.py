"""Numbers as people write them: ``$9.99``, ``12,345``, ``12.3%``, ``1.234,5``, ``1 234``, ``(5)``.

In the format `us` a point is before the decimals and a comma may be between groups of digits; in `eu` it is the other
way round. Spaces, of whatever width, and apostrophes may be between groups in both. A number in brackets is negative, a
percentage is divided by 100, and signs or codes of currencies are left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adaptive_rec.data.tabular.values import Numbers, trimmed

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["", "us", "eu"]
SPACE = "[ \u00a0\u2007\u2009\u202f]"
CURRENCY = (
    "(?:[A-Z]{0,3}[$¢£¤¥฿₠-₿]|USD|EUR|GBP|CHF|JPY|CNY|INR|RUB|BRL|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|TRY|ZAR|MXN|KRW|"
    "SGD|HKD|IDR|THB|VND|ILS|AED|SAR|kr|zł|Kč|Ft|Rs[.]?|руб[.]?)"
)
"""The signs and codes of money that may be before or after a number."""
POINTS = {"us": ".", "eu": ","}
"""What is before the decimals."""
BETWEEN_GROUPS = {"us": "[, \u00a0\u2007\u2009\u202f'’]", "eu": "[. \u00a0\u2007\u2009\u202f'’]"}


def _pattern(group: str, point: str) -> str:
    grouped = (
        f"[0-9]{{1,3}}(?:{group}[0-9]{{2,3}})*{group}[0-9]{{3}}|[0-9]{{1,3}}(?:{SPACE}[0-9]{{3}})+|"
        "[0-9]{1,3}(?:['’][0-9]{3})+|[0-9]+"
    )
    number = f"(?:(?:{grouped})(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][-+]?[0-9]+)?"
    return (
        rf"^(?P<open>\(?)(?P<sign>[-+−]?){SPACE}?{CURRENCY}?{SPACE}?(?P<inner>[-+−]?)(?P<number>{number}){SPACE}?"
        rf"(?:{CURRENCY}|(?P<percent>%))?(?P<close>\)?)$"
    )


PATTERNS = {"us": _pattern(",", "[.]"), "eu": _pattern("[.]", ",")}
"""The numbers of each format. Arrow and Python read both alike."""


def format_hint(value: Any) -> str:
    """Return which format reads a value that is no plain number, as part of a message; nothing where none does."""
    fits = [name for name, pattern in PATTERNS.items() if isinstance(value, str) and re.match(pattern, value.strip())]
    ways = " or ".join(f'format = "{name}"' for name in fits)
    return f"; {ways} in the column's line of the schema reads such numbers" if fits else ""


def written_numbers(array: pa.Array, format: Format) -> Numbers:
    """Return texts (B) as numbers; null and words such as NA are missing, and what is written otherwise is bad."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = trimmed(array)
    parts = pc.extract_regex(array, PATTERNS[format])
    names = ("open", "sign", "inner", "percent", "close")
    some = {name: pc.not_equal(pc.struct_field(parts, name), "") for name in names}
    in_pairs = pc.equal(some["open"], some["close"])
    right = pc.fill_null(pc.and_(in_pairs, pc.invert(pc.and_(some["sign"], some["inner"]))), False)
    digits = pc.replace_substring_regex(pc.struct_field(parts, "number"), BETWEEN_GROUPS[format], "")
    digits = pc.if_else(right, pc.replace_substring(digits, ",", "."), pa.scalar(None, digits.type))
    values_B = np.asarray(digits.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    signs = pc.binary_join_element_wise(*(pc.struct_field(parts, name) for name in ("open", "sign", "inner")), "")
    negative = pc.fill_null(pc.match_substring_regex(signs, r"[-−(]"), False)
    values_B = np.where(negative.to_numpy(zero_copy_only=False), -values_B, values_B)
    percent_B = pc.fill_null(some["percent"], False).to_numpy(zero_copy_only=False)
    bad_B = ~right.to_numpy(zero_copy_only=False) & array.is_valid().to_numpy(zero_copy_only=False)
    return Numbers(np.where(percent_B, values_B / 100, values_B), bad_B)
