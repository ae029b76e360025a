"""The byte parser against its plain twin, on good rows, malformed rows and garbage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels import parse
from tests.kernels.reference import parse as reference_data

DENSE, CATEGORIES = 2, 3

field = st.one_of(
    st.sampled_from(
        [b"", b"0", b"1", b"-1", b"-", b"--1", b"+1", b"007", b"2147483647", b"2147483648", b"-2147483648", b"1" * 40]
        + [b"a", b"FFFFFFFF", b"ffffffff", b"100000000", b"0x1f", b"g", b"/", b":", b"@", b"`", b"\0", b"\r", b" 1"]
    ),
    st.integers(-(2**33), 2**33).map(lambda value: str(value).encode()),
    st.integers(0, 2**33).map(lambda value: f"{value:x}".encode()),
    st.binary(max_size=3),
)
good_row = st.tuples(
    st.sampled_from([b"0", b"1"]),
    *[st.integers(-(2**31) + 1, 2**31 - 1).map(lambda value: str(value).encode()) | st.just(b"")] * DENSE,
    *[st.integers(0, 2**32 - 1).map(lambda value: f"{value:08x}".encode()) | st.just(b"")] * CATEGORIES,
)
loose_row = st.tuples(st.sampled_from([b"0", b"1", b"2", b"", b"01"]), *[field] * (DENSE + CATEGORIES))
any_row = good_row | loose_row | st.lists(field, max_size=8).map(tuple)
text = st.lists(st.tuples(any_row, st.sampled_from([b"\n", b"\r\n", b"\r\r\n"])), max_size=8).map(
    lambda rows: b"".join(b"\t".join(fields) + end for fields, end in rows)
)


def parse_all(parse_rows: Callable[..., Any], data: bytes, room: int = 100) -> tuple[list[Any], list[Any]]:
    """Every row and every fault of `data`, stepping over malformed lines."""
    labels_B = np.zeros(room, dtype=np.float32)
    ints_BX = np.zeros((room, DENSE), dtype=np.int32)
    values_BF = np.zeros((room, CATEGORIES), dtype=np.uint32)
    rows: list[Any] = []
    faults: list[Any] = []
    start = 0
    while start < len(data):
        array = np.frombuffer(data, dtype=np.uint8)
        count, stop, fault, column = parse_rows(array, start, labels_B, ints_BX, values_BF)
        parts = (labels_B[:count].tolist(), ints_BX[:count].tolist(), values_BF[:count].tolist())
        rows.extend(zip(*parts, strict=True))
        faults.append((count, stop, fault, column))
        start = stop if fault == parse.FINE else data.index(b"\n", stop) + 1
    return rows, faults


@settings(deadline=None, max_examples=400)
@given(text | st.binary(max_size=200).map(lambda data: data + b"\n"), st.integers(1, 4))
def test_parser_equals_its_plain_twin(data: bytes, room: int) -> None:
    assert parse_all(parse.parse_rows, data, room) == parse_all(reference_data.parse_rows, data, room)


@settings(deadline=None, max_examples=50)
@given(st.lists(good_row, min_size=1, max_size=10), st.sampled_from([b"\n", b"\r\n"]))
def test_good_rows_read_as_written(fields: list[tuple[bytes, ...]], end: bytes) -> None:
    rows, faults = parse_all(parse.parse_rows, b"".join(b"\t".join(row) + end for row in fields))
    assert [fault for _, _, fault, _ in faults] == [parse.FINE]
    for (label, ints, values), row in zip(rows, fields, strict=True):
        assert label == int(row[0])
        assert ints == [int(value or b"0") for value in row[1 : 1 + DENSE]]
        assert values == [int(value or b"0", 16) for value in row[1 + DENSE :]]


@pytest.mark.parametrize("parse_rows", [parse.parse_rows, reference_data.parse_rows])
@pytest.mark.parametrize(
    ("line", "fault", "column"),
    [
        (b"", parse.COLUMNS, 0),
        (b"1", parse.COLUMNS, 0),
        (b"1\t2\t3\ta\tb", parse.COLUMNS, 0),
        (b"1\t2\t3\ta\tb\tc\t", parse.COLUMNS, 0),
        (b"x\tx\tx", parse.COLUMNS, 0),
        (b"2\t2\t3\ta\tb\tc", parse.LABEL, 0),
        (b"\t2\t3\ta\tb\tc", parse.LABEL, 0),
        (b"1\t2.5\t3\ta\tb\tc", parse.INTEGER, 1),
        (b"1\t2\t-\ta\tb\tc", parse.INTEGER, 2),
        (b"1\t99999999999999999999999\t3\ta\tb\tc", parse.INTEGER_RANGE, 1),
        (b"1\t2\t-2147483648\ta\tb\tc", parse.INTEGER_RANGE, 2),
        (b"1\t99999999999x\t3\ta\tb\tc", parse.INTEGER, 1),
        (b"1\t2\t3\tg\tb\tc", parse.CATEGORY, 3),
        (b"1\t2\t3\ta\tb\0\tc", parse.CATEGORY, 4),
        (b"1\t2\t3\ta\tb\t\xff", parse.CATEGORY, 5),
        (b"1\t2\t3\ta\tb\tc\r", parse.FINE, 0),
        (b"1\t2\t3\ta\tb\tc\r\r", parse.CATEGORY, 5),
        (b"1\t2\t3\ta\tb\t000000001", parse.CATEGORY_RANGE, 5),
        (b"1\t\t\t\t\t", parse.FINE, 0),
    ],
)
def test_faults(parse_rows: Callable[..., Any], line: bytes, fault: int, column: int) -> None:
    _, faults = parse_all(parse_rows, line + b"\n")
    assert [one[2:] for one in faults] == [(fault, column)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), min_size=1, max_size=60))
def test_numbering_equals_its_plain_twin(values: list[int]) -> None:
    values_N = np.array(values, dtype=np.uint32)
    fast_N, plain_N = np.empty((2, len(values)), dtype=np.int32)
    slots = np.full(128, -1, dtype=np.int32)
    assert parse.number_values(values_N, slots, fast_N) == reference_data.number_values(values_N, slots, plain_N)
    np.testing.assert_array_equal(fast_N, plain_N)


def test_numbering_is_in_order_of_first_occurrence() -> None:
    ids_N = np.empty(5, dtype=np.int32)
    values_N = np.array([7, 0, 7, 2**32 - 1, 0], dtype=np.uint32)
    assert parse.number_values(values_N, np.full(16, -1, dtype=np.int32), ids_N) == 3
    assert ids_N.tolist() == [0, 1, 0, 2, 1]
