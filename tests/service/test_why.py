"""The sentence that says why a row is hot, stale or cold, checked against figures counted row by row."""

from __future__ import annotations

import re
from typing import Any

import pytest

from adaptive_rec.service.why import why


def detail(client: Any, table: int, id: int) -> Any:
    return client.get(f"/api/v1/placement/{table}/rows/{id}").json()


def rows_of(client: Any, wanted: str, table: int = 0) -> list[Any]:
    return client.get(f"/api/v1/placement/{table}?class={wanted}&limit=1000").json()["rows"]


def hot_estimates(run: Any, table: int) -> list[float]:
    tier = run.placement.tiers[run.tables[table]["pool"]]
    return [float(e) for e, row in zip(tier.estimate_H, tier.row_of_slot_H, strict=True) if row >= 0]


def test_hot_and_stale_rows_have_their_rank_among_the_hot_rows_of_their_pool(client: Any, run: Any) -> None:
    run.knobs = {**run.knobs, "policy": "slipstream", "stale_metric": "max_abs"}
    run.report(120, stale_threshold=1e9, placement_version=5)
    estimates, seen = hot_estimates(run, 0), set()
    for row in rows_of(client, "hot")[:40]:
        found = detail(client, 0, row["id"])
        rank = int(re.search(r"ranks ([\d,]+)(st|nd|rd|th) of the ([\d,]+) hot rows", found["why"])[1].replace(",", ""))  # type: ignore[index]
        assert rank == 1 + sum(other > row["estimate"] for other in estimates)
        assert f"of the {len(estimates):,} hot rows of tables of dim {run.tables[0]['dim']}" in found["why"]
        assert found["why"].startswith(f"{row['class']}: ")
        if row["class"] == "stale" and row["movement"] is not None:
            assert (
                f"it moved {row['movement']:.2g} when it was last judged, below the threshold of 1e+09" in found["why"]
            )
        change = found["last_change"]
        assert (
            (f"{change['to']} at step {change['step']:,}" in found["why"]) if change else "became" not in found["why"]
        )
        seen.add(row["class"])
    assert seen == {"hot", "stale"}


def test_no_threshold_is_named_that_the_movement_is_not_below(client: Any, run: Any) -> None:
    run.report(120, stale_threshold=0.0)
    stale = next(row for row in rows_of(client, "stale") if row["movement"])
    assert "threshold" not in detail(client, 0, stale["id"])["why"]


class Placed:
    """A pool of three hot rows, of one slot more where some are free."""

    def __init__(self, free: int = 0, sketch_unit: int = 1) -> None:
        import numpy as np

        self.row_of_slot = [np.array([5, 6, 7] + [-1] * free)]
        self.estimate = [np.array([10, 40, 20] + [0] * free, np.float32)]
        self.sketch_unit = sketch_unit


@pytest.mark.parametrize(
    ("placed", "estimate", "sentence"),
    [
        (Placed(), 0.0, "cold: no sampled lookup of it is remembered"),
        (Placed(), 9.5, "its estimate of 9.5 lookups is not above 10, the least of the 3 hot rows of tables of dim 8"),
        (Placed(), 10.5, "is not above 10, the least of the 3 hot rows of tables of dim 8, by the hysteresis of 0.1"),
        (
            Placed(),
            25.0,
            "its estimate of 25 lookups is above that of 2 of the 3 hot rows of tables of dim 8: it may become hot",
        ),
        (Placed(free=2), 1.0, "its estimate of 1 lookup may suffice when a window ends, as 2 slots are free"),
        (Placed(sketch_unit=0), 0.0, "cold: its popularity is not published"),
    ],
)
def test_a_cold_row_is_compared_with_the_least_hot_one(placed: Any, estimate: float, sentence: str) -> None:
    from adaptive_rec.service.hello import Table

    table = Table(0, "C1", 100, 8, 0, 0, 64)
    row = {"class": "cold", "estimate": estimate, "slot": None, "movement": None}
    said = why(
        placed,
        table,
        row,
        [{"step": 1200, "from": "hot", "to": "cold"}],
        {"policy": "hotline", "hysteresis": 0.1},
        None,
    )
    assert sentence in said
    assert said.endswith("; it became cold at step 1,200")


def test_policies_that_do_not_rank_say_how_they_place(client: Any, run: Any) -> None:
    table = run.tables[0]
    row = {"class": "hot", "estimate": 1.0, "slot": 0, "movement": None}
    for policy, words in (
        ("device_only", "keeps all rows on the device"),
        ("cdlrm", "batches ahead"),
        ("mine:P", "policy mine:P has"),
    ):
        assert words in why(None, table, row, [], {"policy": policy}, None)  # type: ignore[arg-type]
