"""Signing in from a browser: a page that requests the token, and a cookie in exchange for it.

The cookie's value is derived from the token, so nothing is stored and a restarted sidecar still accepts it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from fastapi import APIRouter, Request, Response

SESSION_PATH = "/api/v1/session"

router = APIRouter(prefix="/api/v1", tags=["session"])
"""Routes with their full prefix. The gate checks the token before they run."""


def cookie_name(port: int) -> str:
    """Return the cookie's name. It holds the port because browsers send cookies to every port of a host."""
    return f"adaptive_rec_{port}"


def cookie_value(token: str) -> str:
    return hmac.new(token.encode(), b"adaptive-rec session", hashlib.sha256).hexdigest()


def cookies_named(name: str, headers: Iterable[bytes]) -> list[bytes]:
    """Return every value of a cookie. There may be several, because pages on other ports can set the same name."""
    pairs = (pair.strip().partition(b"=") for header in headers for pair in header.split(b";"))
    return [value for key, _, value in pairs if key == name.encode()]


@router.post(
    "/session",
    status_code=204,
    operation_id="create_session",
    summary="Swap the token for a cookie",
    response_class=Response,
    response_description="The cookie is set.",
)
async def create_session(request: Request) -> Response:
    """Send the token as `Authorization: Bearer`; the cookie set has the token's scope and lasts until the browser closes."""
    name, value = request.state.session_cookie
    answer = Response(status_code=204)
    answer.set_cookie(name, value, path="/", httponly=True, samesite="strict")
    return answer


@router.delete(
    "/session",
    status_code=204,
    operation_id="delete_session",
    summary="Forget the cookie",
    response_class=Response,
    response_description="The browser forgets the cookie.",
)
async def delete_session(request: Request) -> Response:
    """Sign this browser out. The token itself stays valid for as long as the run lasts."""
    name, _ = request.state.session_cookie
    answer = Response(status_code=204)
    answer.delete_cookie(name, path="/", httponly=True, samesite="strict")
    return answer


def content_hash(page: str, element: str) -> str:
    """Return the CSP source that allows the page's only inline element with this name."""
    found: list[str] = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"the sign-in page must hold one <{element}> without attributes, not {len(found)}")
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()}'"


PAGE = Path(__file__).with_name("signin.html").read_text(encoding="utf-8")
PAGE_POLICY = (
    f"default-src 'none'; script-src {content_hash(PAGE, 'script')}; style-src {content_hash(PAGE, 'style')}; "
    "img-src data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
