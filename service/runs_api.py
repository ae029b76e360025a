"""Routes on curves: of the run's tables, and of the runs beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from adaptive_rec.service import run_schemas, schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.metric_history import MetricHistory
from adaptive_rec.service.problems import Json
from adaptive_rec.service.run_api import curves, newest_evaluation, status
from adaptive_rec.service.run_digest import at_a_glance
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.sibling_runs import MOST_ENTRIES, SiblingRuns

Since = Annotated[int, Query(ge=-1, le=MAX_STEP, description="Only points after this step.")]
Spacing = Annotated[int, Query(ge=1, le=MAX_STEP, description="Least number of steps between two points.")]
RunName = Annotated[str, InPath(min_length=1, max_length=255, description="Name of a run in the list.")]
TableName = Annotated[str, InPath(min_length=1, max_length=1000, description="Name of a table of that run.")]


def router(view: RunView) -> APIRouter:
    """Return the routes of runs and tables. Files of other runs are read on a thread: they may be long."""
    routes = APIRouter(prefix="/api/v1", tags=["runs"])
    siblings = SiblingRuns(Path(view.hello.run))

    @routes.get("/stats/history/{table}", **answers(run_schemas.TableCurves, 404), operation_id="get_table_history")
    async def get_table_history(table: Annotated[str, InPath()], since: Since = -1, step: Spacing = 1) -> Json:
        """Curves of one table: hot and stale rows, lookups, hot lookups."""
        found = view.table_in_path(table)
        view.refresh()
        return Json(of_table(view.history, found.index, found.name, since, step))

    @routes.get("/runs", **answers(run_schemas.RunList), operation_id="list_runs")
    async def list_runs(
        contains: Annotated[str, Query(max_length=255, description="Only runs with this text in their names.")] = "",
        offset: Annotated[int, Query(ge=0, le=MOST_ENTRIES)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 100,
    ) -> Json:
        """Runs in the folder that holds this run's directory, those started last first."""
        page = await asyncio.to_thread(siblings.page, contains, offset, limit)
        view.refresh()
        return Json({**page, "runs": [as_served(view, run) if run["own"] else run for run in page["runs"]]})

    @routes.get("/runs/{name}/history", **answers(schemas.StatsHistory, 404), operation_id="get_run_history")
    async def get_run_history(name: RunName, since: Since = -1, step: Spacing = 1) -> Json:
        """Curves of a run in the list, as those of `/stats/history`."""
        return Json(await asyncio.to_thread(siblings.curves, name, lambda history: curves(history, since, step)))

    @routes.get("/runs/{name}/history/{table}", **answers(run_schemas.TableCurves, 404), operation_id="get_run_table")
    async def get_run_table(name: RunName, table: TableName, since: Since = -1, step: Spacing = 1) -> Json:
        """Curves of one table of a run in the list."""

        def read(history: MetricHistory, index: int) -> Values:
            return of_table(history, index, table, since, step)

        return Json(await asyncio.to_thread(siblings.table_curves, name, table, read))

    @routes.get(
        "/runs/{name}/evaluations", **answers(run_schemas.RunEvaluations, 404), operation_id="get_run_evaluations"
    )
    async def get_run_evaluations(name: RunName, since: Since = -1) -> Json:
        """Evaluations of a run in the list."""

        def read(history: MetricHistory) -> Values:
            return {"evaluations": history.evaluations.since(since, 1)}

        return Json(await asyncio.to_thread(siblings.curves, name, read))

    return routes


def of_table(history: MetricHistory, table: int, name: str, since: int, spacing: int) -> Values:
    columns, least = history.tables.columns(table, since, spacing)
    return {"table": name, "columns": columns, "spacing_steps": least}


def as_served(view: RunView, run: Values) -> Values:
    """Return the line of the served run with what the trainer published, which is newer than its files."""
    now = status(view, "read")
    evaluation = newest_evaluation(view, now["step"])
    last = evaluation and at_a_glance(evaluation)
    return {
        **run,
        **{"policy": now["policy"], "state": now["phase"], "last": last},
        **{name: now[name] for name in ("step", "steps_total", "seconds", "loss")},
    }
