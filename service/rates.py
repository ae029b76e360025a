"""Token buckets, which limit rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Bucket:
    """Allows `per_second` events in the long run, and up to `burst` at once after a quiet time."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not per_second > 0 or not burst >= 1:
            raise ValueError(f"a rate must be above 0 and its burst at least 1, not {per_second} and {burst}")
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._left, self._at = burst, clock()

    def take(self) -> int:
        """Count an event and return 0 if it may happen now, else return the whole seconds to wait."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return math.ceil((1 - self._left) / self._per_second)
        self._left -= 1
        return 0
