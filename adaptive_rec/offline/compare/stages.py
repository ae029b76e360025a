"""Where the wall clock went, a stacked bar for each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaptive_rec.offline.compare.figures import duration
from adaptive_rec.offline.report.markup import Markup, tag
from adaptive_rec.offline.report.page import section, table
from adaptive_rec.offline.report.run_figures import STAGES, stage_color

Results = Mapping[str, Any]

LEAST_RATIO = 0.001
"""Part of the longest bar below which a stage is not drawn."""
OTHER_COLORS = ("policy-7", "policy-9", "policy-11", "policy-12")
"""Of stages that are seldom, such as the arranging of the stream."""


def stages_section(results: Results) -> Markup:
    """Seconds of the training thread by stage, over the whole run: runs may differ in their number of steps."""
    over = {policy: each["stages"] for policy, each in results["over_seeds"].items() if each["runs"]}
    longest = max(sum(stages.values()) for stages in over.values()) or 1.0
    found = {name for stages in over.values() for name, value in stages.items() if value / longest > LEAST_RATIO}
    names = sorted(found, key=_order)
    key = [tag("span", tag("i", class_="swatch", style=_color(name, names)), name, class_="legend") for name in names]
    heading = tag("h2", "Where the wall clock went", tag("span", " seconds of the training thread", class_="muted"))
    bars = [part for policy, stages in over.items() for part in _bar(policy, stages, names, longest)]
    rows = [(policy, *(duration(stages.get(name, 0.0)) for name in names)) for policy, stages in over.items()]
    folded = tag("details", tag("summary", "As a table"), table(("policy", *(f"{name}>" for name in names)), rows))
    figure = tag(
        "figure", tag("figcaption", heading), tag("div", *key, class_="legends"), tag("div", *bars, class_="dots"), folded,
        class_="card chart wide", id="stages",
    )  # fmt: skip
    note = "Means over the seeds. Work on other threads overlaps with these and is not shown."
    return section("Stages", figure, note=note)


def _bar(policy: str, stages: Mapping[str, float], names: Sequence[str], longest: float) -> list[Markup]:
    shown = [name for name in names if stages.get(name, 0.0) / longest > LEAST_RATIO]
    said = [f"{name} {duration(stages[name])}" for name in shown]
    segments = [
        tag("i", style=f"width:{stages[name] / longest:.3%};{_color(name, names)}", title=text)
        for name, text in zip(shown, said, strict=True)
    ]
    return [
        tag("span", policy, class_="dots-name", title=policy),
        tag("div", *segments, class_="stage-bar", role="img", aria_label=f"{policy}: {'; '.join(said)}"),
        tag("b", duration(sum(stages.values())), class_="dots-value"),
    ]


def _order(name: str) -> tuple[int, str]:
    known = name in STAGES[:-1]
    return (STAGES.index(name) if known else len(STAGES) + (name == STAGES[-1]), name)


def _color(name: str, names: Sequence[str]) -> str:
    seldom = [other for other in names if other not in STAGES]
    color = OTHER_COLORS[seldom.index(name) % len(OTHER_COLORS)] if name in seldom else stage_color(name)
    return f"background:var(--{color})"
