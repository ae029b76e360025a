"""How far a stream of raw keys is read beyond the steps that were made, and which of its batches have their rows for good."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from adaptive_rec.batch import Position
from adaptive_rec.config.knobs import MOST_STEPS
from adaptive_rec.data.raw.changes import NewKeys
from adaptive_rec.data.source import saved_position
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import Saved


class TakenBatches:
    """The batches that were taken and are not settled, and the positions up to which others are settled and drawn."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Position, NewKeys]] = deque()
        """What batches have changed whose steps may be yet to come."""
        self.settled_to = Position()
        """Batches up to here are settled: when they are read again, their keys are looked up, and nothing is counted."""
        self.drawn_to = Position()
        """The rows of batches up to here are drawn, and checkpoints have them: they are not drawn again."""
        self._batch_size = 0
        """Samples of the batches that were drawn."""
        self.look_ahead = 0
        """The most batches that the policy may have read ahead of those under way."""

    def __len__(self) -> int:
        return len(self._batches)

    def expect(self, look_ahead: int) -> None:
        """Note how many batches a policy reads ahead from now on."""
        self.look_ahead = max(self.look_ahead, look_ahead)

    def add(self, position: Position, new: NewKeys) -> None:
        """Note what the batch that ends at a position has changed."""
        self._batches.append((position, new))

    def settle(self, position: Position) -> Iterator[NewKeys]:
        """Yield what batches up to a position have changed, each once, and note that all up to it are settled."""
        while self._batches and self._batches[0][0].order <= position.order:
            yield self._batches.popleft()[1]
        if self.settled_to.order < position.order:
            self.settled_to = position

    @property
    def oldest(self) -> Position:
        """The position of the oldest batch that is not settled."""
        return self._batches[0][0]

    def note_drawn(self) -> None:
        """Note that the rows of all batches taken so far are drawn, and will be saved."""
        newest = self._batches[-1][0] if self._batches else self.settled_to
        self.drawn_to = max(newest, self.drawn_to, key=lambda each: each.order)

    def list_drawn(self) -> list[NewKeys]:
        """Return what the batches have changed that are not settled though their rows are drawn and saved."""
        return [new for position, new in self._batches if position.order <= self.drawn_to.order]

    def read_again(self, batch_size: int) -> bool:
        """Forget all batches that are not settled: they will be taken again, in batches of so many samples, or never. Returns
        whether there were some."""
        if batch_size != self._batch_size:  # keys get other rows if they come in other batches
            self.drawn_to, self._batch_size = Position(), batch_size
        found = bool(self._batches)
        self._batches.clear()
        return found

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "settled_to": asdict(self.settled_to),
            "drawn_to": asdict(self.drawn_to),
            "batch_size": self._batch_size,
            "look_ahead": self.look_ahead,
        }

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError."""
        self.settled_to, self.drawn_to = (saved_position(found.part(name)) for name in ("settled_to", "drawn_to"))
        self._batch_size, look_ahead = found.integer("batch_size"), found.integer("look_ahead")
        if not 0 <= look_ahead <= MOST_STEPS:
            raise CheckpointError(f"look_ahead of the raw ids must lie in [0, {MOST_STEPS}] batches, got {look_ahead}")
        self.expect(look_ahead)
