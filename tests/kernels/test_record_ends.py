"""The search for ends of CSV records beside its plain twin, and beside Arrow, which parses what it cuts."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels.record_ends import FIELD_START, last_record_end
from adaptive_rec.kernels.reference.record_ends import record_ends


def found_ends(text: bytes, sizes: list[int]) -> list[int]:
    """All ends that the kernel reports, of the text in pieces of these sizes, over and over."""
    ends, state, start, piece = [], FIELD_START, 0, 0
    while start < len(text):
        stop = min(len(text), start + sizes[piece % len(sizes)])
        end, state, _ = last_record_end(np.frombuffer(text[:stop], np.uint8), start, state, ord(","))
        ends += [end] if end >= 0 else []
        start, piece = stop, piece + 1
    return ends


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (b'a,b\n"x\n",y\r\n1,2', [4, 12]),
        (b'5" disk,b\nc\n', [10, 12]),
        (b'"a""\n",1\n"b" c"\n', [9, 16]),
        (b"a\rb\r\nc\r", [2, 5]),
        (b"\n\n", [1, 2]),
    ],
)
def test_quoted_line_ends_do_not_end_a_record(text: bytes, ends: list[int]) -> None:
    assert found_ends(text, [1]) == record_ends(text, b",") == ends


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"\r\n", b"x"]), max_size=40),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_ends_are_those_of_the_twin_however_the_text_is_cut(parts: list[bytes], sizes: list[int]) -> None:
    text = b"".join(parts)
    ends = record_ends(text, b",")
    assert found_ends(text, [1]) == ends
    _, _, longest = last_record_end(np.frombuffer(text, np.uint8), 0, FIELD_START, ord(","))
    assert longest == max(np.diff(ends, prepend=0), default=0)
    assert set(found_ends(text, sizes)) <= set(found_ends(text, [1]))
    assert found_ends(text, [1])[-1:] == found_ends(text, sizes)[-1:]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["", "x", 'a"b', "p,q", "l\nm", '"', "\r"]), min_size=2, max_size=2), min_size=1)
)
def test_arrow_reads_the_same_rows_from_the_pieces_as_from_the_whole(rows: list[list[str]]) -> None:
    text = "".join(",".join('"' + field.replace('"', '""') + '"' for field in row) + "\n" for row in rows).encode()
    ends = [0, *found_ends(text, [3])]
    pieces = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    assert b"".join(pieces) == text
    assert [row for piece in pieces for row in arrow_rows(piece)] == arrow_rows(text)


def arrow_rows(text: bytes) -> list[dict[str, str]]:
    read = pyarrow.csv.ReadOptions(column_names=["a", "b"])
    kinds = pyarrow.csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()})
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    return pyarrow.csv.read_csv(io.BytesIO(text), read, parse, kinds).to_pylist()
