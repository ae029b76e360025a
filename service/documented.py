"""Describes the answers of routes for OpenAPI; every error is a problem (RFC 9457)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

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


def answers(model: type[BaseModel] | None, *errors: int, status: int = 200) -> dict[str, Any]:
    """Return keyword arguments of a route that describe its answer and its errors."""
    found: dict[int | str, dict[str, Any]] = {error: describe_problem(TITLES[error]) for error in {401, 422, *errors}}
    found["default"] = describe_problem("Any other error")
    return {"response_model": model, "status_code": status, "responses": found}


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
