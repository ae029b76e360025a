"""The time that OpenMP's threads wait for work before they sleep."""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "GOMP_SPINCOUNT"
ROUNDS = "1000"
"""Some tens of microseconds: the time between two operations of a step."""


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads spin for some tens of microseconds, unless the user has set OMP_WAIT_POLICY.

    Threads that sleep at once must be woken for each operation: a step takes up to 1.6 times as long. Threads that spin for
    milliseconds, which is libgomp's default, take the cores from threads with work. Has no effect once torch is imported.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault(SPINS, ROUNDS)
        environment.setdefault("KMP_BLOCKTIME", "0")  # LLVM's and Intel's OpenMP know milliseconds only
