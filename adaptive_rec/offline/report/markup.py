"""HTML as values: text is escaped unless it is markup that was made here."""

from __future__ import annotations

import html
import json
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


VOID = {"meta", "path"}
"""Elements without content here."""


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element. Children that are no Markup are escaped, None is left out; ``class_`` means class, ``_`` a hyphen."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{pairs}/>" if name in VOID else f"<{name}{pairs}>{join(children)}</{name}>")


def join(parts: Any) -> Markup:
    """Parts one after the other, each escaped where it is no Markup."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def escape(part: Any) -> str:
    return part if isinstance(part, Markup) else html.escape(printed(str(part)), quote=True)


def printed(text: str) -> str:
    """Text with control characters, and those that change the direction of what follows, written out."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


def data(values: Any, **attributes: Any) -> Markup:
    """Values for the page's script, as JSON that ends no element."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", Markup(safe), type="application/json", **attributes)
