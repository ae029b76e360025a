"""What a rank sends to the others, and how long it is in operations with them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class GroupMeter:
    """Bytes and seconds of one rank, over all channels of its group."""

    def __init__(self) -> None:
        self.sent_bytes: Counter[str] = Counter()
        """Bytes that this rank has sent to other ranks, by kind."""
        self._waited_seconds = self._waited_ahead_seconds = 0.0
        self._training_thread = threading.get_ident()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time an operation with other ranks."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        if threading.get_ident() == self._training_thread:
            self._waited_seconds += seconds
        else:
            self._waited_ahead_seconds += seconds

    def waited(self) -> float:
        """Return for how many seconds the training thread was in operations with other ranks, which wait for the slowest one:
        that one has the fewest."""
        return self._waited_seconds

    def waited_ahead(self) -> float:
        """Return the same of the thread that stages batches ahead of their steps."""
        return self._waited_ahead_seconds
