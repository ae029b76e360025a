"""The kit of pages escapes text, and its scales hold the values with round ticks."""

from __future__ import annotations

import json
import re

import pytest

from adaptive_rec.offline.pages.markup import data, tag
from adaptive_rec.offline.pages.scale import bounds, height, linear, logarithmic

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"


def test_json_for_the_script_ends_no_element() -> None:
    made = data({"a": HOSTILE}, class_="figures")
    inner = re.fullmatch(r'<script type="application/json" class="figures">(.*)</script>', made)
    assert inner is not None
    assert "<" not in inner[1]
    assert json.loads(inner[1]) == {"a": HOSTILE}


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", tag("i", '"'), None, title='"><') == '<p title="&#34;&gt;&lt;">&lt;b&gt;<i>&#34;</i></p>'
    assert tag("p", "a\x1b[2Jb\nc") == "<p>a\\x1b[2Jb\nc</p>"


def test_control_characters_are_written_out_in_attributes_too() -> None:
    assert tag("p", title="a\x1b\u202e") == '<p title="a\\x1b\\u202e"></p>'


# Scales --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.5383, 0.6911), (0, 409600), (3, 3), (0, 0), (-2, 5), (0, 3e-7)])
def test_a_linear_scale_has_round_ticks_within_it(low: float, high: float) -> None:
    scale = linear(low, high, str)
    assert scale.low - 1e-9 <= min(scale.ticks) <= max(scale.ticks) <= scale.high + 1e-9
    assert 2 <= len(scale.ticks) <= 8
    assert [scale.place(scale.low), scale.place(scale.high)] == [0.0, 1.0]


def test_sizes_have_ticks_round_in_units_of_1024() -> None:
    assert linear(0, 300 << 10, str, binary=True).ticks == (0, 100 << 10, 200 << 10, 300 << 10)


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
