"""HTML elements as values: text is escaped unless it is markup already."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup
from markupsafe import escape as escape_html

from adaptive_rec.units import printable

VOID = {"meta", "path"}
"""Elements that have no content in these pages."""

BLANK = Markup(" ")
"""A blank between two parts; one in text that has nothing else is written out."""


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return an element. Text in it is escaped, None is left out; ``class_`` means class, ``_`` in a name a hyphen."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{pairs}/>" if name in VOID else f"<{name}{pairs}>{join(children)}</{name}>")


def join(parts: Any) -> Markup:
    """Return the parts one after the other, text among them escaped, None left out."""
    return Markup("").join(escape(part) for part in parts if part is not None)


def escape(part: Any) -> Markup:
    """Return a part as markup. In text, characters that control or reorder what follows are written out."""
    if isinstance(part, Markup):
        return part
    return escape_html(printable(str(part), keep="\n"))


def data(values: Any, **attributes: Any) -> Markup:
    """Return an element with values for the page's script, as JSON that cannot end the element."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", Markup(safe), type="application/json", **attributes)
