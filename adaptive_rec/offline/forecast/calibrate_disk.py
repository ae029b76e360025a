"""Measures the costs of rows on a disk."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.config.tree import Config
from adaptive_rec.errors import ConfigError
from adaptive_rec.offline.disk_speed import measure_disk
from adaptive_rec.offline.forecast.hardware import DiskCosts
from adaptive_rec.offline.machine_facts import nearest_existing

RUNS = "runs"
"""Folder of the run directories, in which rows lie where run.disk names none."""


def disk_costs(config: Config) -> DiskCosts:
    """Measure reads and writes on the disk where a run's rows would lie; nothing where it has no room. Raises ConfigError where
    it cannot be written."""
    folder = nearest_existing(Path(config.run.disk or RUNS).absolute())
    try:
        speed = measure_disk(folder)
    except OSError as error:
        raise ConfigError(f"run.disk must name a folder that can be written, {folder}: {error.strerror or error}") from None
    if not speed.rows_read:
        return DiskCosts()
    return DiskCosts(
        folder=str(folder),
        read_us=1e6 / speed.rows_per_second,
        read_cpu_us=1e6 * speed.read_cpu_seconds / speed.rows_read,
        write_gbs=speed.write_bytes_per_second / 1e9,
    )
