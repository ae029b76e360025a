"""Routes behind the dashboard's screen of details: configuration, logs, and what the trainer uses of the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from adaptive_rec.service import details_schemas
from adaptive_rec.service.config_keys import config_keys
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.log_tail import log_tail
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.tiers import tiers
from adaptive_rec.system.process_use import ProcessMeter

READ_EVERY_SECONDS = 5.0


def router(view: RunView) -> APIRouter:
    """Return the routes of configuration, logs and resources."""
    routes = APIRouter(prefix="/api/v1", tags=["run"])
    run = Path(view.hello.run)

    @routes.get("/config", **answers(details_schemas.ConfigList, 404), operation_id="get_config")
    async def get_config() -> Json:
        """The configuration that the run began with: every key with its value, default, unit and purpose."""
        return Json({"keys": await run_in_threadpool(config_keys, run)})

    @routes.get("/log", **answers(details_schemas.LogTail), operation_id="get_log")
    async def get_log(
        name: Annotated[
            Literal["log.txt", "sidecar.log"], Query(description="The run's log, or its service's")
        ] = "log.txt",
        since: Annotated[
            int | None, Query(ge=0, le=MAX_STEP, description="Only lines after this place; without it, the last ones.")
        ] = None,
    ) -> Json:
        """The newest lines of a log: at most 64 KiB."""
        return Json(log_tail(run, name, since))

    @routes.get("/resources", **answers(details_schemas.Resources, 409, 503), operation_id="get_resources")
    async def get_resources() -> Json:
        """What the trainer's process uses: processor, memory, disk and device, and what it may use."""
        return Json(resources(view))

    return routes


def resources(view: RunView) -> Values:
    """Return the answer of /resources."""
    if view.meter is None:
        raise ProblemError(409, "the run has ended; what a process uses is known only while it trains")
    if (now := view.meter.read()) is None:
        raise ProblemError(503, "the system does not tell what the trainer uses")
    limits, rows = view.meter.limits(), tiers(view)
    newest = next(
        (point.cpu_cores for point in reversed(view.meter.points) if point.cpu_cores is not None), now.cpu_cores
    )
    return {
        "cpu_cores": newest,
        "cpu_seconds": now.cpu_seconds,
        "cores": limits.cores,
        "resident_bytes": now.resident_bytes,
        "memory_limit_bytes": limits.memory_bytes,
        "threads": now.threads,
        "disk_read_bytes": now.read_bytes,
        "disk_written_bytes": now.written_bytes,
        "device_bytes": rows.device_bytes,
        "staging_bytes": rows.staging_bytes,
        "device_peak_bytes": rows.peak_bytes,
        "points": [
            {"time": point.time, "cpu_cores": point.cpu_cores, "resident_bytes": point.resident_bytes}
            for point in view.meter.points
        ],
    }


async def keep_reading(meter: ProcessMeter) -> None:
    """Remember what a process uses, until it is cancelled."""
    while True:
        meter.read(keep=True)
        await asyncio.sleep(READ_EVERY_SECONDS)
