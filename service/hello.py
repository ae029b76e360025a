"""The first line on the link: what the trainer tells its sidecar about the run, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """One embedding table. Its rows lie one after the other in the joint row space, from `first_row` on."""

    index: int
    name: str
    rows: int
    dim: int
    pool: int
    first_row: int
    row_bytes: int
    """Device memory of a hot row."""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by name; `live` where a run may switch to it, `reason` where it may not."""

    name: str
    live: bool
    reason: str = ""


@dataclass(frozen=True)
class Hello:
    """The run as it stood when the sidecar began."""

    live: bool
    run: str
    run_name: str
    started: float
    seed: int
    device: str
    precision: str
    version: str
    tables: tuple[Table, ...]
    policies: tuple[PolicyChoice, ...]
    defaults: Values
    """Knob values the run was configured with."""
    desired: Values
    effective: Values
    """Where the run has ended, both are as it was last started with."""
    step: int = 0
    """The step at which the effective values took effect."""

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> Hello:
        """Read the part of the line that is about the run. Raises KeyError where something is missing."""
        tables = [
            Table(index, *(each[key] for key in ("name", "rows", "dim", "pool", "first_row", "row_bytes")))
            for index, each in enumerate(line["tables"])
        ]
        about = (
            "run",
            "run_name",
            "started",
            "seed",
            "device",
            "precision",
            "version",
            "defaults",
            "desired",
            "effective",
        )
        return cls(
            live=line["mode"] == "live",
            tables=tuple(tables),
            policies=tuple(PolicyChoice(each["name"], each["live"], each["reason"]) for each in line["policies"]),
            **{key: line[key] for key in about},
            step=line.get("step", 0),
        )


def read_json(text: bytes | str) -> Any:
    """JSON as RFC 8259 has it: NaN and the infinities are none. Raises ValueError."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"numbers must be finite, got {constant}")

    return json.loads(text, parse_constant=refuse)
