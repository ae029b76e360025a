"""Signing in from a browser: a page that asks for a code or the token, and a session's cookie in exchange for it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from fastapi import APIRouter, Request, Response

from adaptive_rec.live.sign_in_code import VALID_SECONDS, code_clock, made_at

SESSION_PATH = "/api/v1/session"

router = APIRouter(prefix="/api/v1", tags=["session"])
"""Routes with their full prefix. The gate checks the token before they run."""


class SignInCodes:
    """Accepts each sign-in code once, while it is valid."""

    def __init__(self, tokens: Mapping[str, str], since: float) -> None:
        self._tokens, self._since = tokens, since
        self._used: dict[bytes, float] = {}

    def redeem(self, code: bytes) -> str | None:
        """Return the scope of the token that the code was made with, or None if the code is wrong, used or too old."""
        now = code_clock()
        self._used = {used: made for used, made in self._used.items() if now - made <= VALID_SECONDS}
        for scope, token in self._tokens.items():
            made = made_at(token, code)
            if made is not None and code not in self._used and made >= self._since and abs(now - made) <= VALID_SECONDS:
                self._used[code] = made
                return scope
        return None


def cookie_name(port: int) -> str:
    """Return the cookie's name. It holds the port because browsers send cookies to every port of a host."""
    return f"adaptive_rec_{port}"


def cookies_named(name: str, headers: Iterable[bytes]) -> list[bytes]:
    """Return every value of a cookie. There may be several, because pages on other ports can set the same name."""
    pairs = (pair.strip().partition(b"=") for header in headers for pair in header.split(b";"))
    return [value for key, _, value in pairs if key == name.encode()]


@router.post(
    "/session",
    status_code=204,
    operation_id="create_session",
    summary="Swap a code or a token for a cookie",
    response_class=Response,
    response_description="The cookie is set.",
)
async def create_session(request: Request) -> Response:
    """Send the token as `Authorization: Bearer`, or a sign-in code as `Authorization: Code`. The cookie set has the token's
    scope, replaces the one that came with the request, and lasts until the browser closes or signs out. A code works once, for
    ten minutes."""
    state, answer = request.state, Response(status_code=204)
    state.sessions.end(state.session_cookies)
    answer.set_cookie(state.cookie_name, state.sessions.begin(state.scope), path="/", httponly=True, samesite="strict")
    return answer


@router.delete(
    "/session",
    status_code=204,
    operation_id="delete_session",
    summary="End the session",
    response_class=Response,
    response_description="The session has ended, and the browser forgets the cookie.",
)
async def delete_session(request: Request) -> Response:
    """Sign this browser out: its cookie is not accepted any more, and its streams end. The token itself stays valid for as long
    as the run lasts."""
    state, answer = request.state, Response(status_code=204)
    state.sessions.end(state.session_cookies)
    answer.delete_cookie(state.cookie_name, path="/", httponly=True, samesite="strict")
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
