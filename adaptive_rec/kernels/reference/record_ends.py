"""The plain twin of the search for ends of records: one regular expression for a record."""

from __future__ import annotations

import re


def record_ends(text: bytes, delimiter: bytes) -> list[int]:
    """Return the byte after each record that ends in a text. A CR at the very end may be half of a CRLF: it ends no record."""
    separator = re.escape(delimiter)
    field = (
        rb'(?:"(?:[^"]|"")*(?:"(?!")[^'
        + separator
        + rb'\r\n]*))|[^"'
        + separator
        + rb"\r\n][^"
        + separator
        + rb"\r\n]*|"
    )
    record = re.compile(rb"(?:" + field + rb")(?:" + separator + rb"(?:" + field + rb"))*(?:\r\n|\n|\r(?!\n)(?!\Z))")
    ends, at = [], 0
    while (found := record.match(text, at)) is not None:
        at = found.end()
        ends.append(at)
    return ends
