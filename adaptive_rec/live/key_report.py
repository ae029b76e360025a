"""What reports say of raw keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyReport:
    """The raw keys of all tables. Ratios are over the lookups since the report before."""

    keys: int
    """Keys that have a row of their own."""
    admitted_per_step: float
    """Keys that got one, mean of a step since the report before."""
    shared_lookup_ratio: float
    """Part of the lookups that read a shared row, as their key had none of its own."""
    evicted: int
    """Keys that have lost theirs, over all steps."""
    refused_per_step: float
    """Keys that were due for a row, in tables that had none left; each is counted in every batch that has it."""
