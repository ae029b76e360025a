"""A thread of each rank that notices ranks which no longer run: killed, stopped, or on a machine that is gone.

Every rank raises a number in the group's key-value store every `BEAT_SECONDS`, and looks at the numbers of the others. A rank
that waits for another one is alive; so a wait of any length is allowed, and a rank that hangs ends the group.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore

BEAT_SECONDS = 2.0
LOST_SECONDS = 20.0
"""Time without a sign of life after which a rank is lost."""

DONE = "done"


class GroupWatch:
    """Gives this rank's signs of life, and ends the process where another rank gives none."""

    def __init__(self, rank: int, ranks: int) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=LOST_SECONDS))
        self._store = PrefixStore(f"adaptive-rec/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self._rank, self._ranks = rank, ranks
        self._report: Callable[[str], object] = lambda text: None
        self._over = threading.Event()
        self._store.set(str(rank), "0")
        self._thread = threading.Thread(target=self._watch, name="group-watch", daemon=True)
        self._thread.start()

    def report_to(self, report: Callable[[str], object]) -> None:
        """Call a function with the reason before the process is ended."""
        self._report = report

    def stop(self) -> None:
        """Leave the group in peace: this rank's silence means nothing from now on."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            self._store.wait([str(rank) for rank in range(self._ranks)], timedelta(seconds=10 * LOST_SECONDS))
            seen = [("", time.monotonic())] * self._ranks
            beats = 0
            while not self._over.wait(BEAT_SECONDS):
                beats += 1
                self._store.set(str(self._rank), str(beats))
                for rank in range(self._ranks):
                    beat = self._store.get(str(rank)).decode()
                    if beat != seen[rank][0]:
                        seen[rank] = beat, time.monotonic()
                    elif beat != DONE and time.monotonic() - seen[rank][1] > LOST_SECONDS:
                        self._end(f"rank {rank} has given no sign of life for {LOST_SECONDS:.0f} seconds")
            self._store.set(str(self._rank), DONE)
        except RuntimeError as error:
            if not self._over.is_set():
                self._end(f"the process that holds the group together, rank 0 or torchrun, is gone: {error}".splitlines()[0])

    def _end(self, reason: str) -> None:
        text = f"{reason}; the run ends, and goes on from its newest checkpoint when it is resumed"
        print(f"error: rank {self._rank}: {text}", file=sys.stderr, flush=True)
        self._report(text)
        os._exit(1)
