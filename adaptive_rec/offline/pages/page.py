"""Self-contained pages: a head with style and script inlined, tiles of figures, lists of facts, tables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from adaptive_rec.errors import UsageError
from adaptive_rec.offline.pages.markup import join, tag
from adaptive_rec.system.drafts import draft_file
from adaptive_rec.system.version import __version__

HERE = Path(__file__).parent
DASHBOARD = HERE.parents[1] / "service" / "dashboard"
STYLES = (*(DASHBOARD / f"{name}.css" for name in ("base", "screens", "charts")), HERE / "page.css")
"""Style sheets of every page; those of the dashboard define colours, type, cards, tables and charts."""


def page(title: str, subtitle: str, badge: tuple[str, str] | None, *sections: Any, style: str = "") -> str:
    """Return a whole page. `badge`: a state, which selects the colour, and its text; `style`: a further style sheet."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    sheets = [*STYLES, *([HERE / style] if style else [])]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup("\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets))),
    )
    state = tag("span", badge[1], class_="badge", data_phase=badge[0]) if badge else None
    about = tag("div", tag("h1", title), tag("p", subtitle, class_="muted"), class_="run")
    header = tag("header", tag("div", about, state, class_="top-row"), class_="top")
    complete = f"adaptive-rec {__version__} · this file is complete, nothing is loaded from elsewhere"
    foot = tag("footer", complete, class_="muted")
    body = tag("body", header, tag("main", *sections), foot, tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def write_page(text: str, out: Path) -> None:
    """Write a file so that readers see either the old text or the new one. Raises UsageError where it cannot be written."""
    try:
        with draft_file(out) as (draft, descriptor):
            with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
            draft.replace(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None


def section(title: str, *parts: Any, note: str = "") -> Markup:
    return tag("section", tag("h2", title), tag("p", note, class_="muted") if note else None, *parts)


def notice(text: str) -> Markup:
    """Return a card with a sentence that stands where figures would."""
    return tag("p", text, class_="card notice")


def warnings(texts: Iterable[str]) -> Markup:
    return join(tag("p", text, class_="notice warn") for text in texts)


def tiles(*shown: tuple[str, str, str]) -> Markup:
    """Return a row of tiles, each with a label, a value and a remark below it."""
    each = [
        tag("div", tag("span", label, class_="label"), tag("b", value), tag("span", below, class_="muted"), class_="card tile")
        for label, value, below in shown
    ]  # fmt: skip
    return tag("div", *each, class_="summary")


def facts(*rows: tuple[str, Any]) -> Markup:
    """Return a card with labels and values; empty values are left out."""
    listed = [part for label, value in rows if value not in ("", None) for part in (tag("dt", label), tag("dd", value))]
    return tag("div", tag("dl", *listed, class_="facts"), class_="card facts-card")


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", card: bool = True) -> Markup:
    """Return a table. Columns whose heads end in ``>`` are aligned right; the first cell of a row is its head."""
    side = ["n" if head.endswith(">") else None for head in heads]
    top = [tag("th", head.removesuffix(">"), scope="col", class_=look) for head, look in zip(heads, side, strict=True)]
    body = []
    for row in rows:
        first, *others = zip(row, side, strict=True)
        cells = [tag("td", cell, class_=look) for cell, look in others]
        body.append(tag("tr", tag("th", first[0], class_=first[1], scope="row"), *cells))
    said = tag("caption", caption) if caption else None
    listed = tag("table", said, tag("thead", tag("tr", *top)), tag("tbody", *body), class_="grid")
    return tag("div", listed, class_="card scroll" if card else "scroll")


def folded(summary: str, *parts: Any, **attributes: Any) -> Markup:
    """Return parts that the reader can fold away."""
    return tag("details", tag("summary", summary), *parts, **attributes)
