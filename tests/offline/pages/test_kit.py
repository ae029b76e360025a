"""Templates of pages escape text, charts become values for the page's script, and scales hold them with round ticks."""

from __future__ import annotations

import json
import re
from typing import Any

import jinja2
import pytest

from adaptive_rec.offline.pages.page import templates
from adaptive_rec.offline.pages.plot import Plot, PlotLine, PlotMark
from adaptive_rec.offline.pages.scale import bounds, height, linear_scale, logarithmic

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"


def rendered(template: str, **values: Any) -> str:
    return templates().from_string(template).render(values)


def test_json_for_the_script_ends_no_element() -> None:
    made = rendered('<script type="application/json">{{ value|tojson }}</script>', value={"a": HOSTILE})
    inner = re.fullmatch(r'<script type="application/json">(.*)</script>', made)
    assert inner is not None
    assert "<" not in inner[1]
    assert json.loads(inner[1]) == {"a": HOSTILE}


def test_text_is_escaped_and_control_characters_are_written_out_in_attributes_too() -> None:
    template = '<p title="{{ title }}">{{ text }}{{ missing }}</p>'
    made = rendered(template, title='"><\x1b\u202e', text="<b>\x1b[2Jb\nc", missing=None)
    assert made == '<p title="&#34;&gt;&lt;\\x1b\\u202e">&lt;b&gt;\\x1b[2Jb\nc</p>'


def test_a_name_without_a_value_is_an_error_and_a_number_that_is_not_known_a_dash() -> None:
    with pytest.raises(jinja2.UndefinedError):
        rendered("{{ nothing }}")
    assert rendered("{{ some|count }} {{ missing|fine }}", some=1500, missing=None) == "1,500 –"


# Charts --------------------------------------------------------------------------------------------------------------


def plotted(**more: Any) -> Plot:
    lines = [PlotLine("a", "hot", [1.0, 2.0, None], text=str), PlotLine("b", "cold", [3.0, None, 9.0], "points", str)]
    scales = linear_scale(0, 4, str), linear_scale(0, 4, str)
    return Plot("name", "Title", "", [1, 2, 4], ["one", "two", "four"], "at", *scales, lines, **more)


def test_a_plot_becomes_places_from_0_to_1_and_texts() -> None:
    made = plotted(starts=frozenset({2})).figures
    assert made["x"] == [0.25, 0.5, 1.0]
    drawn = [(each["look"], each["y"]) for each in made["series"]]
    assert drawn == [("line", [0.25, 0.5, None]), ("points", [0.75, None, 1.0])]
    assert made["values"] == [["1.0", "2.0", "–"], ["3.0", "–", "9.0"]]
    assert (made["starts"], made["at"]) == ([2], ["one", "two", "four"])
    assert made["ticks"][0][0] == [0.0, "0.0"]


def test_layers_stand_on_each_other_the_highest_at_the_back_and_begin_with_the_scale() -> None:
    made = plotted(stacked=True, starts=frozenset({1})).figures
    assert made["x"] == [0.0, 0.25, 0.5, 1.0]
    assert [each["color"] for each in made["series"]] == ["cold", "hot"]
    assert [each["y"] for each in made["series"]] == [[1.0, 1.0, 0.5, 1.0], [0.25, 0.25, 0.5, 0.0]]
    assert made["at"][:2] == ["one", "one"]
    assert made["starts"] == [2]


def test_a_band_is_drawn_behind_the_lines_where_it_has_a_height() -> None:
    made = plotted(span=[(1, 1), (1, 3), None]).figures
    assert [each["look"] for each in made["series"]] == ["edge", "edge", "line", "points"]
    assert [each["y"] for each in made["series"][:2]] == [[0.25, 0.25, 0.75, None], [0.25, 0.25, 0.25, None]]
    assert plotted(span=[(1, 1), None, None]).figures["series"][0]["look"] == "line"


def test_numbers_of_marks_that_are_close_alternate_in_height() -> None:
    marks = [PlotMark(at, "knobs", "") for at in (1, 1.05, 1.1, 3)]
    assert [lower for _, _, lower in plotted(marks=marks).placed_marks] == [False, True, False, False]


# Scales --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.5383, 0.6911), (0, 409600), (3, 3), (0, 0), (-2, 5), (0, 3e-7)])
def test_a_linear_scale_has_round_ticks_within_it(low: float, high: float) -> None:
    scale = linear_scale(low, high, str)
    assert scale.low - 1e-9 <= min(scale.ticks) <= max(scale.ticks) <= scale.high + 1e-9
    assert 2 <= len(scale.ticks) <= 8
    assert [scale.place(scale.low), scale.place(scale.high)] == [0.0, 1.0]


def test_sizes_have_ticks_round_in_units_of_1024() -> None:
    assert linear_scale(0, 300 << 10, str, binary=True).ticks == (0, 100 << 10, 200 << 10, 300 << 10)


@pytest.mark.parametrize(("low", "high", "base"), [(1, 840000, 10), (512, 41 << 20, 2), (7, 7, 10), (1e-4, 1, 10)])
def test_a_logarithmic_scale_holds_both_ends(low: float, high: float, base: int) -> None:
    scale = logarithmic(low, high, str, base)
    assert scale.low <= low * (1 + 1e-9)
    assert high <= scale.high * (1 + 1e-9)
    assert 2 <= len(scale.ticks) <= 7
    middle = (scale.low * scale.high) ** 0.5
    assert scale.place(middle) == pytest.approx(0.5)
    assert (scale.place(scale.low / 10), scale.place(0.0), scale.place(scale.high * 10)) == (0.0, 0.0, 1.0)


def test_bounds_leave_room_on_both_sides() -> None:
    low, high = bounds([1.0, None], [3.0])
    assert low < 1.0
    assert high > 3.0
    assert bounds([None]) == (0.0, 1.0)


def test_a_few_high_points_do_not_set_the_height_but_are_noted() -> None:
    high, note = height(str, [1.0] * 40 + [100.0])
    assert high < 2
    assert note == "1 point is higher than the plot, up to 100.0."
    assert height(str, [1.0, 1.2]) == (pytest.approx(1.26), "")
