"""Models of the answers on configuration, logs and resources, for the API's description."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from adaptive_rec.service.answer_base import Answer, example


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
