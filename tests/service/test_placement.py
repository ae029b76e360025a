"""Placement over HTTP against a twin that looks at one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.kernels.reference.sketch import sketch_estimate
from tests.matrix import Case, grid

TABLES, CLASSES = [0, 1, 2], ["hot", "stale", "cold"]
Rows = list[dict[str, Any]]


def truth(run: Any, table: int) -> Rows:
    """Every row of a table as it should be told, found one by one."""
    return [true_row(run.placement, run.tables[table], id) for id in range(run.tables[table]["rows"])]


def true_row(placement: Any, table: dict[str, Any], id: int) -> dict[str, Any]:
    row, tier = table["first_row"] + id, placement.tiers[table["pool"]]
    slot = int(placement.slot_of_row[row])
    if slot < 0:
        lookups = np.zeros(1)
        sketch_estimate(placement.counters, np.array([row]), placement.seeds[0], placement.unit, lookups)
        return {"id": id, "class": "cold", "slot": None, "estimate": lookups[0], "movement": None, "value": None}
    movement = float(tier.movement_H[slot])
    return {
        "id": id,
        "class": "stale" if tier.stale_H[slot] else "hot",
        "slot": slot,
        "estimate": float(tier.estimate_H[slot]),
        "movement": movement if np.isfinite(movement) else None,
        "value": None,
    }


def truth_on_disk(run: Any, table: int) -> Rows:
    """The same of a run with a disk."""
    first, rows = run.tables[table]["first_row"], truth(run, table)
    homes = ["unwritten" if address == 0 else "disk" for address in run.writer.address_R[first : first + len(rows)].tolist()]
    if run.in_memory:
        slots = run.writer.memory_slot_R[first : first + len(rows)].tolist()
        homes = ["memory" if slot >= 0 else home for home, slot in zip(homes, slots, strict=True)]
    return [{**row, "class": home if row["class"] == "cold" else row["class"]} for row, home in zip(rows, homes, strict=True)]


def walk(client: Any, table: int, limit: int, **query: Any) -> Rows:
    """All pages."""
    rows: Rows = []
    cursor: dict[str, str] = {}
    for _ in range(5000):
        page = client.get(f"/api/v1/placement/{table}", params={"limit": limit, **query, **cursor}).json()
        rows += page["rows"]
        assert len(page["rows"]) == limit or page["cursor"] is None
        if page["cursor"] is None:
            return rows
        cursor = {"cursor": page["cursor"]}
    raise AssertionError("the pages have no end")


def in_turn(cases: Sequence[Case]) -> list[Case]:
    """Each class with one table, by turns."""
    return [case for case in cases if case["table"] == CLASSES.index(case["wanted"])]


@grid(lambda case: True, in_turn, wanted=CLASSES, table=TABLES)
def test_pages_by_id(client: Any, run: Any, table: int, wanted: str) -> None:
    classes = {"hot": ("hot", "stale")}.get(wanted, (wanted,))
    expected = [row for row in truth(run, table) if row["class"] in classes]
    assert expected
    for limit in (37, 1000):
        assert walk(client, table, limit, **{"class": wanted}) == expected


def few_pages(cases: Sequence[Case]) -> list[Case]:
    """Each class and each size of a page with one table; one row at a time of the smallest."""
    table_of = {("hot", 1): 1, ("hot", 7): 0, ("hot", 1000): 2, ("stale", 1): 1, ("stale", 7): 2, ("stale", 1000): 0}
    return [case for case in cases if case["table"] == table_of[case["wanted"], case["limit"]]]


@grid(lambda case: True, few_pages, limit=[1, 7, 1000], wanted=["hot", "stale"], table=TABLES)
def test_pages_by_estimate(client: Any, run: Any, table: int, wanted: str, limit: int) -> None:
    classes = {"hot": ("hot", "stale")}.get(wanted, (wanted,))
    rows = [row for row in truth(run, table) if row["class"] in classes]
    expected = sorted(rows, key=lambda row: (-row["estimate"], row["id"]))
    assert walk(client, table, limit, sort="estimate", **{"class": wanted}) == expected


def test_single_rows_and_many_at_once(client: Any, run: Any) -> None:
    expected = truth(run, 0)
    for id in (0, 1, 500, 999):
        row = client.get(f"/api/v1/placement/0/rows/{id}").json()
        assert {key: row[key] for key in expected[id]} == expected[id]
        assert (row["index"], row["table"]) == (0, "C1")
    ids = [999, 3, 3, 0]
    answer = client.post("/api/v1/placement/query", json={"table": "C1", "ids": ids}).json()
    assert answer["rows"] == [expected[id] for id in ids]
    assert client.post("/api/v1/placement/query", json={"table": 0, "ids": [3.0]}).json()["rows"] == [expected[3]]
    assert client.post("/api/v1/placement/query", json={"table": 1, "ids": []}).json()["rows"] == []


@pytest.mark.parametrize("own", [True, False])
def test_the_row_of_a_raw_id(client: Any, view: Any, run: Any, own: bool) -> None:
    answers = {"ids": [7], "own": [own], "counted": [12]}
    view.link.answers = lambda message: [{"id": message["id"], **answers}]
    for key in (2**63 - 1, -(2**63)):
        about = client.get(f"/api/v1/placement/C1/keys/{key}").json()
        assert view.link.messages[-1] == {"id": view.link.messages[-1]["id"], "command": "find_keys", "table": 0, "keys": [key]}
        row = client.get("/api/v1/placement/0/rows/7").json()
        assert about == {**row, "key": str(key), "own_row": own, "counted": 12}
    assert client.get(f"/api/v1/placement/C1/keys/{2**63}").status_code == 422
    assert client.get("/api/v1/placement/C1/keys/x").status_code == 422


def test_a_raw_id_is_not_found_where_the_run_has_none_does_not_answer_or_has_ended(
    client: Any, view: Any, finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.link.answers = lambda message: [{"id": message["id"], "status": 422, "error": "ids are rows"}]
    answer = client.get("/api/v1/placement/0/keys/1")
    assert (answer.status_code, answer.json()["detail"]) == (422, "ids are rows")
    monkeypatch.setattr("adaptive_rec.service.trainer_link.TrainerLink.reply.__defaults__", (0.05,))
    view.link.answers = lambda message: []
    answer = client.get("/api/v1/placement/0/keys/1")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert finished.get("/api/v1/placement/0/keys/1").status_code == 409


def test_last_change_of_a_row(client: Any, run: Any) -> None:
    p = run.placement
    slot = int(np.flatnonzero((p.tiers[0].row_of_slot_H >= 0) & (p.tiers[0].row_of_slot_H < 1000))[0])
    row = int(p.tiers[0].row_of_slot_H[slot])
    before = "stale" if p.tiers[0].stale_H[slot] else "hot"
    assert client.get(f"/api/v1/placement/0/rows/{row}").json()["last_change"]["to"] in ("hot", "stale")
    p.tiers[0].row_of_slot_H[slot], p.slot_of_row[row] = -1, -1
    p.tiers[0].stale_H[slot] = False
    run.writer.write_placement(437, 6, p.slot_of_row, p.tiers, (p.counters, p.seeds, p.unit))
    told = client.get(f"/api/v1/placement/0/rows/{row}").json()
    assert (told["class"], told["slot"]) == ("cold", None)
    assert told["last_change"] == {"step": 437, "from": before, "to": "cold"}
    never = next(r["id"] for r in truth(run, 0) if r["class"] == "cold" and r["id"] != row)
    assert client.get(f"/api/v1/placement/0/rows/{never}").json()["last_change"] is None


def test_tables_by_index_and_by_name(client: Any) -> None:
    for index, name in enumerate(["C1", "C2", "<img onerror=x>"]):
        by_name = client.get(f"/api/v1/placement/{name}")
        assert by_name.json() == client.get(f"/api/v1/placement/{index}").json()
        assert (by_name.json()["index"], by_name.json()["table"]) == (index, name)


@pytest.mark.parametrize("table", [1, *(pytest.param(table, marks=pytest.mark.slow) for table in (0, 2))])
def test_cold_rows_are_on_the_disk_or_were_never_written(run_on_disk: Any, client_on: Any, table: int) -> None:
    client, everything = client_on(run_on_disk), truth_on_disk(run_on_disk, table)
    counted = client.get("/api/v1/placement").json()["tables"][table]
    for wanted in ("disk", "unwritten"):
        expected = [row for row in everything if row["class"] == wanted]
        assert len(expected) == counted[wanted] > 0
        assert walk(client, table, 37, **{"class": wanted}) == expected
    assert counted["disk"] + counted["unwritten"] == counted["cold"]
    assert walk(client, table, 1000, **{"class": "cold"}) == [row for row in everything if row["class"] in ("disk", "unwritten")]
    assert walk(client, table, 1000, **{"class": "hot"}) == [row for row in everything if row["class"] in ("hot", "stale")]
    found = client.get(f"/api/v1/placement/{table}/rows/{expected[0]['id']}").json()
    assert found["class"] == "unwritten"
    run_on_disk.writer.address_R[run_on_disk.tables[table]["first_row"] + expected[0]["id"]] = 7
    assert client.get(f"/api/v1/placement/{table}/rows/{expected[0]['id']}").json()["class"] == "disk"


@pytest.mark.parametrize("table", [0, *(pytest.param(table, marks=pytest.mark.slow) for table in (1, 2))])
def test_cold_rows_of_a_device_run_are_in_memory_too(run_in_three_homes: Any, client_on: Any, table: int) -> None:
    client, everything = client_on(run_in_three_homes), truth_on_disk(run_in_three_homes, table)
    counted = client.get("/api/v1/placement").json()["tables"][table]
    for wanted in ("memory", "disk", "unwritten"):
        expected = [row for row in everything if row["class"] == wanted]
        assert len(expected) == counted[wanted] > 0
        assert walk(client, table, 37, **{"class": wanted}) == expected
    assert counted["memory"] + counted["disk"] + counted["unwritten"] == counted["cold"]
    cold = [row for row in everything if row["class"] not in ("hot", "stale")]
    assert walk(client, table, 1000, **{"class": "cold"}) == cold


def test_rows_on_a_disk_are_asked_for_only_where_there_is_one(client: Any, run_on_disk: Any, client_on: Any) -> None:
    counted = client.get("/api/v1/placement").json()["tables"]
    assert {(t["memory"], t["disk"], t["unwritten"]) for t in counted} == {(None, None, None)}
    answer = client.get("/api/v1/placement/0", params={"class": "disk"})
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "class must be hot, stale or cold where all rows are in memory, or belong to several processes, got disk"
    )
    answer = client_on(run_on_disk).get("/api/v1/placement/0", params={"class": "memory"})
    assert answer.json()["detail"] == (
        "class must be hot, stale, cold, disk or unwritten in a run on a CPU, whose rows in memory are hot, got memory"
    )
    answer = client_on(run_on_disk).get("/api/v1/placement/0", params={"class": "unwritten", "sort": "estimate"})
    assert answer.json()["detail"] == "sort must be id where class is unwritten, got estimate"


def test_overview_adds_up(client: Any, run: Any) -> None:
    answer = client.get("/api/v1/placement").json()
    for index, table in enumerate(answer["tables"]):
        rows = truth(run, index)
        assert table["rows"] == len(rows) == table["hot"] + table["cold"]
        assert table["stale"] == sum(row["class"] == "stale" for row in rows)
        assert table["cold"] == sum(row["class"] == "cold" for row in rows)
        assert table["device_bytes"] == table["hot"] * run.tables[index]["row_bytes"]
        assert table["hot_lookup_ratio"] == 0.8
    assert answer["device_bytes"] == sum(table["device_bytes"] for table in answer["tables"])
    assert answer["budget_bytes"] == run.knobs["hot_budget_bytes"]


def test_rows_moved_since_the_newest_snapshot_are_counted(client: Any, run: Any) -> None:
    """As after a change of policy while the run is paused."""
    counts = {"hot_rows": [10, 20, 30], "stale_rows": [1, 2, 3], "row_bytes": [40, 40, 72]}
    placement = {"version": 9, "step": 47, **counts, "device_bytes": 5000, "budget_bytes": 6000}
    run.board("paused", run.snapshot(40), placement=placement)
    answer = client.get("/api/v1/placement").json()
    assert {key: answer[key] for key in ("version", "step", "device_bytes", "budget_bytes")} == {
        key: placement[key] for key in ("version", "step", "device_bytes", "budget_bytes")
    }
    shown = [(t["hot"], t["stale"], t["cold"], t["device_bytes"], t["hot_lookup_ratio"]) for t in answer["tables"]]
    assert shown == [(10, 1, 990, 400, 0.8), (20, 2, 30, 800, 0.8), (30, 3, 2970, 2160, 0.8)]
    stats = client.get("/api/v1/stats").json()
    assert (stats["hot_rows"], stats["stale_rows"], stats["placement_version"], stats["step"]) == (60, 6, 9, 40)
    assert [(t["hot_rows"], t["stale_rows"], t["lookups"]) for t in stats["tables"]] == [
        (10, 1, 4000),
        (20, 2, 4000),
        (30, 3, 4000),
    ]
    metrics = client.get("/metrics").text.splitlines()
    name = f'run="{run.folder.name}"'
    for line in (
        f'hot_rows{{{name},table="C1"}} 10.0',
        f'stale_rows{{{name},table="C2"}} 2.0',
        f"placement_version{{{name}}} 9.0",
        f'hot_row_bytes{{{name},table="<img onerror=x>"}} 2160.0',
    ):
        assert f"adaptive_rec_{line}" in metrics


def test_an_index_goes_before_a_name_that_looks_like_one(tmp_path: Any, make_run: Any, client_on: Any) -> None:
    client = client_on(make_run(tmp_path, ("1", 10, 4), ("C2", 20, 4), ("7", 30, 4)))
    paths = {path: client.get(f"/api/v1/placement/{path}") for path in ("0", "1", "2", "7", "01", "8")}
    assert {path: answer.json().get("index") for path, answer in paths.items()} == {
        **{"0": 0, "1": 1, "2": 2, "7": 2},
        **{"01": None, "8": None},
    }
    assert client.get("/api/v1/placement/1/rows/3").json()["index"] == 1
    for table, index in ((1, 1), ("1", 0), ("7", 2), ("0", None), (7, None), (-1, None)):
        answer = client.post("/api/v1/placement/query", json={"table": table, "ids": [3]})
        assert answer.json().get("index") == index, table


def test_cursors_are_taken_only_where_they_came_from(client: Any) -> None:
    made_up = ["", "x", "####", "bnVsbA", "W10", "WyJob3QiLCAiaWQiLCBbMV1d", "\udcff", "é", "A" * 200, "W1tbW1tbW1tbW1tbW1tb"]
    for cursor in made_up:
        answer = client.get("/api/v1/placement/0", params={"cursor": cursor.encode("utf-8", "replace").decode()})
        assert answer.status_code == 422, cursor
    real = client.get("/api/v1/placement/0", params={"limit": 1}).json()["cursor"]
    assert client.get("/api/v1/placement/0", params={"cursor": real}).status_code == 200
    for other in ({"sort": "estimate"}, {"class": "cold"}):
        assert client.get("/api/v1/placement/0", params={"cursor": real, **other}).status_code == 422


def test_wrong_queries(client: Any) -> None:
    for body, status in (
        ({"table": 0, "ids": [1000]}, 422),
        ({"table": 0, "ids": [-1]}, 422),
        ({"table": 0, "ids": [True]}, 422),
        ({"table": 0, "ids": [1.5]}, 422),
        ({"table": 0, "ids": ["1"]}, 422),
        ({"table": True, "ids": [1]}, 422),
        ({"table": 0, "ids": list(range(1000)) * 5}, 422),
        ({"table": 9, "ids": [1]}, 404),
        ({"table": "C9", "ids": [1]}, 404),
        ({"table": 0}, 422),
        ([], 422),
    ):
        assert client.post("/api/v1/placement/query", json=body).status_code == status, body


def test_a_placement_that_never_holds_still_is_503(client: Any, run: Any, view: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("adaptive_rec.service.placement_api.PATIENCE_SECONDS", 0.05)
    with run.writer._changing("placement_number"):
        answer = client.get("/api/v1/placement/0")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert client.get("/api/v1/placement/0").status_code == 200


def test_a_fault_of_a_body_names_its_place_and_no_check_of_ours(client: Any) -> None:
    answer = client.post("/api/v1/placement/query", json={"table": True, "ids": [1], "function": 1}).json()
    assert answer["detail"] == (
        "body.table: must be a whole number, got True; body.table: must be a text, got True; "
        "body.function: is not a known key, got 1"
    )
