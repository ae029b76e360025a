"""Work that all ranks do together, part by part: where one fails in a part, all end there, with its error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from adaptive_rec.errors import AdaptiveRecError, GroupError, RankError, first_line
from adaptive_rec.system.group import Group


class CommonWork:
    """The parts of one work. Every rank must enter as many parts as the others; those of one rank may lie within another one."""

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._name = group, name
        self._failed = False

    @contextmanager
    def part(self) -> Iterator[None]:
        """Do a part on this rank, and wait for the others at its end. Raises RankError where another one has failed."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            if self._failed or isinstance(error, GroupError):
                raise  # the others know, or cannot be reached
            failure = error
        code = failure.exit_code if isinstance(failure, AdaptiveRecError) else AdaptiveRecError.exit_code
        found = self._group.share(None if failure is None else [first_line(failure), code])
        self._failed = any(found)
        if failure is not None:
            raise failure
        for rank, lost in enumerate(found):
            if lost is not None:
                text, code = lost
                raise RankError(f"all ranks must {self._name} together, rank {rank} could not: {text}", code)
