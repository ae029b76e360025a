"""The memory plan of a run: its parts, the memory available, and whether they fit.

The parts are computed before anything large is allocated: `rows.py` has those that depend on the number of rows, `parts.py` all
others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.units import comparable_size

Place = Literal["host", "device", "disk"]

SHOWN_PLACES: dict[Place, str] = {"host": "host memory", "device": "device memory", "disk": "room on the disk"}

Moment = Literal["", "step", "window", "evaluation"]
"""When a part is in memory: always, or only during a step, a window's end or an evaluation, of which one happens at a time."""

WORTH_NAMING = 0.1
"""Least share of the reducible memory that a part must take to be named as a remedy."""

CONTEXT_BYTES = 512 << 20
"""Device memory of a CUDA process before its first tensor; free memory is reported without it. Assumed, not measured."""


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
    """The slots of one pool, in host or device memory."""

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
    """The configuration keys that make it smaller."""
    held: bool = False
    """Whether it is in memory already while the plan is computed."""
    moment: Moment = ""
    of_rows: bool = False
    """Whether it follows from the rows alone. A rehearsal measures all others."""


@dataclass(frozen=True)
class RowParts:
    """The memory that follows from the number of rows and of slots."""

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
    """Memory of each place; a missing device has no entry."""
    lookups: int = 0
    """Lookups of the batch that was read for the plan."""
    notes: list[str] = field(default_factory=list)
    """Remarks on the accuracy of the figures."""

    def needed(self, place: Place) -> int:
        """Return the most that a place holds at a time."""
        return needed_bytes(self.parts, place)

    def free(self, place: Place) -> int:
        """Return what is left of a place's memory, negative where it is too small."""
        held = sum(part.bytes for part in self.parts if part.place == place and part.held)
        return self.available_bytes.get(place, 0) + held - self.needed(place)

    def problem(self, place: Place) -> str:
        """Return what to change where a place is too small, else an empty string."""
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
        return f"the run will need {needs} of {SHOWN_PLACES[place]}, {has} are available; {remedy}"

    @property
    def problems(self) -> list[str]:
        return [text for place in self.available_bytes if (text := self.problem(place))]

    def check(self) -> None:
        """Raise MemoryPlanError where host memory or the disk is too small. Device memory is checked later, where fewer hot rows
        may fit."""
        for place in self.available_bytes:
            if place != "device" and (text := self.problem(place)):
                raise MemoryPlanError(text, faq="host-memory")

    def with_rows(self, rows: RowParts, policy: str) -> MemoryPlan:
        """Return the plan with other rows, or other slots for them."""
        others = [part for part in self.parts if not part.of_rows]
        return replace(self, policy=policy, tables=rows.tables, hot=rows.hot, parts=[*rows.parts, *others])

    def scaled(self, keys: Collection[str], factor: float) -> MemoryPlan:
        """Return the plan with the parts of these keys scaled by a factor."""
        parts = [replace(p, bytes=round(p.bytes * factor)) if p.keys in keys else p for p in self.parts]
        return replace(self, parts=parts) if factor != 1 else self

    def on_another_machine(self) -> MemoryPlan:
        """Return the plan for another machine, where nothing is in memory yet."""
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
    """Return the most that parts take together; only one of the moments happens at a time."""
    moments: dict[Moment, int] = {}
    for part in parts:
        if part.place == place:
            moments[part.moment] = moments.get(part.moment, 0) + part.bytes
    return moments.pop("", 0) + max(moments.values(), default=0)
