"""What each run under way is doing, as its service answers, for the list of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from adaptive_rec.units import whole

if TYPE_CHECKING:
    from adaptive_rec.live.runtime_file import RuntimeFile

PATIENCE_SECONDS = 2.0
"""Longest time for the answer of a run; one that does not answer is listed without these figures."""
AT_ONCE = 8


def at_a_glance(files: Sequence[RuntimeFile]) -> list[dict[str, Any]]:
    """Return phase, step and best evaluation of each run; null where its service does not answer."""
    if not files:
        return []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(_of, files))


def _of(file: RuntimeFile) -> dict[str, Any]:
    from adaptive_rec.cli.client import ApiError, UnreachableError, client_of_run

    now: Mapping[str, Any] = {}
    try:
        with client_of_run(file, PATIENCE_SECONDS) as client:
            now = client.get("/status").body
    except (ApiError, UnreachableError):
        pass
    return {name: now.get(name) for name in ("phase", "step", "steps_total", "best_evaluation")}


def cells(now: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return phase, step and best evaluation as the list has them; "-" for what is not known."""
    step, best = now["step"], now["best_evaluation"]
    score = "-" if best is None or best["auc"] is None else f"{best['auc']:.4f} at step {whole(best['step'])}"
    return now["phase"] or "no answer", "-" if step is None else whole(step), score
