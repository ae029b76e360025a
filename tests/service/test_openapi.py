"""The API's description: the committed file, and what it says of every route."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptive_rec.service.openapi import openapi_text

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_committed_file_is_up_to_date() -> None:
    """Otherwise: python -m adaptive_rec.service.openapi > docs/openapi.json, and look at the difference."""
    assert FILE.read_text(encoding="utf-8") == openapi_text()


def operations(client: Any) -> dict[str, Any]:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    return {f"{method.upper()} {path}": about for path, methods in paths.items() for method, about in methods.items()}


def test_every_operation_has_a_name_of_its_own_and_says_what_may_go_wrong(client: Any) -> None:
    found = operations(client)
    names = [about["operationId"] for about in found.values()]
    assert len(set(names)) == len(names) == 31
    for about in found.values():
        assert about["tags"]
        assert about["summary"]
        errors = {code: each for code, each in about["responses"].items() if not code.startswith("2")}
        if about["tags"] != ["session"]:
            assert {"401", "422", "default"} <= set(errors)
            assert all(set(each["content"]) == {"application/problem+json"} for each in errors.values())


def test_no_parameter_is_a_path_a_command_or_an_address(client: Any) -> None:
    for about in operations(client).values():
        for parameter in about.get("parameters", []):
            assert parameter["name"] not in {"path", "file", "url", "command_line", "code", "host"}


def test_only_health_needs_no_token(client: Any) -> None:
    public = {name for name, about in operations(client).items() if about.get("security") == []}
    assert public == {"GET /livez", "GET /readyz", "GET /version"}
