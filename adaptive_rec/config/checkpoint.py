"""The settings of checkpoints: when a run writes one, and how many it keeps."""

from __future__ import annotations

from adaptive_rec.config.knobs import Frozen, Knobs, knob


class CheckpointConfig(Frozen):
    every_steps: int = knob(
        0, "steps", "Steps from one checkpoint to the next while the run trains; 0: none by steps.", ge=0
    )
    every_seconds: float = knob(
        600.0,
        "seconds",
        "Seconds from one checkpoint to the next while the run trains; 0: none by time. The last one is written in any case.",
        ge=0,
    )
    keep: int = knob(
        2,
        "checkpoints",
        "Checkpoints that are kept: the newest ones, beside them that of the best evaluation, with those they build on; older "
        "ones go when a newer was read again.",
        ge=2,
    )

    def intervals(self, knobs: Knobs) -> tuple[int, float]:
        """Return the steps and the seconds from one checkpoint to the next under some knobs; 0: none by steps, none by time."""
        steps, seconds = knobs.checkpoint_every_steps, knobs.checkpoint_every_seconds
        return (
            self.every_steps if isinstance(steps, str) else steps,
            self.every_seconds if isinstance(seconds, str) else seconds,
        )
