"""Describes the answers of routes for OpenAPI, and what all their models share; every error is a problem (RFC 9457)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from adaptive_rec.config.figures import Part, of_part

EXAMPLE: dict[str, Any] = {
    "type": "about:blank",
    "title": "Not Found",
    "status": 404,
    "detail": "id must be below 1460, got 1460",
}
PROBLEM = {"$ref": "#/components/schemas/Problem"}
TITLES = {
    400: "The body is not JSON",
    401: "No valid token",
    403: "The token may only read",
    404: "Not found",
    409: "The run cannot do this",
    412: "The knobs have changed meanwhile: read them again",
    413: "The body is too large",
    422: "A value breaks a rule",
    428: "If-Match is missing",
    500: "The run failed at it",
    503: "Busy: try again later",
    507: "The disk is full",
}


def answers(model: type[BaseModel] | None, *errors: int) -> dict[str, Any]:
    """Return keyword arguments of a route that describe its answer and its errors."""
    found: dict[int | str, dict[str, Any]] = {error: describe_problem(TITLES[error]) for error in {401, 422, *errors}}
    found["default"] = describe_problem("Any other error")
    return {"response_model": model, "status_code": 200, "responses": found}


def describe_problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/problem+json": {"schema": PROBLEM}}}


class Problem(BaseModel):
    """An error, in the format of RFC 9457."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [EXAMPLE]},
    )
    type: str
    title: str
    status: int
    detail: str


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


def example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


def figures_model(name: str, part: Part, doc: str) -> type[Answer]:
    """Return the model of the figures of a part of a snapshot (`config/figures.py`)."""
    fields: dict[str, Any] = {
        each.field: (
            (float | None, Field(None, description=each.about))
            if each.is_new
            else (int if each.is_whole else float, Field(description=each.about) if each.about else ...)
        )
        for each in of_part(part)
        if each.is_in_api
    }
    return create_model(name, __base__=Answer, __doc__=doc, **fields)
