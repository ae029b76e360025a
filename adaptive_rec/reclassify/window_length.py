"""When a window ends, and how long its counts last."""

from __future__ import annotations

from dataclasses import dataclass

from adaptive_rec.tracking.horizon import Memory

FIRST_WINDOW_STEPS = 8
"""The first windows are short and double in length, so that the first hot rows are found soon."""

LIVES_REMEMBERED = 4
"""Where `knobs.decay` is auto, counts last for so many times the windows in which cold rows could fill all slots anew: long
enough to tell a row that is looked up again and again, though seldom, from one that was looked up once."""
FASTEST_DECAY, SLOWEST_DECAY = 0.6, 0.99
"""Bounds of it. In a sketch that forgets more slowly, the counts of too many rows add up."""


def lasting_decay(cold_met: float, slots: int) -> float:
    """Return the factor of a window's counts that has them last for as long as hot rows do. `cold_met`: cold rows of the window's
    steps, a row once for each step."""
    return max(FASTEST_DECAY, min(1 - cold_met / max(1, slots) / LIVES_REMEMBERED, SLOWEST_DECAY))


@dataclass
class Window:
    """The steps since the last full window ended, or since the policy started."""

    began: int = 0
    first: bool = True
    """Whether no full window has ended yet."""

    def ends(self, step: int, reclassify_every: int) -> bool:
        """Whether a window ends after `step` steps: a full one, or in the first one a short one."""
        steps = step - self.began
        doubled = FIRST_WINDOW_STEPS <= steps and steps & (steps - 1) == 0
        return self.is_full(step, reclassify_every) or (self.first and doubled)

    def is_full(self, step: int, reclassify_every: int) -> bool:
        return step - self.began >= reclassify_every


@dataclass(frozen=True)
class MemoryChange:
    """A change of how long popularity is remembered."""

    memory: Memory
    window_steps: int
    caught_ratio: float
    """Estimated share of the last ticks' lookups that the new memory would have caught."""
    before_ratio: float
    """Estimated share that the memory before would have caught."""

    def __str__(self) -> str:
        windows = f"windows of {self.window_steps} steps, decay {self.memory.window_decay:.2g}"
        return f"{windows}: catches {self.caught_ratio:.1%} of the lookups (before {self.before_ratio:.1%})"
