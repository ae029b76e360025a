"""What a checkpoint keeps of a run beside its tables and its dense part, and how much of that another run can take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.dense.evaluate import Evaluation
from adaptive_rec.dense.metrics import Quality
from adaptive_rec.embedding.device import all_rows_bytes
from adaptive_rec.embedding.placement_state import placement_state, set_placement, set_slots, set_traffic
from adaptive_rec.errors import CheckpointError
from adaptive_rec.runtime.stream import saved_knobs, saved_position
from adaptive_rec.saved import Saved

if TYPE_CHECKING:
    from adaptive_rec.runtime.loop import Runtime


def state_of(runtime: Runtime) -> dict[str, Any]:
    """The run between two steps."""
    evaluation = runtime.last_evaluation
    return {
        "step": runtime.step_number,
        "position": asdict(runtime.position),
        "policy": runtime.policy.name,
        "knobs": runtime.knobs.model_dump(),
        "knobs_step": runtime.knobs_step,
        "begun": runtime.begun,
        "window_due": runtime.window_due,
        "paused": runtime.control.paused,
        "budget_bytes": _budget_bytes(runtime),
        "monitored": runtime.store.monitored,
        "store": placement_state(runtime.store),
        "observer": runtime.observer.state(),
        "reclassifier": runtime.reclassifier.state(),
        "phases": runtime.phases.state(),
        "splitting": runtime.splitting.state(),
        "tally": runtime.tally.state(),
        "recorder": runtime.recorder.state(),
        "times": runtime.times.state(),
        "loss_sum": float(runtime.store.fetch(runtime.dense.loss_sum)),
        "left_out_in_a_row": runtime.finite.in_a_row,
        "evaluation": evaluation and {"step": evaluation.step, "quality": asdict(evaluation.quality)},
    }


def knobs_of(found: Saved) -> Knobs:
    """The knobs that a run was saved with."""
    return saved_knobs(found.part("knobs"))


def set_state(runtime: Runtime, found: Saved) -> None:
    """Take over a saved state, tables and dense part beforehand. Under the same policy with the same budget all goes on as it
    was; else rows start cold and are placed anew, by what was counted of them so far."""
    runtime.step_number, runtime.position = found.integer("step"), saved_position(found.part("position"))
    runtime.was_paused = found.flag("paused")
    _set_counts(runtime, found)
    policy, how = found.text("policy"), (found.integer("budget_bytes"), found.flag("monitored"))
    knobs_of(found)
    same = policy == runtime.policy.name and how == (_budget_bytes(runtime), runtime.store.monitored)
    if found.flag("begun") and same:
        _set_all(runtime, found)
        return
    slots = [part.array("row_of_slot", np.int64, -1) for part in found.part("store").parts("pools")]
    hot = np.sort(np.concatenate(slots))
    runtime.observer.remember(found.part("observer"), hot[hot >= 0])
    if policy == runtime.policy.name:
        runtime.phases.set_state(found.part("phases"), placed=False)
    else:
        runtime.phases.reordered = found.part("phases").flag("reordered")


def _set_all(runtime: Runtime, found: Saved) -> None:
    runtime.begun, runtime.window_due = True, found.flag("window_due")
    runtime.knobs_step = found.integer("knobs_step")
    _set_slots(runtime, found.part("store"))
    runtime.observer.set_state(found.part("observer"))
    runtime.reclassifier.set_state(found.part("reclassifier"))
    runtime.phases.set_state(found.part("phases"), placed=True)
    runtime.splitting.set_state(found.part("splitting"))
    runtime.finite.in_a_row = found.integer("left_out_in_a_row")
    evaluation = found.maybe("evaluation")
    if evaluation is not None:
        quality = _quality(evaluation.numbers("quality"))
        runtime.last_evaluation = Evaluation(evaluation.integer("step"), quality)
    found.finish()


def _set_counts(runtime: Runtime, found: Saved) -> None:
    """What was counted and timed, whatever the placement."""
    runtime.tally.set_state(found.part("tally"))
    runtime.recorder.set_state(found.part("recorder"))
    runtime.times.set_state(found.part("times"))
    set_traffic(runtime.store, found.part("store").part("traffic"))
    loss_sum = found.number("loss_sum")
    runtime.store.launch(lambda: runtime.dense.loss_sum.fill_(loss_sum))


def _set_slots(runtime: Runtime, found: Saved) -> None:
    store = runtime.store
    slots = [len(part.array("row_of_slot", np.int64, -1)) for part in found.parts("pools", len(store.space.pools))]
    rows = [pool.rows for pool in store.space.pools]
    used = sum(count * size for count, size in zip(slots, store.row_bytes, strict=True))
    if used > _budget_bytes(runtime) or any(count > most for count, most in zip(slots, rows, strict=True)):
        raise CheckpointError(
            f"slots must fit the budget of {_budget_bytes(runtime)} bytes and the pools' rows, got {slots}"
        )
    set_slots(store, slots)
    set_placement(store, found)


def _budget_bytes(runtime: Runtime) -> int:
    store = runtime.store
    return runtime.policy.budget_bytes(runtime.knobs, all_rows_bytes(store.space, store.row_bytes))


def _quality(values: Mapping[str, float]) -> Quality:
    try:
        return Quality(**values)  # type: ignore[arg-type]
    except TypeError as error:
        raise CheckpointError(f"quality of an evaluation must have its figures: {error}") from None
