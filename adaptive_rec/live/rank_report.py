"""What reports say of each of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankReport:
    """One of several processes. The first three are sums since it started, the others are of the last reports."""

    work_seconds: float
    """Its own work: the time of the loop in which it did not wait for other ranks."""
    wait_seconds: float
    sent_bytes: Mapping[str, int]
    """Bytes sent to other ranks, by kind."""
    work_seconds_per_step: float
    """Median over the reports; so is the next one."""
    wait_seconds_per_step: float
    sent_bytes_per_sample: Mapping[str, float]
    """For each sample of this rank's part of the batches."""
    hot_lookup_ratio: float
    """Share of its lookups whose rows are hot at their owners."""


@dataclass(frozen=True)
class Straggler:
    """The rank that the others wait for."""

    rank: int
    text: str
    """A sentence that names it and says why."""
