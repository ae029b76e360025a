"""Signing in from a browser: a page that asks for a code or the token, and a cookie in exchange for it.

The cookie's value is derived from the token, so nothing is stored and a restarted sidecar still accepts it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from fastapi import APIRouter, Request, Response

from adaptive_rec.live.sign_in_code import VALID_SECONDS, made_at

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
        now = time.time()
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
    summary="Swap a code or a token for a cookie",
    response_class=Response,
    response_description="The cookie is set.",
)
async def create_session(request: Request) -> Response:
    """Send the token as `Authorization: Bearer`, or a sign-in code as `Authorization: Code`. The cookie set has the token's scope
    and lasts until the browser closes. A code works once, for ten minutes."""
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
