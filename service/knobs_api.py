"""Routes that show the knobs and change them while the run trains."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query
from starlette.responses import Response

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.service import schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView

MERGE_PATCH = "application/merge-patch+json"
ETAG = {"headers": {"ETag": {"description": "Version of the desired values.", "schema": {"type": "string"}}}}
EXAMPLE = {"alpha": 0.8, "stale_threshold": None}


def router(view: RunView) -> APIRouter:
    """The routes of the knobs."""
    routes = APIRouter(prefix="/api/v1/knobs", tags=["knobs"])
    shown = answers(schemas.KnobList)
    shown["responses"][200] = ETAG

    @routes.get("", **shown, operation_id="get_knobs")
    async def get_knobs() -> Json:
        """Every knob: desired, effective and default value, limits, unit, and what turning it does."""
        return tagged(view, knob_list(view))

    @routes.get("/schema", **answers(None), operation_id="get_knobs_schema")
    async def get_schema() -> Json:
        """The knobs as a JSON schema, for forms."""
        return Json(knobs_schema(view))

    changed = answers(schemas.KnobsChanged, 400, 403, 409, 412, 413, 428)
    changed["responses"][200] = ETAG
    changed["responses"][202] = {"model": schemas.KnobsChanged, "description": "Accepted; not in effect yet", **ETAG}

    shape = {media_type: {"schema": patch_schema(view)} for media_type in (MERGE_PATCH, "application/json")}

    @routes.patch("", **changed, operation_id="change_knobs", openapi_extra={"requestBody": {"content": shape}})
    async def change_knobs(
        patch: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
        if_match: Annotated[str | None, Header(description="ETag of the knobs that were read.")] = None,
        dry_run: Annotated[bool, Query(description="Check only; change nothing.")] = False,
    ) -> Response:
        """Merge patch (RFC 7396): values replace the desired ones; null restores the configured value."""
        link = view.commands()
        before = view.knobs.desired
        check_match(if_match, etag(before))
        changes = merge(before, patch, view)
        requested = {name: {"old": before[name], "new": new} for name, new in changes.items()}
        if dry_run or not changes:
            step = None if dry_run or before != view.knobs.effective else view.knobs.effective_since_step
            desired = {**before, **changes}
            return tagged(view, outcome(view, dry_run, step, requested, desired))
        sent = link.send(
            "change_knobs", changes=changes
        )  # nothing was awaited since the check, so the check still holds
        reply = await link.reply(sent)
        if reply is None:
            return tagged(view, outcome(view, False, None, requested, view.knobs.desired), 202)
        if "error" in reply:
            raise ProblemError(reply["status"], reply["error"])
        return tagged(view, outcome(view, False, reply["step"], reply.get("changed", requested), view.knobs.desired))

    return routes


def etag(desired: Values) -> str:
    """Return a strong ETag of the desired values; equal values have equal tags."""
    text = json.dumps(desired, sort_keys=True, separators=(",", ":"))
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def tagged(view: RunView, answer: Values, status: int = 200) -> Json:
    return Json(answer, status, {"ETag": etag(view.knobs.desired)})


def outcome(view: RunView, dry_run: bool, step: int | None, changed: Values, desired: Values) -> Values:
    return {
        "dry_run": dry_run,
        "applied_at_step": step,
        "changed": changed,
        "desired": desired,
        "effective": view.knobs.effective,
    }


def check_match(if_match: str | None, tag: str) -> None:
    """Raise a problem unless the client has read the current values."""
    if if_match is None:
        raise ProblemError(428, "If-Match must carry the ETag of GET /api/v1/knobs, it is missing")
    if if_match.strip() != "*" and tag not in [part.strip() for part in if_match.split(",")]:
        raise ProblemError(412, "If-Match must carry the current ETag; the knobs have changed since", {"ETag": tag})


def merge(desired: Values, patch: Values, view: RunView) -> Values:
    """Return the knobs that a patch changes, with their new values. Raises a problem that names every wrong knob."""
    defaults = view.hello.defaults
    unknown = [name for name in patch if name not in defaults]
    if unknown:
        rules = [(name[:100], f"unknown knob{did_you_mean(name, defaults)}") for name in unknown]
        raise invalid(rules)
    integers = [name for name, about in forms(tuple(policies(view))).items() if about["type"] == "integer"]
    values = {name: schemas.whole(value) if name in integers else value for name, value in patch.items()}
    values = {name: defaults[name] if value is None else value for name, value in values.items()}
    try:
        merged = Knobs.model_validate(desired).changed(values).model_dump()
    except ConfigError as error:
        raise invalid(re.findall(r"^knobs\.(\w+):? (.*)$", str(error), re.MULTILINE)) from None
    changes = {name: value for name, value in merged.items() if value != desired[name]}
    if "policy" in changes:
        check_policy(changes["policy"], view)
    return changes


def invalid(rules: list[tuple[str, str]]) -> ProblemError:
    """Make one problem of all broken rules. The rules of one knob (a number, or a word) are joined."""
    by_knob: dict[str, list[str]] = {}
    for name, rule in rules:
        by_knob.setdefault(name, []).append(rule)
    errors = [{"knob": name, "detail": " or ".join(texts)} for name, texts in by_knob.items()]
    return ProblemError(422, "; ".join(f"{each['knob']}: {each['detail']}" for each in errors), errors=errors)


def check_policy(name: str, view: RunView) -> None:
    """Raise a problem unless the run has this policy and may switch to it."""
    for choice in view.hello.policies:
        if choice.name == name:
            if not choice.live:
                raise ProblemError(409, f"policy cannot become {name} while a run is under way: {choice.reason}")
            return
    known = ", ".join(choice.name for choice in view.hello.policies)
    raise invalid([("policy", f"must be one of {known}, got {name[:100]!r}")])


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


def knob_list(view: RunView) -> Values:
    """Answer of GET /knobs."""
    desired, effective = view.knobs.desired, view.knobs.effective
    defaults = view.hello.defaults
    knobs = {}
    for name, about in forms(tuple(policies(view))).items():
        default = defaults[name]
        values = {"desired": desired.get(name, default), "effective": effective.get(name, default), "default": default}
        knobs[name] = {**values, **about}
    step = view.knobs.effective_since_step
    return {"knobs": knobs, "pending": desired != effective, "effective_since_step": step}


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
