"""What inference makes of columns of texts: numbers written for people, several values, codes, dates, RecBole's headers."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adaptive_rec.data.tabular.column_kind import Sample, judge
from adaptive_rec.data.tabular.infer import infer
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.data.tabular.schema_text import schema_toml

ROWS = 1500
GENRES = ["Action", "Comedy", "Drama", "Horror", "Romance", "Thriller"]
Text = Callable[[random.Random], str]


def judged(text: Text, name: str = "x", rows: int = ROWS) -> tuple[str, dict[str, Any], str]:
    dice = random.Random(1)
    column = pa.array([text(dice) for _ in range(rows)])
    kind, settings, why = judge(Sample.of(name, column))
    return kind, {key: value for key, value in settings.items() if key != "transform"}, why


def ids(dice: random.Random, many: int = 200) -> list[str]:
    return [str(1 + int(many * dice.random() ** 2)) for _ in range(dice.randrange(1, 6))]


def some(dice: random.Random) -> list[str]:
    return sorted(dice.sample(GENRES, dice.randrange(1, 4)))


def eu(number: str) -> str:
    return number.translate(str.maketrans(",.", ".,"))


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        (lambda r: f"{r.randrange(100_000):,}", "us"),
        (lambda r: f"{r.random() * 5000:,.2f}", "us"),
        (lambda r: f"${r.random() * 90:.2f}", "us"),
        (lambda r: f"US$ {r.random() * 9000:,.2f}", "us"),
        (lambda r: f"{r.random() * 90:.2f} USD", "us"),
        (lambda r: f"{r.random() * 100:.1f}%", "us"),
        (lambda r: f"({r.randrange(1, 90)})" if r.random() < 0.3 else str(r.randrange(90)), "us"),
        (lambda r: f"{r.randrange(100_000):,}".replace(",", "\u202f"), "us"),
        (lambda r: eu(f"{r.random() * 5000:,.2f}"), "eu"),
        (lambda r: eu(f"{r.random() * 9:.1f}"), "eu"),
        (lambda r: eu(f"{r.random() * 50:.2f} €"), "eu"),
        (lambda r: eu(f"{r.randrange(100_000):,}"), "eu"),
        (lambda r: eu(f"{r.random():.3f}"), "eu"),
        (lambda r: f"{r.random() * 99:.3f}", ""),
    ],
)
def test_numbers_for_people_are_dense_with_their_format(text: Text, format_: str) -> None:
    kind, settings, why = judged(text)
    assert (kind, settings.get("format", "")) == ("dense", format_), why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lambda r: r.choice("$€") + f"{r.random() * 50:.2f}", "amounts in several currencies: $, €"),
        (lambda r: f"{r.random() * 9:.2f}" + r.choice(["%", ""]), "percentages among other numbers"),
        (
            lambda r: f"{r.randrange(1, 99)},{r.randrange(1000):03d}",
            'two ways; { column = "x", format = "us" } is for 1,234.5, { column = "x", format = "eu" } for 1.234,5',
        ),
        (lambda r: f"{r.random() * 100:.2f} kg", "numbers with a unit"),
        (lambda r: f"${r.random() * 100:.2f}k", "numbers with a unit"),
        (lambda r: "free" if r.random() < 0.03 else f"{r.random() * 99:.4f}", "numbers, but for 'free'"),
    ],
)
def test_what_may_be_a_number_is_no_category(text: Text, why: str) -> None:
    kind, _, said = judged(text)
    assert kind == "unused"
    assert why in said


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        *(
            (lambda r, mark=mark: mark.join(ids(r)), {"separator": mark, "type": "integer"})
            for mark in ("|", "||", "\t", "^", ";", ",", ", ", " | ", " ", "#", "\x1d", "\x01", "\x02")
        ),
        (lambda r: json.dumps([int(each) for each in ids(r)]), {"list": "brackets", "type": "integer"}),
        (lambda r: json.dumps(ids(r)), {"list": "brackets", "type": "integer"}),
        (lambda r: str(ids(r)), {"list": "brackets", "type": "integer"}),
        (lambda r: str(tuple(map(int, ids(r)))), {"list": "brackets", "type": "integer"}),
        (lambda r: f"[{'  '.join(ids(r))}]", {"list": "brackets", "type": "integer"}),
        (lambda r: f"[{', '.join(f'np.int64({each})' for each in ids(r))}]", {"list": "brackets", "type": "integer"}),
        (lambda r: str(some(r)), {"list": "brackets"}),
        (lambda r: f"[{', '.join(some(r))}]", {"list": "brackets"}),
        (lambda r: "|".join(some(r)), {"separator": "|"}),
        (lambda r: ", ".join(some(r)), {"separator": ", "}),
        (lambda r: " ".join("N" + each for each in ids(r)), {"separator": " "}),
        (lambda r: "|".join("0" + each for each in ids(r)), {"separator": "|"}),
    ],
)
def test_several_values_are_a_bag(text: Text, settings: dict[str, str]) -> None:
    kind, found, why = judged(text)
    assert (kind, found) == ("sparse", settings), why


FIRST = ["James", "Mary", "John", "Linda", "Robert", "Susan"]
LAST = ["Smith", "Jones", "Brown", "Taylor", "Wilson", "Davies"]


@pytest.mark.parametrize(
    "text",
    [
        lambda r: f"{r.choice(LAST)}, {r.choice(FIRST)}",
        lambda r: f"{r.choice(FIRST)} {r.choice(LAST)}",
        lambda r: f"{r.randrange(1, 999)} {r.choice(LAST)} St, {r.choice(['Troy', 'Salem'])}, {r.choice(['IL', 'NY'])}",
        lambda r: f"The {r.choice(LAST)} of {r.choice(FIRST)} {r.randrange(300)}" + r.choice(["", ", A Film"]),
        lambda r: r.choice(["1920,1080", "1280,720", "800,600"]),
        lambda r: f"({r.randrange(200, 220)}) 555-{r.randrange(10_000):04d}",
        lambda r: f"{r.randrange(9)}.{r.randrange(9)}.{r.randrange(9)}",
        lambda r: f"{{{r.randrange(50):08x}}}",
        lambda r: f"{r.randrange(1, 9)}e{r.randrange(1, 9)}",
        lambda r: f"0x{r.randrange(99):X}",
        lambda r: r.choice(["500 ml", "1 l", "2 l"]),
        lambda r: " ".join(some(r)),
    ],
)
def test_names_codes_and_sentences_stay_one_value(text: Text) -> None:
    kind, settings, _ = judged(text, "sku")
    assert (kind, settings) == ("sparse", {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lambda r: str([r.random() for _ in range(3)]), "lists of numbers that are not whole"),
        (lambda r: " ".join(f"{r.gauss(0, 1):.4f}" for _ in range(3)), "lists of numbers that are not whole"),
        (lambda r: f"{r.random() * 90:.4f},{r.random() * 180:.4f}", "lists of numbers that are not whole"),
        (lambda r: str([{"id": r.randrange(9)}]), "lists of lists, or objects"),
        (lambda r: json.dumps({"a": r.randrange(9)}), "lists of lists, or objects"),
        (lambda r: "[[1, 2], [3]]", "lists of lists, or objects"),
        (lambda r: str([r.random() > 2, *(r.randrange(10**9) for _ in range(3))][1:]), "all different"),
    ],
)
def test_lists_that_are_no_bags_are_not_used(text: Text, why: str) -> None:
    kind, _, said = judged(text)
    assert kind == "unused"
    assert why in said


@pytest.mark.parametrize("rows", [60, ROWS])
def test_what_is_not_sure_is_proposed(rows: int) -> None:
    kind, _, why = judged(lambda r: ",".join(map(str, r.choices(range(10**6), k=3))), rows=rows)
    assert 'to have lists: { column = "x", separator = "," }' in why
    assert kind == ("sparse" if rows == 60 else "unused")
    assert 'separator = " " }' in judged(lambda r: " ".join(some(r)))[2]


@pytest.mark.parametrize(
    "text",
    [
        lambda r: f"Oct {r.randrange(1, 29)}, 2014",
        lambda r: f"10 {r.randrange(1, 29):02d}, 2014",
        lambda r: f"{r.randrange(1, 29):02d}-Oct-2014",
        lambda r: f"2014-10-{r.randrange(1, 29):02d}T05:00:00+02:00",
        lambda r: f"2014-10-{r.randrange(1, 29):02d} 05:00:00.123 UTC",
        lambda r: f"10/{r.randrange(1, 29):02d}/14 5:00 PM",
        lambda r: f"Tue, {r.randrange(1, 29):02d} Oct 2014 05:00:00 GMT",
        lambda r: f"Tue Oct {r.randrange(1, 29)} 05:00:00 2014",
        lambda r: f"{r.randrange(1, 29):02d}/Oct/2014:05:00:00 +0000",
        lambda r: f"{r.randrange(24)}:{r.randrange(60):02d}",
        lambda r: f"20141021T{r.randrange(24):02d}0000Z",
        lambda r: f"2014-{r.randrange(1, 13):02d}",
        lambda r: f"201410{r.randrange(1, 29):02d}",
        lambda r: f"201410{r.randrange(1, 29):02d}.0",
        lambda r: f"201410{r.randrange(1, 29):02d} 05:00:00",
        lambda r: f"141021{r.randrange(24):02d}",
    ],
)
def test_dates_are_times(text: Text) -> None:
    kind, _, why = judged(text)
    assert kind == "unused"
    assert why.startswith("a time")


def test_numbers_that_are_dates_are_times_unless_their_name_is_one_of_ids() -> None:
    assert judged(lambda r: f"101015{r.randrange(24):02d}", "category")[0] == "sparse"
    assert judged(lambda r: f"141021{r.randrange(24):02d}", "hour") == ("unused", {}, "a time")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("user_id:token", lambda r: str(r.randrange(90)), ("sparse", {"type": "integer", "name": "user_id"})),
        ("city:token", lambda r: r.choice(FIRST), ("sparse", {"name": "city"})),
        ("genre:token_seq", lambda r: " ".join(some(r)), ("sparse", {"separator": " ", "name": "genre"})),
        ("hist:token_seq", lambda r: " ".join(ids(r)), ("sparse", {"separator": " ", "type": "integer", "name": "hist"})),
        ("rating:float", lambda r: str(r.randrange(5)), ("dense", {})),
        ("timestamp:float", lambda r: f"{1.4e9 + r.randrange(10**6)}", ("unused", {})),
        ("vector:float_seq", lambda r: "0.1 0.5", ("unused", {})),
    ],
)
def test_headers_of_recbole_say_what_a_column_is(name: str, text: Text, expected: tuple[str, dict[str, str]]) -> None:
    kind, settings, _ = judged(text, name)
    assert (kind, settings) == expected


def test_a_schema_of_texts_reads_the_file_that_it_was_inferred_from(tmp_path: Path) -> None:
    columns: dict[str, Text] = {
        "click": lambda r: str(r.randrange(2)),
        "hist:token_seq": lambda r: " ".join(ids(r)),
        "seen": lambda r: r.choice(["", "[]", "None", str(ids(r))]),
        "price": lambda r: r.choice(["NA", f"${r.random() * 2000:,.2f}"]),
        "sku": lambda r: f"{r.randrange(1, 7)}e{r.randrange(1, 7)}",
        "age": lambda r: r.choice(["<NA>", "NA", "31", "47"]),
        "tags": lambda r: "\x02".join(some(r)),
    }
    dice, path = random.Random(2), tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *([text(dice) for text in columns.values()] for _ in range(ROWS))])
    inferred = infer(path, "click")
    (tmp_path / "s.toml").write_text(schema_toml(inferred.schema, inferred.remarks, inferred.unused))
    schema = load_schema(tmp_path / "s.toml")
    assert schema == inferred.schema
    reader = TabularReader(path, schema, skip_bad_rows=False)
    assert sum(len(block.labels_B) for block in reader.blocks()) == ROWS
    assert [column.name for column in reader.columns if column.bag] == ["hist", "seen", "tags"]
    assert reader.dense_names == ("price",)
