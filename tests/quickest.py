"""How long a call takes where other work on the machine lengthens some calls, but not all."""

from __future__ import annotations

import time
from collections.abc import Callable


def quickest(call: Callable[[], object], times: int = 3) -> float:
    """Processor seconds of the quickest of several calls, without what other threads do meanwhile."""
    seconds = []
    for _ in range(times):
        began = time.thread_time()
        call()
        seconds.append(time.thread_time() - began)
    return min(seconds)
