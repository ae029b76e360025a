"""The settings of checkpoints: when a run writes one, and how many it keeps."""

from __future__ import annotations

from adaptive_rec.config.knobs import Frozen, knob


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
        "Checkpoints that are kept, the newest ones with those they build on; older ones go when a newer was read again.",
        ge=2,
    )
