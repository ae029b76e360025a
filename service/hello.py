"""The first line on the link, in which the trainer describes the run to its sidecar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from adaptive_rec.config.faults import rule_broken_by
from adaptive_rec.config.knobs import Knobs, within_bounds
from adaptive_rec.errors import ConfigError

Values = dict[str, Any]
LAST_SECOND = 253_402_300_799.0
"""The end of the year 9999, seconds since the epoch: no later time can be written as ISO 8601."""
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class Table:
    """One embedding table. Its rows lie one after the other in the joint row space, from `first_row` on."""

    index: int
    name: str
    rows: Count
    dim: Count
    pool: Count
    first_row: Count
    row_bytes: Count
    """Device memory of a hot row."""
    values: str = ""
    """File of the values that the ids stand for (`placement.py`); empty where the data has none."""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by name. `live` is whether a run may switch to it; if not, `reason` explains why."""

    name: str
    live: bool
    reason: str = ""


@dataclass(frozen=True)
class BranchPoint:
    """Where a branch comes from: the directory of a run, which may be gone, and a checkpoint of it with its step."""

    run: str
    checkpoint: str
    step: Count


@dataclass(frozen=True)
class Hello:
    """The run as it was when the sidecar started."""

    live: bool
    run: str
    run_name: str
    started: Annotated[float, Field(ge=0, le=LAST_SECOND)]
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
    """For a run that has ended, `desired` and `effective` are the knobs of its last start."""
    step: int = 0
    """The step at which the effective values took effect."""
    on_disk: bool = False
    """Whether it is known which cold rows lie on a disk: those of a run of one process."""
    in_memory: bool = False
    """Whether some cold rows are in host memory and others lie on a disk, as of a run on a device."""
    raw_ids: bool = False
    """Whether rows are looked up by raw ids too."""
    parent: BranchPoint | None = None
    """Where the run comes from, if it is a branch."""
    steps_per_epoch: Count | None = None
    """Steps of one pass over the training data; None where there are no passes of equal length."""

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> Hello:
        """Read the part of the line that is about the run. Raises ValueError if a value is missing or has a wrong type."""
        try:
            tables = [{"index": index, **table} for index, table in enumerate(line["tables"])]
            values = {key: line[key] for key in ABOUT}
            knobs = {key: knob_values(line[key]) for key in ("defaults", "desired", "effective")}
            rest = {"tables": tables, "policies": line["policies"], "step": line.get("step", 0)}
            rest |= {name: line.get(name, False) for name in ("on_disk", "in_memory", "raw_ids")}
            if (parent := line.get("parent")) is not None:
                rest["parent"] = {name: parent[name] for name in ("run", "checkpoint", "step")}
            rest["steps_per_epoch"] = line.get("steps_per_epoch")
            return HELLO.validate_python({"live": line["mode"] == "live", **values, **knobs, **rest})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {rule_broken_by(first)}") from None
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from None
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None


HELLO = TypeAdapter(Hello)
ABOUT = ("run", "run_name", "started", "seed", "device", "precision", "version")


def knob_values(given: Mapping[str, Any]) -> Values:
    """Return a value for every knob: runs of other versions may lack some and have others."""
    try:
        known = {name: value for name, value in given.items() if name in Knobs.model_fields}
        return Knobs().changed(within_bounds(known)).model_dump()
    except ConfigError as error:
        raise ValueError(str(error)) from None


def read_json(text: bytes | str) -> Any:
    """Parse JSON as in RFC 8259. Raises ValueError for NaN and infinities, which are no JSON."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"numbers must be finite, got {constant}")

    return json.loads(text, parse_constant=refuse)
