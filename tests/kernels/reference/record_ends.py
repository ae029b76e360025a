"""The plain twin of the search for ends of records: one regular expression for a record."""

from __future__ import annotations

import re


def record_ends(text: bytes, delimiter: bytes, escape: bytes = b"") -> list[int]:
    """Return the byte after each record that ends in a text. A CR at the very end may be half of a CRLF: it ends no record."""
    separator = re.escape(delimiter)
    field = (
        rb'(?:"'
        + quoted(escape)
        + rb'(?:"(?!")[^'
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


def quoted(escape: bytes) -> bytes:
    """Return the pattern of what stands between the marks of a quoted field."""
    if not escape:
        return rb'(?:[^"]|"")*'
    mark = re.escape(escape)
    return rb'(?:[^"' + mark + rb"]|" + mark + rb'[\s\S]|"")*'


def doubled(text: bytes, delimiter: bytes, escape: bytes) -> bytes:
    """Return whole records with doubled marks in place of escaped ones, field by field."""
    made, at = b"", 0
    field = re.compile(rb'(?<![\s\S])"' + quoted(escape) + rb"|(?<=[\r\n" + re.escape(delimiter) + rb'])"' + quoted(escape))
    pair = re.compile(re.escape(escape) + rb'(["' + re.escape(escape) + rb"])")
    while (found := field.search(text, at)) is not None:
        inner = pair.sub(lambda each: b'""' if each[1] == b'"' else each[1], found[0])
        made, at = made + text[at : found.start()] + inner, found.end()
        closed = re.compile(rb'"[^\r\n' + re.escape(delimiter) + rb"]*").match(text, at)
        made, at = (made + closed[0], closed.end()) if closed else (made, at)
    return made + text[at:]
