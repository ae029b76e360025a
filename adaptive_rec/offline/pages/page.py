"""Self-contained pages from templates: style, script and chart library stand in the file, text is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from adaptive_rec import units
from adaptive_rec.errors import UsageError
from adaptive_rec.system.drafts import draft_file
from adaptive_rec.system.version import __version__

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
DASHBOARD = HERE.parents[1] / "service" / "dashboard"
STYLES = (*(DASHBOARD / name for name in ("base.css", "screens.css", "charts.css", "uPlot.min.css")), HERE / "page.css")
"""Style sheets of every page; those of the dashboard define colours, type, cards, tables and charts."""
SCRIPTS = (DASHBOARD / "uPlot.iife.min.js", HERE / "page.js")
FILTERS = (units.clock, units.count, units.exact_size, units.fine, units.four, units.percent, units.size, units.whole)
"""Number formats, filters of templates by their names. ``count`` takes the place of Jinja's filter of this name."""


def page(
    template: str, title: str, subtitle: str, badge: tuple[str, str] | None = None, style: str = "", **values: Any
) -> str:
    """Return a whole page. `badge`: a state, which selects the colour, and its text; `style`: a further style sheet."""
    script = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    sheets = [*STYLES, *([HERE / style] if style else [])]
    return templates().get_template(template).render(
        values, title=title, subtitle=subtitle, badge=badge, version=__version__,
        styles=Markup("\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets)), script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )  # fmt: skip


@cache
def templates() -> jinja2.Environment:
    """Return the environment of the templates, in which a name without a value is an error."""
    import jinja2  # late: commands that make no page do without it

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_printable,
        extensions=["jinja2.ext.do"],
    )  # fmt: skip
    made.filters.update({function.__name__: _dashed(function) for function in FILTERS})
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made


def _dashed(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a number format with a dash for a number that is not known."""
    return lambda value: "–" if value is None else text(value)


def _printable(part: Any) -> Any:
    """Return a value as text in which characters that control or reorder what follows are written out; markup as it is."""
    if part is None or isinstance(part, Markup):
        return "" if part is None else part
    return units.printable(str(part), keep="\n")


def write_page(text: str, out: Path) -> None:
    """Write a file so that readers see either the old text or the new one. Raises UsageError where it cannot be written."""
    try:
        with draft_file(out) as (draft, descriptor):
            with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
            draft.replace(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None
