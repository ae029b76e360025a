"""Routes on the run itself: status, counters, curves, events."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from adaptive_rec.live.telemetry import ratio
from adaptive_rec.service import schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.metric_history import COLUMNS, MetricHistory
from adaptive_rec.service.placement_api import heading
from adaptive_rec.service.problems import Json
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.tiers import per_table, tiers
from adaptive_rec.service.written import Template, repeat_answer


def router(view: RunView) -> APIRouter:
    """Return the routes of status, counters, curves and events."""
    routes = APIRouter(prefix="/api/v1", tags=["run"])

    @routes.get("/status", **answers(schemas.Status, 503), operation_id="get_status")
    async def get_status(request: Request) -> Response:
        """Phase, step, pace and quality of the run."""
        scope, browser = request.state.scope, by_cookie(request)

        def answer() -> Response:
            view.refresh()
            return Response(write_status(view, moving_members(view), scope, browser), media_type=Json.media_type)

        return repeat_answer(answer)

    @routes.get("/stats", **answers(schemas.Stats, 503), operation_id="get_stats")
    async def get_stats() -> Response:
        """Counters and ratios of the run and of every table."""
        return repeat_answer(lambda: view.answers.get("stats", lambda: Json({**stats(view), "tables": table_stats(view)})))

    @routes.get("/stats/history", **answers(schemas.StatsHistory), operation_id="get_history")
    async def get_history(
        since: Annotated[int, Query(ge=-1, le=MAX_STEP, description="Only points after this step.")] = -1,
        step: Annotated[int, Query(ge=1, le=MAX_STEP, description="Least number of steps between two points.")] = 1,
    ) -> Response:
        """Curves of the whole run: at most 4096 points, thinned evenly if there were more."""

        def answer() -> Response:
            view.refresh()
            found: Response = view.answers.get(("history", since, step), lambda: Json(curves(view.history, since, step)))
            return found

        return repeat_answer(answer)

    @routes.get("/events", **answers(schemas.Events), operation_id="list_events")
    async def list_events(
        since: Annotated[
            int | None, Query(ge=0, le=MAX_STEP, description="Only events after this id; without it, the newest.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        kind: Annotated[str | None, Query(max_length=50, description="Only events of this kind.")] = None,
    ) -> Response:
        """What happened: knob changes, reclassifications, whole or split batches, checkpoints, warnings."""

        def answer() -> Response:
            view.refresh()
            found: Response = view.answers.get(("events", since, limit, kind), page)
            return found

        def page() -> Json:
            events, last_id = view.events.page(since, limit, kind)
            return Json({"events": events, "last_id": last_id})

        return repeat_answer(answer)

    return routes


def curves(history: MetricHistory, since: int, spacing: int) -> Values:
    """Return the answer of /stats/history: points after a step, at least so many steps apart."""
    points = history.snapshots.since(since, spacing)
    return {
        "columns": {name: [point[name] for point in points] for name in COLUMNS},
        "evaluations": history.evaluations.since(since, 1),
        "spacing_steps": max(history.snapshots.spacing, spacing),
    }


STEPPING = ("training", "evaluating", "checkpointing")
"""Phases of a run that goes on to its end."""


def by_cookie(request: Request) -> bool:
    """Return whether the gate let the request in for its cookie: it looks at cookies only where there is no such header."""
    return "authorization" not in request.headers


def status(view: RunView, scope: str, session: bool = False) -> Values:
    """Return the answer of /status: numbers of the newest snapshot, and the last step done. `session`: see `by_cookie`."""
    now = moving_members(view)
    return {**reported_members(view, scope, session), "evaluation": newest_evaluation(view, now["step"]), **now}


def write_status(view: RunView, now: Values, scope: str, session: bool) -> bytes:
    """Return the answer of /status as it is sent, with the members of `moving_members` in `now`. All others are written once for
    all who ask until the next report."""
    scored = newest_evaluation(view, now["step"])
    template: Template = view.answers.get(
        ("status", scope, session, scored and scored["step"]),
        lambda: Template({**reported_members(view, scope, session), "evaluation": scored}, now),
    )
    return template.fill(now)


def moving_members(view: RunView) -> Values:
    """Return the members of /status that change between two reports."""
    board, pulse = view.board(), view.pulse()
    step = max(board.get("step", 0), pulse[0] if pulse else 0)
    pace, total = view.history.steps_per_second(), board.get("steps_total")
    goes_on = total and pace and board.get("phase") in STEPPING
    return {
        "step": step,
        "eta_seconds": max(0, total - step) / pace if goes_on else None,
        "last_step_age_seconds": round(time.monotonic() - pulse[1], 3) if pulse else None,
    }


def reported_members(view: RunView, scope: str, session: bool) -> Values:
    """Return the members of /status in their order, without values of those that change between two reports."""
    board, hello = view.board(), view.hello
    snapshot = board.get("snapshot") or {}
    phase = board.get("phase", "starting")
    memory = tiers(view)
    return {
        "run": {
            "name": hello.run_name,
            "path": hello.run,
            "started": datetime.fromtimestamp(hello.started, UTC).isoformat(timespec="seconds"),
            **{key: getattr(hello, key) for key in ("seed", "device", "precision", "version", "steps_per_epoch")},
            "parent": asdict(hello.parent) if hello.parent else None,
        },
        "live": hello.live,
        "scope": scope,
        "session": session,
        "policy": view.knobs.effective.get("policy", ""),
        "phase": phase,
        "error": view.error() if phase in ("failed", "suspended") else None,
        "damaged": view.damage(),
        "step": None,
        "steps_total": board.get("steps_total"),
        "samples_seen": int(snapshot.get("totals", {}).get("samples_seen", 0)),
        "samples_per_second": snapshot.get("samples_per_second"),
        "steps_per_second": view.history.steps_per_second(),
        "seconds": snapshot.get("seconds", 0.0),
        "eta_seconds": None,
        "loss": snapshot.get("loss"),
        "evaluation": None,
        "best_evaluation": board.get("best_evaluation"),
        "best_metric": board.get("best_metric"),
        "stopped_early": board.get("stopped_early"),
        "held_out": board.get("held_out"),
        "overfit": board.get("overfit"),
        "epoch": board.get("epoch"),
        "epochs": board.get("epochs"),
        "checkpoint": board.get("checkpoint"),
        "staging_bytes": memory.staging_bytes,
        "peak_bytes": memory.peak_bytes,
        "last_step_age_seconds": None,
        "ranks": [{"rank": rank, **found} for rank, found in enumerate(snapshot.get("ranks", ()))],
        "straggler": snapshot.get("straggler"),
    }


def newest_evaluation(view: RunView, step: int) -> Values | None:
    """Return the newest evaluation: of the board, or of the file where that is newer. A run that is resumed at its end has saved
    the one before its final checkpoint. The file of a resumed run may hold steps that it has still to make again."""
    saved: Values | None = view.board().get("evaluation")
    written = next((each for each in reversed(view.history.evaluations.points) if each["step"] <= step), None)
    if written and (saved["step"] if saved else -1) < written["step"]:
        return written
    return saved


def stats(view: RunView) -> Values:
    """Return the answer of /stats without the tables."""
    snapshot: Values = view.board().get("snapshot") or {}
    now = tiers(view)
    return {
        "step": snapshot.get("step", 0),
        "seconds": snapshot.get("seconds", 0.0),
        "hot_rows": sum(now.hot_rows),
        "stale_rows": sum(now.stale_rows),
        "placement_version": now.version,
        "stale_threshold": snapshot.get("stale_threshold"),
        "stale_agreement": snapshot.get("stale_agreement"),
        "dense_lr": snapshot.get("dense_lr"),
        "embedding_lr": snapshot.get("embedding_lr"),
        "ratios": {
            name: snapshot.get(f"{name}_ratio")
            for name in ("hot_lookup", "popular_sample", "skipped_sample", "skipped_row_update")
        },
        "totals": snapshot.get("totals", {}),
        "stage_seconds": snapshot.get("stage_seconds", {}),
        "disk": snapshot.get("disk"),
        "keys": snapshot.get("keys"),
        "skipping": snapshot.get("skipping"),
    }


def table_stats(view: RunView) -> list[Values]:
    """Return the lookups of every table up to the newest snapshot, and its rows now."""
    counts: dict[str, Any] = (view.board().get("snapshot") or {}).get("tables") or {}
    now = tiers(view)
    columns = {
        "lookups": per_table(view, counts.get("lookups")),
        "lookups_hot": per_table(view, counts.get("lookups_hot")),
        "hot_rows": now.hot_rows,
        "stale_rows": now.stale_rows,
    }
    result = []
    for table in view.hello.tables:
        own = {name: column[table.index] for name, column in columns.items()}
        result.append({**heading(table), **own, "hot_lookup_ratio": ratio(own["lookups_hot"], own["lookups"])})
    return result
