"""The reader of CSV-like logs: the numbers that fields become, and which lines are malformed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.errors import DataError
from adaptive_rec.recipes.columns import LogColumn, LogFile, word

WORDS = ("pv", "buy", "pvx")
COLUMNS = (LogColumn("first", 99), word("kind", *WORDS), LogColumn("last"))


def lines_of(path: Path, text: str, skip: bool = False, separator: str = ",") -> LogFile:
    path.write_text(text)
    return LogFile(path, COLUMNS, skip, separator)


def read(lines: LogFile) -> list[list[int]]:
    found: list[list[int]] = np.concatenate(list(lines.blocks())).tolist()
    return found


rows = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.integers(0, 2**53)), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(rows, st.sampled_from([",", "::"]), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_values_stand_as_written(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[tuple[int, int, int]],
    separator: str,
    ends: bool,
    newline: str,
) -> None:
    text = newline.join(separator.join((str(a), WORDS[b], str(c))) for a, b, c in wanted) + (newline if ends else "")
    path = tmp_path_factory.mktemp("lines") / "log"
    path.write_bytes(text.encode())
    lines = LogFile(path, COLUMNS, False, separator)
    assert read(lines) == [list(row) for row in wanted]
    assert (lines.bad_rows, lines.read_ratio) == (0, 1.0)


GOOD = "5,pv,70\n", "6,buy,80\n"
BAD = {
    "100,pv,1": "column first: must be a whole number between 0 and 99, got '100'",
    "1,px,1": "column kind: must be one of pv, buy, pvx, got 'px'",
    "1,1,1": "column kind: must be one of pv, buy, pvx, got '1'",
    f"1,{10**17},1": f"column kind: must be one of pv, buy, pvx, got '{10**17}'",
    "1,pv": ": row must have 3 columns between commas, got 2",
    "1,pv,1,1": ": row must have 3 columns between commas, got 4",
    "": ": row must have 3 columns between commas, got 1",
    "-1,pv,1": "column first: .* got '-1'",
    "1,pv, 1": "column last: .* got ' 1'",
    "1,pv,": "column last: .* got ''",
    f"1,pv,{2**53 + 1}": "column last: .* got '9007199254740993'",
    "1,pv," + "9" * 60: "column last: .* got '9+'",
    "1,pv,\u0665": r"column last: .* got '\\xd9\\xa5'",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_malformed_line_is_reported_or_skipped(tmp_path: Path, bad: str) -> None:
    text = GOOD[0] + bad + "\n" + GOOD[1]
    with pytest.raises(DataError, match=f"log, line 2.*{BAD[bad]}"):
        read(lines_of(tmp_path / "log", text))
    lines = lines_of(tmp_path / "log", text, skip=True)
    assert read(lines) == [[5, 0, 70], [6, 1, 80]]
    assert lines.bad_rows == 1


@pytest.mark.parametrize("bad", ["1,pv,1", "1:pv:1", "1::pv::1::", "1::pv,1"])
def test_another_separator_is_no_comma(tmp_path: Path, bad: str) -> None:
    with pytest.raises(DataError, match="line 2: row must have 3 columns between '::'"):
        read(lines_of(tmp_path / "log", f"5::pv::70\n{bad}\n", separator="::"))


def test_only_malformed_lines_make_no_rows(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "log", "x\ny\n", skip=True)
    assert np.concatenate(list(lines.blocks())).shape == (0, 3)
    assert lines.bad_rows == 2
