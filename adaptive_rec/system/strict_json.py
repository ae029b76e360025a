"""JSON objects that another process, or somebody else, has written: nothing is converted, and what does not fit is no value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json


class StrictShape(BaseModel):
    """What an object must have: values of these very types, with finite numbers. Other fields are allowed."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def parsed(text: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None. NaN, half surrogate pairs and very deep nesting are not accepted."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def fits(shape: type[BaseModel], values: Mapping[str, Any]) -> bool:
    """Return whether an object has a shape."""
    try:
        shape.model_validate(values)
    except ValidationError:
        return False
    return True


class LinesLeftOut:
    """Lines of a file that cannot be read, of which the first are remembered by their numbers."""

    MOST_NUMBERS = 20
    MOST_LINES, MOST_BYTES = 100_000, 128 << 20
    """What a reader leaves out before it gives up the rest of a file: to go on would take minutes."""

    def __init__(self) -> None:
        self.count = self._bytes = 0
        self.numbers: list[int] = []
        """Those of the first ones, from 1. Of a file of which only a part is read, lines have no numbers."""
        self.unread_from: int | None = None
        """The first line that was not read any more, where the reader has given up."""

    def add(self, number: int | None, size: int = 0) -> None:
        """Leave out a line of `size` bytes."""
        self.count += 1
        self._bytes += size
        if number is not None and len(self.numbers) < self.MOST_NUMBERS:
            self.numbers.append(number)

    def gives_up(self, number: int) -> bool:
        """Return whether so much was left out that nothing from this line on is to be read."""
        if self.count >= self.MOST_LINES or self._bytes >= self.MOST_BYTES:
            self.unread_from = number
        return self.unread_from is not None

    def __str__(self) -> str:
        rest = f"; nothing is read from line {self.unread_from} on" if self.unread_from is not None else ""
        return f"{self._in_words()}{rest}"

    def _in_words(self) -> str:
        if self.count == 1:
            return f"line{''.join(f' {number}' for number in self.numbers) or ' of it, one,'} cannot be read and is left out"
        if not self.numbers:
            return f"{self.count} lines of the part that was read cannot be read and are left out"
        more = f" and {self.count - len(self.numbers)} more" if self.count > len(self.numbers) else ""
        return f"{self.count} lines cannot be read and are left out: {', '.join(map(str, self.numbers))}{more}"
