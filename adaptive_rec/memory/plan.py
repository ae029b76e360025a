"""What a run will hold in memory, part by part, against what there is: the nouns of a plan, and whether it fits.

The parts are worked out before anything large is made: in `memory_rows.py` those that depend on how many rows there are, in
`memory_parts.py` all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.units import comparable_size

Place = Literal["host", "device"]

Moment = Literal["", "step", "window", "evaluation"]
"""When a part is there: all the time, or while a step runs, when a window ends, during an evaluation: one of these at a time."""

WORTH_NAMING = 0.1
"""Share of what can be made smaller from which on a part is worth changing."""

CONTEXT_BYTES = 512 << 20
"""What a CUDA process takes of a device before its first tensor: free memory is told without it. Assumed, not measured."""


@dataclass(frozen=True)
class TableBytes:
    """A table in host memory, all its rows cold."""

    name: str
    rows: int
    dim: int
    weights_bytes: int
    state_bytes: int
    placement_bytes: int


@dataclass(frozen=True)
class HotBytes:
    """The slots of one pool: rows that are hot, wherever that is."""

    dim: int
    rows: int
    slots: int
    weights_bytes: int
    state_bytes: int
    movement_bytes: int

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.state_bytes + self.movement_bytes


@dataclass(frozen=True)
class MemoryPart:
    """One kind of thing that takes memory."""

    name: str
    place: Place
    bytes: int
    keys: str
    """What makes it smaller."""
    held: bool = False
    """Whether it is in memory already, where the plan is made."""
    moment: Moment = ""
    of_rows: bool = False
    """Whether it is known from the rows alone. All others are measured where a run is rehearsed."""


@dataclass(frozen=True)
class RowParts:
    """What follows from how many rows there are and how many of them may be hot."""

    tables: list[TableBytes]
    hot: list[HotBytes]
    parts: list[MemoryPart]

    def bytes_in(self, place: Place) -> int:
        return needed_bytes(self.parts, place)


@dataclass(frozen=True)
class MemoryPlan:
    device: str
    policy: str
    tables: list[TableBytes]
    hot: list[HotBytes]
    parts: list[MemoryPart]
    available_bytes: dict[Place, int]
    """Of a place that is not there, nothing."""
    lookups: int = 0
    """Of the batch that was read for it."""
    notes: list[str] = field(default_factory=list)
    """How far its figures may be trusted."""

    def needed(self, place: Place) -> int:
        """The most that a place holds at a time."""
        return needed_bytes(self.parts, place)

    def free(self, place: Place) -> int:
        """What is left of a place's memory, negative where it is too small."""
        held = sum(part.bytes for part in self.parts if part.place == place and part.held)
        return self.available_bytes.get(place, 0) + held - self.needed(place)

    def problem(self, place: Place) -> str:
        """What is to be changed where it does not fit, empty where it does."""
        if self.free(place) >= 0:
            return ""
        needed, least = self.needed(place), needed_bytes((part for part in self.parts if not part.keys), place)
        available = needed + self.free(place)
        large = sorted((p for p in self.parts if p.place == place and p.keys), key=lambda part: -part.bytes)
        bar = WORTH_NAMING * sum(part.bytes for part in large)
        keys = [part.keys for part in large if part.bytes >= bar]
        remedy = f"lower {', then '.join(dict.fromkeys(keys))}"
        if least > available:
            remedy = f"no key lowers {comparable_size(least)} of that"
        needs, has = comparable_size(needed), comparable_size(available)
        return f"the run will need {needs} of {place} memory, {has} are available; {remedy}"

    @property
    def problems(self) -> list[str]:
        return [text for place in self.available_bytes if (text := self.problem(place))]

    def check_host(self) -> None:
        """Raise MemoryPlanError where host memory will not do. A device's is asked for when it is taken: less hot rows may do."""
        if text := self.problem("host"):
            raise MemoryPlanError(text)

    def with_rows(self, rows: RowParts, policy: str) -> MemoryPlan:
        """The same run with other rows, or other slots for them."""
        others = [part for part in self.parts if not part.of_rows]
        return replace(self, policy=policy, tables=rows.tables, hot=rows.hot, parts=[*rows.parts, *others])

    def scaled(self, keys: Collection[str], factor: float) -> MemoryPlan:
        """The same where parts that these keys make smaller are so many times as large."""
        parts = [replace(p, bytes=round(p.bytes * factor)) if p.keys in keys else p for p in self.parts]
        return replace(self, parts=parts) if factor != 1 else self

    def on_another_machine(self) -> MemoryPlan:
        """The same where `available_bytes` are all that a machine has: nothing is in memory there yet."""
        parts = [replace(part, held=False) for part in self.parts]
        if "device" in self.available_bytes:
            parts.append(MemoryPart("CUDA's context, assumed", "device", CONTEXT_BYTES, ""))
        return replace(self, parts=parts)

    def as_dict(self) -> dict[str, Any]:
        needed = {place: self.needed(place) for place in self.available_bytes}
        hot = [{**asdict(pool), "bytes": pool.bytes} for pool in self.hot]
        return {
            **asdict(self),
            "hot": hot,
            "needed_bytes": needed,
            "fits": not self.problems,
            "problems": self.problems,
        }


def needed_bytes(parts: Iterable[MemoryPart], place: Place) -> int:
    """What parts take together where of the moments only one is at a time."""
    moments: dict[Moment, int] = {}
    for part in parts:
        if part.place == place:
            moments[part.moment] = moments.get(part.moment, 0) + part.bytes
    return moments.pop("", 0) + max(moments.values(), default=0)
