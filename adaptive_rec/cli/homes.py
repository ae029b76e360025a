"""The homes of rows in `plan`: on the device, in memory, on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from adaptive_rec.units import count, size

if TYPE_CHECKING:
    from adaptive_rec.offline.forecast.homes import Homes


def shown_homes(homes: Homes) -> Iterator[tuple[str, str]]:
    """Yield where rows are, what a step asks of the disk, and whether that keeps up."""
    in_memory = f"{count(homes.memory_rows)} rows in memory ({size(homes.memory_bytes)})"
    if homes.device_rows:
        in_memory = f"{count(homes.device_rows)} rows on the device ({size(homes.device_bytes)}), {in_memory}"
    yield "homes", f"{in_memory}, {count(homes.disk_rows)} on the disk once written ({size(homes.disk_bytes)})"
    if homes.cold_rows_per_step is None:
        return
    per_step = f"{count(round(homes.cold_rows_per_step))} a step, read from the disk at the most and written back"
    yield ("disk rows" if homes.device_rows else "cold rows"), per_step
    disk, step = homes.disk_seconds, homes.step_seconds
    if homes.device_rows:
        yield "disk", "its time is predicted for runs on a CPU only"
    elif disk is None or step is None:
        yield "disk", "not measured: adaptive-rec calibrate --out FILE does, then give --hardware FILE"
    else:
        took = f"{1000 * disk:.1f} ms a step beside {1000 * step:.1f} ms for all else, {1 / max(step, disk):.1f} steps/s"
        short = "does not keep up once all of these come from files: give more run.host_memory, or a faster disk"
        keeps = "keeps up" if homes.keeps_up else short
        yield "disk", f"{took}: {keeps}"
