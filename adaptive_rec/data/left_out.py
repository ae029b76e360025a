"""A stream without some of its parts, as a run trains on it that went back and left out what came since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from adaptive_rec.batch import SLICE, Batch, Position
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.errors import DataError


class WithoutParts(Wrapped):
    """A source that goes on at another position wherever its reader reaches one of some positions. What lies between is not
    read."""

    has_same_ids = True

    def __init__(self, source: Source, ends: Mapping[Position, Position]) -> None:
        """`ends`: where the stream goes on, by the position at which a part begins."""
        super().__init__(source)
        self._ends = ends

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` on. Raises DataError where no batch ends at a position at which a part begins."""
        position = self._behind(position)
        batches = self._source.train_batches(position, batch_size)
        while (batch := next(batches, None)) is not None:
            yield batch
            first, last = position.order, batch.position.order
            passed = next((each for each in self._ends if first < each.order < last), None)
            if passed is not None:
                rule = f"a batch must end where a part of the stream is left out, at {passed}"
                raise DataError(f"{rule}; one of {batch_size} samples does not")
            position = batch.position
            if (behind := self._behind(position)) != position:
                position = behind
                batches = self._source.train_batches(position, batch_size)

    def _behind(self, position: Position) -> Position:
        while position in self._ends:
            position = self._ends[position]
        return position

    def steps_left_out(self, position: Position, batch_size: int) -> int:
        """Return how many batches of the rest of the stream are left out."""
        later = [(begin, end) for begin, end in self._ends.items() if begin.order >= position.order]
        return sum(steps_left(self, begin, batch_size) - steps_left(self, end, batch_size) for begin, end in later)


def with_all_parts(source: Source) -> Source:
    """Return a source as it was before parts of it were left out, or samples added that are made of its rows."""
    while isinstance(source, Wrapped) and source.has_same_ids:
        source = source.origin
    return source


def steps_left(source: Source, position: Position, batch_size: int) -> int:
    """Return how many batches a stream has from a position on; from one in the validation slice, how many that has."""
    if position.on_slice:
        left = max(0, source.validation_samples - position.offset) if position.epoch == SLICE else 0
        return -(-left // batch_size)
    if position.epoch >= source.epochs:
        return 0
    whole = (source.epochs - position.epoch - 1) * -(-source.train_samples // batch_size)
    return whole + -(-max(0, source.train_samples - position.offset) // batch_size)


def steps_to_come(source: Source, position: Position, batch_size: int) -> int:
    """Return how many batches of a stream are trained on from a position on, without the parts that are left out."""
    left, parts = steps_left(source, position, batch_size), source
    while isinstance(parts, Wrapped) and not isinstance(parts, WithoutParts):
        parts = parts.origin
    return left - (parts.steps_left_out(position, batch_size) if isinstance(parts, WithoutParts) else 0)


def samples_between(source: Source, begin: Position, end: Position) -> int:
    """Return how many samples lie between two positions."""
    return (end.epoch - begin.epoch) * source.train_samples + end.offset - begin.offset
