"""Routes behind the dashboard's screen of details: configuration, logs, and what the trainer uses of the machine."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from adaptive_rec.service.config_keys import config_keys
from adaptive_rec.service.documented import Answer, answers, example
from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.tiers import tiers
from adaptive_rec.system.process_use import ProcessMeter


class ConfigKey(Answer):
    key: str
    value: Annotated[Any, Field(description="As in the run's config.toml; null where that has none")]
    default: Annotated[Any, Field(description="Null where this version does not know the key")]
    changed: Annotated[bool, Field(description="Whether the value is not the default")]
    unit: str
    why: Annotated[str, Field(description="What the key is for")]


class ConfigList(Answer):
    """The configuration that the run began with. What became of knobs since is at /knobs."""

    keys: list[ConfigKey]


class LogTail(Answer):
    """The last lines of a log, or those after a place in it."""

    model_config = example(name="log.txt", exists=True, size_bytes=21, start=0, end=21, lines=["loading torch ..."])
    name: str
    exists: Annotated[
        bool, Field(description="log.txt is written where the run trains in the background (train --detach)")
    ]
    size_bytes: int
    start: Annotated[
        int, Field(description="Place in the file at which the lines begin; above `since` where some were left out")
    ]
    end: Annotated[int, Field(description="The `since` of the next request")]
    lines: list[str]


class ResourcePoint(Answer):
    time: Annotated[float, Field(description="Seconds since the epoch")]
    cpu_cores: Annotated[float | None, Field(description="Cores busy with it since the point before")]
    resident_bytes: int


class Resources(Answer):
    """What the trainer's process uses of the machine. Of several processes, that of rank 0."""

    cpu_cores: Annotated[float | None, Field(description="Cores busy with it in the last seconds; null at first")]
    cpu_seconds: Annotated[float, Field(description="Processor time since it started")]
    cores: Annotated[float, Field(description="Cores' time that it may use: affinity and control groups")]
    resident_bytes: Annotated[int, Field(description="Its memory")]
    memory_limit_bytes: Annotated[int | None, Field(description="The machine's memory, or less by its control groups")]
    threads: int
    disk_read_bytes: Annotated[int | None, Field(description="Since it started; null where the system does not tell")]
    disk_written_bytes: int | None
    device_bytes: Annotated[int, Field(description="Hot rows")]
    staging_bytes: int
    device_peak_bytes: int
    points: Annotated[list[ResourcePoint], Field(description="A reading each five seconds, an hour at the most")]


READ_EVERY_SECONDS = 5.0


def router(view: RunView) -> APIRouter:
    """Return the routes of configuration, logs and resources."""
    routes = APIRouter(prefix="/api/v1", tags=["run"])
    run = Path(view.hello.run)

    @routes.get("/config", **answers(ConfigList, 404), operation_id="get_config")
    async def get_config() -> Json:
        """The configuration that the run began with: every key with its value, default, unit and purpose."""
        return Json({"keys": await run_in_threadpool(config_keys, run)})

    @routes.get("/log", **answers(LogTail), operation_id="get_log")
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

    @routes.get("/resources", **answers(Resources, 409, 503), operation_id="get_resources")
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


MOST_BYTES = 1 << 16


def log_tail(run: Path, name: str, since: int | None) -> Values:
    """Return the lines of a log after the place `since`, or its last ones; at most MOST_BYTES, the newest of them.

    Only finished lines are returned, unless one is longer than that. A file that is shorter than `since` was begun anew. Links
    and what is no plain file count as not there.
    """
    nothing = {"name": name, "exists": False, "size_bytes": 0, "start": 0, "end": 0, "lines": []}
    try:
        fd = os.open(run / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return nothing
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return nothing
        size = about.st_size
        begin = since if since is not None and since <= size else 0
        start = max(begin, size - MOST_BYTES)
        file.seek(start)
        content = file.read(MOST_BYTES)
    if start > begin:  # the first line may have begun earlier
        cut = content.find(b"\n") + 1
        start, content = start + cut, content[cut:]
    whole = content.rfind(b"\n") + 1
    if len(content) < MOST_BYTES or whole:
        content = content[:whole]
    lines = content.decode("utf-8", "replace").split("\n")
    return {
        "name": name,
        "exists": True,
        "size_bytes": size,
        "start": start,
        "end": start + len(content),
        "lines": lines[:-1] if content.endswith(b"\n") else [line for line in lines if line],
    }
