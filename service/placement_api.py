"""Routes that list which rows are hot, stale or cold, and their estimates and movement."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Path, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from adaptive_rec.live.shared_state import PlacementArrays, StateBusy
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.service import placement_schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Table, Values, read_json
from adaptive_rec.service.placement import COLD, Class, RowValues, count_cold, next_by_estimate, next_by_id, rows_at
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.tiers import per_table, tiers
from adaptive_rec.service.why import present_threshold, why
from adaptive_rec.service.written import RepeatedAnswer, WrittenAnswers, repeat_answer

T = TypeVar("T")
Sort = Literal["id", "estimate"]
Homes = tuple[int | None, int]
"""Cold rows of a table in host memory, where some may be, and on the disk."""
TableName = Annotated[str, Path(description="Index of the table, or its exact name.", examples=["0"], max_length=1000)]
CLASSES = (
    "hot lists stale rows too. Where cold rows lie on a disk, cold lists those on the disk, those that were never written "
    "(unwritten), which have their first value, and of a run on a device those in host memory (memory); these three are refused "
    "elsewhere."
)
PATIENCE_SECONDS = 1.0
MAX_ROW = 2**53
PAGES_KEPT, ROWS_KEPT = 16, 64
"""Answers that are kept as long as the placement stands."""
CHANGES_SHOWN = 2
"""Changes of class that the sentence about a row names."""


def router(view: RunView) -> APIRouter:
    """Return the routes of a run's placement."""
    routes = APIRouter(prefix="/api/v1/placement", tags=["placement"])
    values, counts = RowValues(), HomeCounts(view)
    pages: WrittenAnswers[Response] = WrittenAnswers(view.placement_version, PAGES_KEPT)
    rows: WrittenAnswers[Response] = WrittenAnswers(
        lambda: (view.placement_version(), view.knobs.reports, present_threshold(view.board())), ROWS_KEPT
    )

    async def answer_once(
        kept: WrittenAnswers[Response], request: Hashable, table: Table, write: Callable[[], Awaitable[Values]]
    ) -> Response:
        """Return an answer that `write` makes of the placement, once for each. Rows on a disk, and the files of values, change
        without it."""
        if table.values or view.hello.on_disk:
            return Json(await write())
        if (known := kept.known(request)) is None:
            version = kept.version()
            known = kept.keep(request, version, Json(await write()))
        return RepeatedAnswer(known, lambda: kept.known(request))

    @routes.get("", **answers(placement_schemas.Placement, 503), operation_id="get_placement")
    async def get_placement() -> Response:
        """Rows and bytes of every table, by class, as of the last time rows moved."""
        if view.hello.on_disk and view.hello.live:
            return Json(overview(view, await run_in_threadpool(counts.by_table)))
        return repeat_answer(lambda: view.answers.get("placement", lambda: Json(overview(view, None))))

    @routes.get("/{table}", **answers(placement_schemas.PlacementPage, 404, 409, 503), operation_id="list_rows")
    async def list_rows(
        table: TableName,
        wanted: Annotated[Class, Query(alias="class", description=CLASSES)] = "hot",
        sort: Annotated[Sort, Query(description="By rising id or by falling estimate; cold rows by id only.")] = "id",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(max_length=200, description="The cursor of the page before.")] = None,
    ) -> Response:
        """Rows of one class, page by page."""
        if sort == "estimate" and wanted in COLD:
            raise ProblemError(422, f"sort must be id where class is {wanted}, got estimate")
        if wanted in COLD[1:] and not (view.hello.on_disk and view.hello.live):
            rule = "where all rows are in memory, or belong to several processes"
            raise ProblemError(422, f"class must be hot, stale or cold {rule}, got {wanted}")
        if wanted == "memory" and not view.hello.in_memory:
            rule = "hot, stale, cold, disk or unwritten in a run on a CPU, whose rows in memory are hot"
            raise ProblemError(422, f"class must be {rule}, got memory")
        found, after = view.table_in_path(table), read_cursor(cursor, wanted, sort)

        async def write() -> Values:
            body = await read(lambda arrays: page(arrays, found, wanted, sort, limit, after))
            return await valued(found, body, body["rows"])

        return await answer_once(pages, (found.index, wanted, sort, limit, cursor), found, write)

    @routes.get("/{table}/rows/{id}", **answers(placement_schemas.RowDetail, 404, 409, 503), operation_id="get_row")
    async def get_row(table: TableName, id: Annotated[int, Path(ge=0, le=MAX_ROW, examples=[0])]) -> Response:
        """One row: class, slot, estimate, movement, its last change of class where that is still known, and why it is that."""
        found = view.table_in_path(table)
        if id >= found.rows:
            raise ProblemError(404, f"id must be below {found.rows}, got {id}")
        return await answer_once(rows, (found.index, id), found, lambda: detail(found, id))

    @routes.get("/{table}/keys/{key}", **answers(placement_schemas.KeyDetail, 404, 409, 503), operation_id="get_key")
    async def get_key(table: TableName, key: Annotated[int, Path(ge=-(2**63), lt=2**63, examples=[17])]) -> Json:
        """The row of a raw id, as of the last step: its own, or one that it shares with other ids. Where ids are raw."""
        found = view.table_in_path(table)
        if view.link is None:
            raise ProblemError(409, "the run has ended; placement is known only while it trains")
        reply = await view.link.reply(view.link.send("find_keys", table=found.index, keys=[key]))
        if reply is None:
            raise ProblemError(503, "the run has not answered in time; try again", {"Retry-After": "1"})
        if "error" in reply:
            raise ProblemError(reply["status"], reply["error"])
        about = {"key": str(key), "own_row": reply["own"][0], "counted": reply["counted"][0]}
        return Json({**about, **await detail(found, reply["ids"][0])})

    @routes.post("/query", **answers(placement_schemas.RowList, 400, 404, 409, 413, 503), operation_id="query_rows")
    async def query_rows(query: placement_schemas.RowQuery) -> Json:
        """Up to 4096 rows of one table at once, in the order of the request."""
        found = view.table(query.table)
        beyond = [id for id in query.ids if id >= found.rows]
        if beyond:
            raise ProblemError(422, f"ids must be below {found.rows}, got {beyond[0]}")
        ids_R = np.array(query.ids, dtype=np.int64)
        body = await read(
            lambda arrays: {**heading(found), "version": arrays.version, "rows": rows_at(arrays, found, ids_R)}
        )
        return Json(await valued(found, body, body["rows"]))

    async def detail(table: Table, id: int) -> Values:
        """Return all facts about a row."""

        def look(arrays: PlacementArrays) -> Values:
            changes = arrays.changes_of(table.first_row + id, CHANGES_SHOWN)
            row = rows_at(arrays, table, np.array([id]))[0]
            sentence = why(arrays, table, row, changes, view.knobs.effective, present_threshold(view.board()))
            return {**heading(table), **row, "last_change": changes[0] if changes else None, "why": sentence}

        body = await read(look)
        return await valued(table, body, [body])

    async def valued(table: Table, body: Values, rows: list[Values]) -> Values:
        """Add the values of the ids to rows of an answer, where the run's data has them; another thread waits for the disk."""
        if table.values:
            await run_in_threadpool(values.add, table, rows)
        return body

    async def read(look: Callable[[PlacementArrays], T]) -> T:
        """Read the placement at once, which takes a few milliseconds. If it is being written, wait for it in another thread.

        Another thread would otherwise be slower: at the sidecar's niceness it takes longer to be scheduled than to do the work.
        """
        try:
            return view.placement(look, 0.0)
        except StateBusy:
            return await run_in_threadpool(view.placement, look, PATIENCE_SECONDS)

    return routes


