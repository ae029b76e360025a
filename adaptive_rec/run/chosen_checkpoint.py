"""The checkpoint of a run that is read: that of its best evaluation, the newest one, or one that is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_rec import checkpoint
from adaptive_rec.batch import SLICE
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in, newest_of_step, step_of
from adaptive_rec.checkpoint.history import hold_generation, verify_all
from adaptive_rec.checkpoint.saved_state import read_values
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import UsageError
from adaptive_rec.saved import Saved
from adaptive_rec.units import whole

BEST, NEWEST = "best", "newest"


@dataclass(frozen=True)
class Chosen:
    """A checkpoint that is read, held and whole."""

    generation: Path
    which: str
    """Why it was chosen: best, newest or named."""
    metric: str = ""
    """Of the best one, the metric by which it is."""
    value: float | None = None
    on_slice: bool = False
    """Of the best one, whether it was trained on the validation slice besides."""

    def __str__(self) -> str:
        step = f"step {whole(step_of(self.generation.name))}"
        if self.which == BEST:
            best = f"{step}, the best ({self.metric} {self.value:.4f}"
            return f"{best}), trained on the validation slice besides" if self.on_slice else f"{best})"
        return f"{step}, the newest" if self.which == NEWEST else step

    def figures(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return {"checkpoint": self.generation.name, "chosen": self.which}


def keeps_best(run: Path) -> bool:
    """Return whether a run keeps the checkpoint of its best evaluation, which is then read by default."""
    return load_config(str(run / "config.toml"), {}).eval.keeps_best


@contextmanager
def chosen_checkpoint(
    run: Path, wanted: str | None = None, warn: Callable[[str], None] = lambda text: None
) -> Iterator[Chosen]:
    """Yield the checkpoint of a run that `wanted` says: best, newest, a step or a name; by default the best one of a run that
    keeps it, otherwise the newest. It is whole, and a run that is training does not remove it in the body of a ``with``. `warn`
    is called for each checkpoint that was passed over. Raises UsageError where there is none, CheckpointError where it is not
    whole."""
    if wanted not in (None, BEST, NEWEST):
        generation = run / "checkpoints" / checkpoint_at(run, wanted, "--checkpoint")
        with hold_generation(DISK, generation):
            verify_all(DISK, generation)
            yield Chosen(generation, "named")
        return
    with newest_generation(run, warn) as newest:
        best = best_checkpoint(run, newest) if wanted == BEST or (wanted is None and keeps_best(run)) else Chosen(newest, NEWEST)
        if isinstance(best, str):
            if wanted == BEST:
                raise UsageError(f"--checkpoint must be newest or a step, got best: {best}")
            warn(f"{best}: the newest one is read")
            best = Chosen(newest, NEWEST)
        if best.generation == newest:
            yield best
            return
        with hold_generation(DISK, best.generation):
            verify_all(DISK, best.generation)
            yield best


def best_checkpoint(run: Path, generation: Path) -> Chosen | str:
    """Return the checkpoint of a run's best evaluation by the time of a generation, or why there is none."""
    saved = Saved(read_values(generation, DISK)[0])
    trend = saved.maybe("trend") if saved.has("trend") else None
    best = None if trend is None else trend.maybe("best")
    if trend is None or best is None or not trend.has("waiting"):  # older versions save no metric
        return f"{run} has no evaluation yet"
    step, epoch = best.integer("step"), saved.part("position").integer("epoch")
    same = step_of(generation.name) == step or epoch > SLICE
    names = [generation.name] if same else newest_of_step(generations(names_in(DISK, generation.parent)), step)
    if not names:
        return f"the best evaluation of {run} was at step {step}, of which there is no checkpoint"
    return Chosen(generation.parent / names[0], BEST, trend.part("waiting").text("metric"), best.number("value"), epoch > SLICE)


def checkpoint_at(run: Path, at: str | None, option: str = "--at") -> str:
    """Return the name of the checkpoint of a run that a user names by its step or its name; None names the newest. Raises
    UsageError with those there are."""
    names = generations(names_in(DISK, run / "checkpoints"))
    if at is None and names:
        return names[-1]
    if at in names:
        return str(at)
    found = [name for name in names if at and at.isascii() and at.isdecimal() and step_of(name) == int(at)]
    if not found:
        steps = sorted({step_of(name) for name in names})
        there = ", ".join(map(str, steps))
        kinds = "best, newest, or " * (option == "--checkpoint")
        raise UsageError(
            f"{option} must be {kinds}the step or the name of a checkpoint of {run}, which has steps {there}, got {at}"
        )
    return found[-1]  # the newest of this step


@contextmanager
def newest_generation(run: Path, warn: Callable[[str], None] = lambda text: None) -> Iterator[Path]:
    """Yield a run's newest whole checkpoint, which a run that is training does not remove meanwhile. Raises UsageError where
    there is none."""
    with checkpoint.held(run / "checkpoints") as found:
        for name, why in found.skipped:
            warn(f"checkpoint {name} was passed over: {why}")
        if found.generation is None:
            raise UsageError(f"RUN must be a run directory with a checkpoint, {run} has none")
        yield found.generation
