"""The application: all routes of one run, behind one gate."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI

from adaptive_rec.service import (
    checkpoints_api,
    control_api,
    dashboard_files,
    details_api,
    event_stream,
    knobs_api,
    metrics,
    placement_api,
    problems,
    run_api,
    runs_api,
    sign_in,
)
from adaptive_rec.service.documented import Problem, answers
from adaptive_rec.service.gate import RequestGate
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.security import Security


def create_app(view: RunView, security: Security) -> FastAPI:
    """Build the application on a run. Raises ValueError if tokens or allowed hosts are not valid."""
    app = FastAPI(
        title="adaptive-rec",
        version="1",
        summary="See and steer a training run.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    routers = (
        control_api.public_router(view),
        run_api.router(view),
        runs_api.router(view),
        details_api.router(view),
        event_stream.router(view, security.limits),
        placement_api.router(view),
        knobs_api.router(view),
        checkpoints_api.router(view),
        control_api.control_router(view),
        metrics.router(view),
        sign_in.router,
        dashboard_files.router(),
    )
    for router in routers:
        app.include_router(router, responses=answers(None)["responses"], dependencies=[Depends(problems.check_query)])
    app.state.routes = [route for router in routers for route in router.routes]
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.add_middleware(RequestGate, security=security)
    app.middleware_stack = app.build_middleware_stack()  # now, so that wrong tokens and hosts are errors at the start
    return app


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description: FastAPI's own, the form of problems, and how to sign in."""
    if app.openapi_schema is None:
        found = FastAPI.openapi(app)
        parts = found.setdefault("components", {})
        parts["schemas"]["Problem"] = Problem.model_json_schema()
        for gone in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(gone, None)
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        for path in ("/livez", "/readyz", "/version"):
            found["paths"][path]["get"]["security"] = []
    assert app.openapi_schema is not None
    return app.openapi_schema
