"""Routes that show the knobs and change them while the run trains."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request
from starlette.responses import Response

from adaptive_rec.config.faults import value_in_sentence
from adaptive_rec.config.knobs import LONGEST_WHY, Knobs, knobs_version
from adaptive_rec.service import control_schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.trainer_link import KnobState
from adaptive_rec.service.waiting import check_open, outcome_soon, reason
from adaptive_rec.service.written import repeat_answer

MERGE_PATCH = "application/merge-patch+json"
ETAG = {"headers": {"ETag": {"description": "Version of the desired values.", "schema": {"type": "string"}}}}
NO_ANSWER = "the trainer must check the change and has not done so yet: GET /api/v1/knobs shows whether it was accepted"
PENDING = 0
"""Stands for the number of the event of a change that is not in effect yet."""
EXAMPLE = {"alpha": 0.8, "stale_threshold": None}

TAGS = re.compile(r'[\s,]*(W/)?"[^"]*"(\s*,(\s*(W/)?"[^"]*")?)*\s*')
"""A list of entity tags, of which one may be weak and fits nothing (RFC 9110, 13.1.1)."""
READ_VERSION = Header(
    description="ETag of the knobs that were read.", json_schema_extra={"pattern": rf"^(\s*\*\s*|{TAGS.pattern})?$"}
)

DryRun = Annotated[bool, Query(description="Check only; change nothing.")]
Why = Annotated[str | None, Query(max_length=LONGEST_WHY, description="The reason, for the journal.")]


def router(view: RunView) -> APIRouter:
    """The routes of the knobs."""
    routes = APIRouter(prefix="/api/v1/knobs", tags=["knobs"])
    shown = answers(control_schemas.KnobList)
    shown["responses"][200] = ETAG

    @routes.get("", **shown, operation_id="get_knobs")
    async def get_knobs() -> Response:
        """Every knob: desired, effective and default value, limits, unit, and what turning it does."""

        def answer() -> Response:
            knobs = view.knobs.copy()
            if is_pending(knobs):  # the reason has the seconds that it has lasted
                return tagged(knob_list(view, knobs), knobs.desired)
            settled: Response = view.answers.get("knobs", lambda: tagged(knob_list(view, knobs), knobs.desired))
            return settled

        return repeat_answer(answer)

    @routes.get("/schema", **answers(None), operation_id="get_knobs_schema")
    async def get_schema() -> Json:
        """The knobs as a JSON schema, for forms."""
        return Json(knobs_schema(view))

    changed = answers(control_schemas.KnobsChanged, 400, 403, 409, 412, 413, 428, 503)
    changed["responses"][200] = ETAG
    changed["responses"][202] = {"model": control_schemas.KnobsChanged, "description": "Accepted; not in effect yet", **ETAG}

    shape = {media_type: {"schema": patch_schema(view)} for media_type in (MERGE_PATCH, "application/json")}

    @routes.patch("", **changed, operation_id="change_knobs", openapi_extra={"requestBody": {"content": shape}})
    async def change_knobs(
        request: Request,
        patch: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
        if_match: Annotated[str, READ_VERSION] = "",
        dry_run: DryRun = False,
        why: Why = None,
    ) -> Response:
        """Merge patch (RFC 7396): values replace the desired ones; null restores the configured value."""
        view.commands()
        versions = base_versions(if_match)
        check_shape(patch)
        check_names_differ(await request.body())
        return await requested(view, patch, versions, dry_run, why=why)

    undone = answers(control_schemas.KnobsChanged, 403, 404, 409, 503)
    undone["responses"] |= {status: changed["responses"][status] for status in (200, 202)}

    @routes.post("/undo", **undone, operation_id="undo_knobs")
    async def undo_knobs(
        event: Annotated[
            int | None,
            Query(ge=1, le=MAX_STEP, description="Id of the event; without it, the last change, in effect or pending."),
        ] = None,
        dry_run: DryRun = False,
        why: Why = None,
    ) -> Response:
        """Set the knobs that an event of kind `knobs` has changed to what they were before it."""
        view.commands()
        view.refresh()
        found = change_to_undo(view, event)
        desired, changed = view.knobs.copy().desired, found["details"]["changed"]
        since = [name for name, each in changed.items() if name not in desired or desired[name] != each["new"]]
        if since:
            rule = f"event {found['id']} cannot be undone, as its knobs have changed since"
            raise ProblemError(409, f"{rule}: {', '.join(since)[:200]}")
        patch = {name: each["old"] for name, each in changed.items()}
        return await requested(view, patch, [knobs_version(desired)], dry_run, why=why, undoes=found["id"])

    return routes


def change_to_undo(view: RunView, number: int | None) -> Values:
    """Return the event of a change of knobs: that of an id, or the last one that neither undoes another nor was undone,
    in effect or pending."""
    if number is not None:
        found = next((event for event in view.events.changes if event["id"] == number), None)
        if found is None or "undoes" in found["details"]:
            raise ProblemError(404, f"event must be the id of a change of knobs that is no undo and not lost, got {number}")
        return found
    left = view.events.changes_in_effect([pending_change(each) for each in view.knobs.waiting])
    if not left:
        raise ProblemError(409, "there is no change of knobs left to undo")
    return left[-1]


def pending_change(waiting: Values) -> Values:
    """Return a change that is not in effect yet in the form of its event, which has no number yet."""
    return {"id": PENDING, "details": waiting}


async def requested(view: RunView, patch: Values, versions: list[str] | None, dry_run: bool, **note: Any) -> Response:
    """Have the trainer make a change of knobs, and return the answer to the client."""
    link = view.commands()
    check_open(view)
    sent = link.send("change_knobs", changes=patch, versions=versions, dry_run=dry_run, **note)
    reply = await outcome_soon(view, sent)
    in_effect = reply is not None
    reply = reply or await link.accepted(sent)
    knobs = view.knobs.copy()
    if reply is None:
        raise ProblemError(503, NO_ANSWER, {"Retry-After": "1"})
    if "error" in reply:
        if reply["status"] == 412 and "undoes" in note:
            rule = "the knobs have changed while this undo was under way"
            raise ProblemError(409, f"{rule}: see what they are, and ask again")
        headers = {"ETag": etag(knobs.desired)} if reply["status"] == 412 else None
        errors = {"errors": reply["errors"]} if "errors" in reply else {}
        raise ProblemError(reply["status"], reply["error"], headers, **errors)
    if not in_effect:
        why = reason(view, "the change takes effect")
        return tagged(outcome(False, None, reply["changed"], knobs, why), knobs.desired, 202)
    knobs = KnobState(reply.get("desired", knobs.desired), knobs.effective, knobs.effective_since_step)
    unchanged_since = None if dry_run or knobs.desired != knobs.effective else knobs.effective_since_step
    step = reply.get("step", unchanged_since)
    return tagged(outcome(dry_run, step, reply["changed"], knobs), knobs.desired)


def etag(desired: Values) -> str:
    """Return a strong ETag of the desired values; equal values have equal tags."""
    return f'"{knobs_version(desired)}"'


def tagged(answer: Values, desired: Values, status: int = 200) -> Json:
    """Return an answer with the version of the desired knobs that it shows."""
    return Json(answer, status, {"ETag": etag(desired)})


def outcome(dry_run: bool, step: int | None, changed: Values, knobs: KnobState, why: str | None = None) -> Values:
    """Return the answer to a change. `why` it is not in effect yet; None where nothing is pending."""
    return {
        "pending": why is not None,
        "reason": why,
        "dry_run": dry_run,
        "applied_at_step": step,
        "changed": changed,
        "desired": knobs.desired,
        "effective": knobs.effective,
    }


def base_versions(if_match: str) -> list[str] | None:
    """Return the versions of the knobs in If-Match, one of which the trainer must have; None stands for any version."""
    if not if_match:
        raise ProblemError(428, "If-Match must carry the ETag of GET /api/v1/knobs, it is missing")
    if if_match.strip() == "*":
        return None
    if not TAGS.fullmatch(if_match):
        rule = "If-Match must be the ETag of GET /api/v1/knobs, with its quotes, or *"
        raise ProblemError(400, f"{rule}; got {value_in_sentence(if_match)}")
    return re.findall(r'(?:^|,)\s*"([^"]*)"\s*(?=,|$)', if_match)


def check_shape(patch: Values) -> None:
    """Raise a problem unless the members of a patch are numbers, strings, booleans or null."""
    nested = {name[:100]: type(value) for name, value in patch.items() if isinstance(value, (dict, list))}
    if nested:
        shapes = {dict: "an object", list: "an array"}
        rule = "must be a number, a string or null, got"
        errors = [{"knob": name, "detail": f"{rule} {shapes[shape]}"} for name, shape in nested.items()]
        raise ProblemError(422, "; ".join(f"{each['knob']}: {each['detail']}" for each in errors), errors=errors)


def check_names_differ(body: bytes) -> None:
    """Raise a problem where a patch has two members of one name, of which a parser would take the last."""
    times = Counter(name for name, _ in json.loads(body, object_pairs_hook=list))
    twice = sorted(name for name, number in times.items() if number > 1)
    if twice:
        errors = [{"knob": name[:100], "detail": "must be given once, got it twice or more"} for name in twice[:20]]
        raise ProblemError(422, "; ".join(f"{each['knob']}: {each['detail']}" for each in errors), errors=errors)


def knobs_schema(view: RunView) -> Values:
    """Return the JSON schema of the knobs. It lists the policies that the run may switch to and the present one."""
    return schema_of(tuple(policies(view)))


def policies(view: RunView) -> list[str]:
    """Return the policies that the run may switch to, and the present one."""
    live = {choice.name for choice in view.hello.policies if choice.live}
    return sorted(live | {view.knobs.desired["policy"]}) if live else []


def schema_of(policies: tuple[str, ...]) -> Values:
    schema = Knobs.model_json_schema()
    if policies:
        schema["properties"]["policy"]["enum"] = list(policies)
    return schema


@lru_cache(maxsize=8)
def forms(policies: tuple[str, ...]) -> dict[str, Values]:
    """Return the `form` of each knob. It is cached because it takes longer than the rest of a request."""
    return {name: form(rules) for name, rules in schema_of(policies)["properties"].items()}


def patch_schema(view: RunView) -> Values:
    """Return the JSON schema of a merge patch: any of the knobs; null restores the configured value."""
    schema = knobs_schema(view)
    knobs = {
        name: {"anyOf": [{key: value for key, value in rules.items() if key != "default"}, {"type": "null"}]}
        for name, rules in schema["properties"].items()
    }
    return {"type": "object", "properties": knobs, "additionalProperties": False, "examples": [EXAMPLE]}


def knob_list(view: RunView, now: KnobState) -> Values:
    """Return the answer of GET /knobs."""
    desired, effective = now.desired, now.effective
    defaults = view.hello.defaults
    knobs = {}
    for name, about in forms(tuple(policies(view))).items():
        default = defaults[name]
        values = {"desired": desired.get(name, default), "effective": effective.get(name, default), "default": default}
        knobs[name] = {**values, **about}
    pending = is_pending(now)
    why = reason(view, "changes take effect") if pending else None
    return {"knobs": knobs, "pending": pending, "reason": why, "effective_since_step": now.effective_since_step}


def is_pending(now: KnobState) -> bool:
    """Return whether changes of knobs wait for a step boundary."""
    return now.desired != now.effective or bool(now.waiting)


def form(rules: Values) -> Values:
    """Return limits, choices, type, unit and description of one knob from its JSON schema."""
    branches = rules.get("anyOf", [rules])
    choices = [
        value for branch in branches for value in branch.get("enum", [branch["const"]] if "const" in branch else [])
    ]
    numeric: Values = next((branch for branch in branches if branch.get("type") in ("integer", "number")), {})
    return {
        "minimum": numeric.get("minimum", numeric.get("exclusiveMinimum")),
        "maximum": numeric.get("maximum", numeric.get("exclusiveMaximum")),
        "exclusive_minimum": "exclusiveMinimum" in numeric,
        "exclusive_maximum": "exclusiveMaximum" in numeric,
        "choices": choices or None,
        "type": "number_or_choice" if numeric and choices else numeric.get("type", "string"),
        "unit": rules["unit"],
        "why": rules["description"],
    }
