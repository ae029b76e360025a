"""The search for ends of CSV records beside its plain twin, and beside Arrow, which parses what it cuts."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels.record_ends import BACKSLASH, FIELD_START, NO_ESCAPE, doubled, judged, last_record_end
from tests.kernels.reference.record_ends import doubled as twin_of_doubled
from tests.kernels.reference.record_ends import record_ends

ESCAPES = {b"": NO_ESCAPE, b"\\": BACKSLASH}


def found_ends(text: bytes, sizes: list[int], escape: int = NO_ESCAPE) -> list[int]:
    """All ends that the kernel reports, of the text in pieces of these sizes, over and over."""
    ends, state, start, piece = [], FIELD_START, 0, 0
    while start < len(text):
        stop = min(len(text), start + sizes[piece % len(sizes)])
        end, state, _ = last_record_end(np.frombuffer(text[:stop], np.uint8), start, state, ord(","), escape)
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
    st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"\r\n", b"x", b"\\", b'\\"']), max_size=40),
    st.lists(st.integers(1, 7), min_size=1),
    st.sampled_from(list(ESCAPES)),
)
def test_ends_are_those_of_the_twin_however_the_text_is_cut(parts: list[bytes], sizes: list[int], mark: bytes) -> None:
    text, escape = b"".join(parts), ESCAPES[mark]
    ends = record_ends(text, b",", mark)
    assert found_ends(text, [1], escape) == ends
    _, _, longest = last_record_end(np.frombuffer(text, np.uint8), 0, FIELD_START, ord(","), escape)
    assert longest == max(np.diff(ends, prepend=0), default=0)
    assert set(found_ends(text, sizes, escape)) <= set(found_ends(text, [1], escape))
    assert found_ends(text, [1], escape)[-1:] == found_ends(text, sizes, escape)[-1:]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b'"', b",", b"\n", b"\r\n", b"x", b"\\", b'\\"']), max_size=40))
def test_escaped_marks_are_doubled_as_the_twin_does_it(parts: list[bytes]) -> None:
    text = b"".join(parts)
    text = text[: (record_ends(text, b",", b"\\") or [0])[-1]]
    out = np.empty(len(text), np.uint8)
    size = doubled(np.frombuffer(text, np.uint8), ord(","), BACKSLASH, out)
    assert out[:size].tobytes() == twin_of_doubled(text, b",", b"\\")


FIELDS = st.text(st.sampled_from('ab"\\,\n'), max_size=6)


def spark_text(rows: list[list[str]]) -> str:
    """Rows as Spark writes them by default: marks, and escape characters within marks, after a backslash."""
    quoted = [['"' + field.replace("\\", "\\\\").replace('"', '\\"') + '"' for field in row] for row in rows]
    return "".join(",".join(row) + "\n" for row in quoted)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), min_size=1, max_size=8))
def test_what_spark_writes_is_read_back_and_has_no_fault_in_its_dialect(rows: list[list[str]]) -> None:
    text = spark_text(rows).encode()
    out = np.empty(len(text), np.uint8)
    size = doubled(np.frombuffer(text, np.uint8), ord(","), BACKSLASH, out)
    assert [list(row.values()) for row in arrow_rows(out[:size].tobytes())] == rows
    faults, _, first = judged(np.frombuffer(text, np.uint8), ord(","), BACKSLASH, 2)
    assert faults == 0
    assert first == next((n for n, row in enumerate(rows) if any('"' in field for field in row)), -1)


@pytest.mark.parametrize(
    ("text", "as_doubled", "as_escaped"),
    [
        (b'a,b\n"24\\"",1\nx,2\n"9\\"",3\n', 1, 0),
        (b'"C:\\",1\n"x",2\n', 0, 1),
        (b'"{""a"": ""b\\""""}",1\n', 0, 1),
        (b"a,b\n\n1\n", 1, 1),
        (b'"a\nb",1\r\n"c",2\r\n', 0, 0),
    ],
)
def test_faults_tell_dialects_apart(text: bytes, as_doubled: int, as_escaped: int) -> None:
    data = np.frombuffer(text, np.uint8)
    assert [judged(data, ord(","), escape, 2)[0] for escape in (NO_ESCAPE, BACKSLASH)] == [as_doubled, as_escaped]


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
