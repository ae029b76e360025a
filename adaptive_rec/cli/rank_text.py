"""Each of several processes in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptive_rec.live.telemetry import ratio
from adaptive_rec.units import percent, size, whole


def rank_now(rank: Mapping[str, Any]) -> str:
    """Return what a rank has done lately."""
    sent = {kind: bytes_ for kind, bytes_ in rank["sent_bytes_per_sample"].items() if round(bytes_)}
    kinds = ", ".join(f"{kind} {whole(bytes_)}" for kind, bytes_ in sent.items())
    return (
        f"{milliseconds(rank['work_seconds_per_step'])} own work a step, {milliseconds(rank['wait_seconds_per_step'])} waiting, "
        f"{whole(sum(sent.values()))} bytes sent a sample ({kinds}), {percent(rank['hot_lookup_ratio'])} hot lookups"
    )


def rank_in_all(rank: Mapping[str, Any]) -> str:
    """Return what a rank has done since it started."""
    work, wait = rank["work_seconds"], rank["wait_seconds"]
    shares = f"{percent(ratio(work, work + wait))} own work, {percent(ratio(wait, work + wait))} waiting for other ranks"
    return f"{shares}, {size(sum(rank['sent_bytes'].values()))} sent"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"
