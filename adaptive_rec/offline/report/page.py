"""The page around the plots: head with all that it needs inlined, tiles of figures, lists, tables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adaptive_rec.errors import UsageError
from adaptive_rec.offline.report.markup import Markup, join, tag
from adaptive_rec.system.version import __version__

HERE = Path(__file__).parent
HOUSE_STYLE = ("base.css", "screens.css")
"""Style sheets of the dashboard, which give the page colours, type, cards and tables."""


def page(title: str, subtitle: str, badge: tuple[str, str] | None, *sections: Any, style: str = "") -> str:
    """A whole page. `badge`: a state (for its colour) and what it says; `style`: what it has besides the style of all."""
    script = (HERE / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_styles() + style)),
    )
    state = tag("span", badge[1], class_="badge", data_phase=badge[0]) if badge else None
    about = tag("div", tag("h1", title), tag("p", subtitle, class_="muted"), class_="run")
    header = tag("header", tag("div", about, state, class_="top-row"), class_="top")
    foot = tag(
        "footer",
        f"adaptive-rec {__version__} · this file is complete, nothing is loaded from elsewhere",
        class_="muted",
    )
    body = tag("body", header, tag("main", *sections), foot, tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def write_page(text: str, out: Path) -> None:
    """Write a page so that a reader sees the old one or the new one. Raises UsageError where that cannot be."""
    draft = out.with_name(f".{out.name}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(out)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None


def section(title: str, *parts: Any, note: str = "", **attributes: Any) -> Markup:
    said = tag("p", note, class_="muted") if note else None
    return tag("section", tag("h2", title), said, *parts, **attributes)


def tile(label: str, value: str, below: str = "") -> Markup:
    return tag(
        "div",
        tag("span", label, class_="label"),
        tag("b", value),
        tag("span", below, class_="muted"),
        class_="card tile",
    )


def facts(rows: Iterable[tuple[str, Any]]) -> Markup:
    """Labels and values; what is empty is left out."""
    listed = [part for label, value in rows if value not in ("", None) for part in (tag("dt", label), tag("dd", value))]
    return tag("dl", *listed, class_="facts")


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
    """A table; columns whose heads end in ``>`` stand to the right, the first cell of a row is its head."""
    side = ["n" if head.endswith(">") else None for head in heads]
    top = [tag("th", head.rstrip(">"), scope="col", class_=look) for head, look in zip(heads, side, strict=True)]
    body = []
    for row in rows:
        cells = [
            tag("th" if place == 0 else "td", cell, class_=look, scope="row" if place == 0 else None)
            for place, (cell, look) in enumerate(zip(row, side, strict=True))
        ]
        body.append(tag("tr", *cells))
    said = tag("caption", caption) if caption else None
    listed = tag("table", said, tag("thead", tag("tr", *top)), tag("tbody", *body), class_="grid")
    return tag("div", listed, class_="card scroll")


def grid(*figures: Any) -> Markup:
    return tag("div", *figures, class_="charts")


def lines(texts: Iterable[str]) -> Markup:
    return join(tag("p", text, class_="notice warn") for text in texts)


def _styles() -> str:
    folder = HERE.parents[1] / "service" / "dashboard"
    texts = [(folder / name).read_text(encoding="utf-8") for name in HOUSE_STYLE]
    return "\n".join([*texts, (HERE / "report.css").read_text(encoding="utf-8")])
