"""Settings that change the course of a run and differ after a resume: its replay would use them from the start."""

from __future__ import annotations

from typing import Any

from adaptive_rec.batch import SLICE
from adaptive_rec.checkpoint.settings import MAY_CHANGE
from adaptive_rec.config.tree import Config
from adaptive_rec.policy.find import load_policy

SECTIONS = ("data", "model", "optimizer", "policy")
OF_RUN = ("batch_size", "precision", "row_precision", "seed", "transport", "whole_tables")
OF_ARRANGED = (("run", "steps"), ("data", "epochs"))
"""Where the passes end, which counts where a policy arranges all that is to come, and where the validation slice is trained on
after them."""
OF_LAST_WINDOW = ("every_steps", "count")
"""How long the last window is, which is not trained on: where the passes end, too."""
OF_BEST = ("metric", "min_delta", "max_samples")
"""What the best evaluation goes by; evaluations are repeated where they were. Patience is apart: more of it only lets a run go
on."""


def changed_settings(before: Config, after: Config, epoch: int) -> dict[str, dict[str, Any]]:
    """Return the old and the new value of each such setting that differs, by its key. Knobs are not among them: they change while
    a run trains, and the journal has them. `epoch`: that of the run's position."""
    names = [("run", name) for name in OF_RUN]
    if epoch >= SLICE or load_policy(before.knobs.policy).arranges_stream:
        names += OF_ARRANGED
    for section in SECTIONS:
        names += [(section, name) for name in type(getattr(before, section)).model_fields if name not in MAY_CHANGE]
    if after.eval.keeps_best:
        names += [("eval", name) for name in OF_BEST]
    if before.eval.mode == "next_window":
        names += [("eval", name) for name in OF_LAST_WINDOW]
    if before.eval.train_slice:
        names.append(("eval", "train_slice"))
    if 0 < after.eval.patience and not 0 < before.eval.patience <= after.eval.patience:
        names.append(("eval", "patience"))
    found = {}
    for section, name in names:
        old, new = (getattr(getattr(config, section), name) for config in (before, after))
        if old != new:
            found[f"{section}.{name}"] = {"old": old, "new": new}
    return found
