"""``placement``: tables, rows of a table, one row."""

from __future__ import annotations

import json
from typing import Any


def test_the_tables_are_listed_with_a_sum(rows_of, told, service):
    rows = rows_of(told("placement"))
    assert rows[0][:4] == ["table", "dim", "rows", "hot"]
    assert rows[1] == ["C1", "16", "4000", "1000", "250", "3000", "25%", "95%", "3.0 MiB"]
    assert rows[2][0] == "\\x1b[31mred"
    assert rows[2][-2:] == ["-", "3.0 MiB"]
    assert rows[3] == ["all", "8000", "2000", "500", "6000", "25%", "6.0 MiB of 8.0 MiB"]


def test_cold_rows_on_a_disk_have_columns_of_their_own(rows_of, told, service, answers):
    listed = [{**table, "disk": 2000, "unwritten": table["cold"] - 2000} for table in answers.placement["tables"]]
    service.answer("GET", "/api/v1/placement", answers.placement | {"tables": listed})
    rows = rows_of(told("placement"))
    assert rows[0][2:8] == ["rows", "hot", "stale", "cold", "disk", "unwritten"]
    assert rows[1][2:8] == ["4000", "1000", "250", "3000", "2000", "1000"]
    assert rows[-1][1:7] == ["8000", "2000", "500", "6000", "4000", "2000"]


def page(table: str, row_class: str, cursor: str | None = None) -> dict[str, Any]:
    rows = [
        {"id": 208, "class": "stale", "slot": 86, "estimate": 37_300.0, "movement": 0.000734, "value": None},
        {"id": 9, "class": "cold", "slot": None, "estimate": 3.0, "movement": None, "value": None},
    ]
    return {"index": 0, "table": table, "class": row_class, "version": 14, "rows": rows, "cursor": cursor}


def test_rows_of_a_table_are_listed(rows_of, told, service):
    service.answer("GET", "/api/v1/placement/0", page("C1", "hot", "more"))
    rows = rows_of(told("placement", "C1"))
    assert rows == [
        ["C1: 2 of 1,000 hot rows"],
        ["id", "class", "slot", "estimate", "movement"],
        ["208", "stale", "86", "37.3 k", "0.000734"],
        ["9", "cold", "-", "3", "-"],
    ]
    assert service.requests[-1]["query"] == "class=hot&sort=estimate&limit=20"


def test_rows_are_shown_as_they_were_in_the_data(rows_of, told, service):
    found = page("C1", "hot")
    for row, value in zip(found["rows"], ("item 17", None), strict=True):
        row["value"] = value
    found["rows"][1]["id"] = 1
    service.answer("GET", "/api/v1/placement/0", found)
    rows = rows_of(told("placement", "C1"))
    assert rows[1][-1] == "value"
    assert [row[-1] for row in rows[2:]] == ["item 17", "(rare values)"]
    service.answer("GET", "/api/v1/placement/0/rows/208", {**found["rows"][0], "table": "C1", "last_change": None})
    assert ["value", "item 17"] in rows_of(told("placement", "C1", "208"))


def test_class_order_and_number_of_rows_are_requested(told, service):
    service.answer("GET", "/api/v1/placement/1", page("x", "cold"))
    text = told("placement", "--class", "cold", "1", "--limit=1000")  # by index, options around it
    assert text.startswith("x: 3,000 cold rows")
    assert service.requests[-1]["query"] == "class=cold&sort=id&limit=1000"
    told("placement", "1", "--class=stale", "--sort=id")
    assert service.requests[-1]["query"] == "class=stale&sort=id&limit=20"
    assert json.loads(told("placement", "1", "--json"))["version"] == 14


def test_all_about_a_row(rows_of, told, service):
    row = {
        **page("C1", "hot")["rows"][0],
        "index": 0,
        "table": "C1",
        "last_change": {"step": 1250, "from": "cold", "to": "hot"},
        "why": "stale: it moved little",
    }
    service.answer("GET", "/api/v1/placement/0/rows/208", row)
    rows = rows_of(told("placement", "C1", "208"))
    assert ["class", "stale"] in rows
    assert ["why", "stale: it moved little"] in rows
    assert ["slot", "86"] in rows
    assert ["changed", "cold -> hot at step 1,250"] in rows
    service.answer("GET", "/api/v1/placement/0/rows/208", {**row, "last_change": None, "slot": None, "movement": None})
    rows = rows_of(told("placement", "C1", "208"))
    assert ["changed", "not lately"] in rows
    assert ["movement", "not measured"] in rows
    assert "slot" not in {row[0] for row in rows}


def test_the_row_of_a_raw_id(rows_of, told, service):
    row = {**page("C1", "hot")["rows"][0], "table": "C1", "last_change": None, "own_row": True, "counted": 0}
    service.answer("GET", f"/api/v1/placement/0/keys/{2**63 - 1}", {**row, "key": str(2**63 - 1)})
    rows = rows_of(told("placement", "C1", "--key", str(2**63 - 1)))
    assert ["id", str(2**63 - 1)] in rows
    assert ["row", "208"] in rows
    assert "counted" not in {row[0] for row in rows}
    service.answer("GET", "/api/v1/placement/0/keys/-9", {**row, "key": "-9", "own_row": False, "counted": 3})
    rows = rows_of(told("placement", "C1", "--key=-9"))
    assert ["row", "shared row 208: the id has none of its own"] in rows
    assert ["counted", "3 lookups remembered from when it had no row of its own"] in rows


def test_what_is_no_table_row_or_limit_is_refused(refused, service):
    for number in (str(2**63), "x", "--5"):
        assert "--key must be a whole number from -9223372036854775808" in refused("placement", "C1", f"--key={number}")
    for words in (["--key=5"], ["C1", "7", "--key=5"]):
        assert "--key goes with a TABLE and no ID" in refused("placement", *words)
    assert "an index from 0 to 1, got C2\n" in refused("placement", "C2")
    assert "got 2" in refused("placement", "2")
    assert "ID must be a whole number from 0" in refused("placement", "C1", "x")
    assert "--limit must be a whole number from 1 to 1000, got 0" in refused("placement", "C1", "--limit=0")
    assert "--limit must be" in refused("placement", "C1", "--limit=1001")
    for cold in ("cold", "disk"):
        assert "cold rows are listed by id" in refused("placement", "C1", f"--class={cold}", "--sort=estimate")
    assert "invalid choice: 'warm'" in refused("placement", "C1", "--class=warm")