def heading(table: Table) -> Values:
    return {"index": table.index, "table": table.name}


class HomeCounts:
    """Counts the cold rows of a run by their homes, once for each placement: it looks at all rows."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._counted: tuple[int, list[Homes]] = (-1, [])

    def by_table(self) -> list[Homes]:
        """Return the numbers for each table. Any thread may call it."""
        return self._view.placement(self._look, PATIENCE_SECONDS)

    def _look(self, arrays: PlacementArrays) -> list[Homes]:
        hello = self._view.hello
        if self._counted[0] != arrays.step:
            found = []
            for table in hello.tables:
                memory = count_cold(arrays, table, "memory") if hello.in_memory else None
                found.append((memory, count_cold(arrays, table, "disk")))
            self._counted = arrays.step, found
        return self._counted[1]


def overview(view: RunView, cold: list[Homes] | None) -> Values:
    """Return the answer of /placement, with lookups up to the newest snapshot. `cold`: the homes of each table's cold rows; None
    where all rows are in memory, or the run has ended."""
    now = tiers(view)
    counts = (view.board().get("snapshot") or {}).get("tables") or {}
    found, lookups = per_table(view, counts.get("lookups_hot")), per_table(view, counts.get("lookups"))
    tables = [
        {
            **heading(table),
            "rows": table.rows,
            "dim": table.dim,
            "hot": hot,
            "stale": stale,
            "cold": table.rows - hot,
            **homes(table.rows - hot, None if cold is None else cold[table.index]),
            "device_bytes": hot * row_bytes,
            "hot_lookup_ratio": ratio(found[table.index], lookups[table.index]),
        }
        for table, hot, stale, row_bytes in zip(
            view.hello.tables, now.hot_rows, now.stale_rows, now.row_bytes, strict=True
        )
    ]
    return {
        "version": now.version,
        "step": now.step,
        "device_bytes": now.device_bytes,
        "budget_bytes": now.budget_bytes,
        "raw_ids": view.hello.raw_ids,
        "known": view.hello.live or "checkpoint" in (view.board().get("placement") or {}),
        "checkpoint": (view.board().get("placement") or {}).get("checkpoint"),
        "tables": tables,
    }


def homes(cold: int, counted: Homes | None) -> Values:
    """Return how many cold rows of a table are in host memory, on the disk, and were never written."""
    if counted is None:
        return {"memory": None, "disk": None, "unwritten": None}
    memory = None if counted[0] is None else min(counted[0], cold)  # rows may have moved since they were counted
    on_disk = min(counted[1], cold - (memory or 0))
    return {"memory": memory, "disk": on_disk, "unwritten": cold - (memory or 0) - on_disk}


def page(
    arrays: PlacementArrays, table: Table, wanted: Class, sort: Sort, limit: int, after: list[Any] | None
) -> Values:
    """Return one page and the cursor of the next, which is null on the last page."""
    if sort == "id":
        ids = next_by_id(arrays, table, wanted, after[0] if after else -1, limit + 1)
        places = ids[:, None]
    else:
        ids, estimates = next_by_estimate(arrays, table, wanted, (after[0], after[1]) if after else None, limit + 1)
        places = np.stack([estimates, ids], axis=1)  # ids are exact as float64 below 2^53
    more = len(ids) > limit
    return {
        **heading(table),
        "class": wanted,
        "version": arrays.version,
        "rows": rows_at(arrays, table, ids[:limit]),
        "cursor": write_cursor(wanted, sort, places[limit - 1].tolist()) if more else None,
    }


def write_cursor(wanted: Class, sort: Sort, place: list[Any]) -> str:
    """Encode the end of a page as text that has no meaning for clients."""
    return base64.urlsafe_b64encode(json.dumps([wanted, sort, *place]).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, wanted: Class, sort: Sort) -> list[Any] | None:
    """Return the place in a cursor: [id] or [estimate, id]. Raises a problem unless this listing made the cursor."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        of_class, of_sort, *place = read_json(text)
        good = (of_class, of_sort) == (wanted, sort) and len(place) == (1 if sort == "id" else 2)
        good = good and all(type(number) in (int, float) and math.isfinite(number) for number in place)
        good = good and 0 <= place[-1] <= MAX_ROW and place[-1] == int(place[-1])
    except (ValueError, TypeError, OverflowError, RecursionError):
        good = False
    if not good:
        raise ProblemError(422, f"cursor must be one that this listing gave out, got {cursor!r}")
    return [*place[:-1], int(place[-1])]
