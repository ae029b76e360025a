"""Saved state that is read back: every value is requested by name and checked, and none may be left over.

The state of a component is a mapping of names to mappings, arrays and JSON values; see `Keeps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.errors import CheckpointError

ANY = -1
"""Stands for any length."""


class Keeps(Protocol):
    """A component whose state a checkpoint saves and restores."""

    def state(self) -> dict[str, Any]:
        """Return all that later steps depend on. Arrays may be views: they are written before anything changes."""
        ...

    def set_state(self, found: Saved) -> None:
        """Restore what `state` of another instance returned. Raises CheckpointError where it does not fit."""
        ...


def parts_by_number(parts: Iterable[Any]) -> dict[str, Any]:
    """Return a list as a part of a state: its items by their numbers. `Saved.parts` reads it back."""
    return {str(number): part for number, part in enumerate(parts)}


class Saved:
    """A part of a saved state."""

    def __init__(self, values: Mapping[str, Any], name: str = "state") -> None:
        self._values = values
        self._name = name
        self._requested: set[str] = set()
        self._parts: dict[str, Saved] = {}

    def integer(self, key: str) -> int:
        return int(self._of(key, int, "a whole number"))

    def number(self, key: str) -> float:
        return float(self._of(key, (int, float), "a number"))

    def flag(self, key: str) -> bool:
        return bool(self._of(key, bool, "true or false"))

    def text(self, key: str) -> str:
        return str(self._of(key, str, "a text"))

    def numbers(self, key: str) -> dict[str, float]:
        """Return numbers by name, under any names. Whole numbers stay whole."""
        return self.part(key).all_numbers()

    def all_numbers(self) -> dict[str, float]:
        """Return the numbers of this part, which must hold nothing else."""
        for name, value in self._values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._wrong(name, "a number", value)
        return self.everything()

    def everything(self) -> dict[str, Any]:
        """Return all values of this part; the caller checks them."""
        self._requested.update(self._values)
        return dict(self._values)

    def array(self, key: str, dtype: DTypeLike, *shape: int) -> NDArray[Any]:
        """Return an array of a type and a shape, whose lengths may be ANY."""
        value: NDArray[Any] = self._of(key, np.ndarray, "an array")
        fits = len(value.shape) == len(shape) and all(
            want in (ANY, got) for want, got in zip(shape, value.shape, strict=True)
        )
        if value.dtype != np.dtype(dtype) or not fits:
            wanted = ", ".join("any" if length == ANY else str(length) for length in shape)
            raise self._wrong(key, f"of ({wanted}) {np.dtype(dtype)}", f"{value.shape} {value.dtype}")
        return value

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of an array, unchecked."""
        shape: tuple[int, ...] = self._of(key, np.ndarray, "an array").shape
        return shape

    def has(self, key: str) -> bool:
        """Whether there is such a value; for what only some versions saved."""
        return key in self._values

    def ignore(self, key: str) -> None:
        """Leave out a value that an older version saved."""
        self._request(key)

    def part(self, key: str) -> Saved:
        if key not in self._parts:
            self._parts[key] = Saved(self._of(key, Mapping, "a part with names"), f"{self._name}/{key}")
        return self._parts[key]

    def maybe(self, key: str) -> Saved | None:
        """Return a part that may be missing."""
        if self._request(key) is None:
            return None
        return self.part(key)

    def parts(self, key: str, count: int = ANY) -> list[Saved]:
        """Return the parts of a list that `numbered` made."""
        whole = self.part(key)
        names = [str(number) for number in range(len(whole._values))]
        if count not in (ANY, len(names)):
            raise self._wrong(key, f"{count} parts", len(names))
        return [whole.part(name) for name in names]

    def all_parts(self) -> dict[str, Saved]:
        """Return the parts of this part by name, under any names; it must hold nothing else."""
        return {name: self.part(name) for name in self._values}

    def finish(self) -> None:
        """Raise CheckpointError where a saved value was never requested."""
        for name in self._values:
            if name not in self._requested:
                raise CheckpointError(f"{self._name} must hold nothing unknown, got {name}")
        for part in self._parts.values():
            part.finish()

    def _request(self, key: str) -> Any:
        self._requested.add(key)
        if key not in self._values:
            raise CheckpointError(f"{self._name} must hold {key}, which is missing")
        return self._values[key]

    def _of(self, key: str, kind: Any, wanted: str) -> Any:
        value = self._request(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(key, wanted, value)
        return value

    def _wrong(self, key: str, wanted: str, value: Any) -> CheckpointError:
        text = value if isinstance(value, str) else repr(value)
        return CheckpointError(f"{self._name}/{key} must be {wanted}, got {text[:200]}")


@dataclass(frozen=True)
class SavedLayout:
    """How the rows of a checkpoint are laid out."""

    pools: int
    """One for each table where the run began under a policy that has them so, even if its policy has changed since."""
    ranks: int
    home_T: tuple[int, ...]
    """The rank that owns each table whole, -1 for one whose rows are dealt out; empty: all are."""
