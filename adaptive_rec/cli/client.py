"""A client of the HTTP service of a run: over its Unix socket, or by address and token."""

from __future__ import annotations

import json
import os
import socket as sockets
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.live.runtime_file import RuntimeFile, find_run
from adaptive_rec.system.regular_files import parse_json
from adaptive_rec.system.version import __version__

TOKEN_VARIABLE = "ADAPTIVE_REC_TOKEN"
TIMEOUT_SECONDS = 10.0
API = "/api/v1"


class ApiError(AdaptiveRecError):
    """The service refused a request. `problem` is the body of its answer (RFC 9457)."""

    def __init__(self, message: str, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        if status == 422:  # a wrong value counts as one on the command line
            self.exit_code = UsageError.exit_code


class UnreachableError(AdaptiveRecError):
    """The service gave no answer."""


@dataclass(frozen=True)
class Reply:
    """A successful answer: its status, JSON body and ETag."""

    status: int
    body: dict[str, Any]
    etag: str | None


class UnixConnection(HTTPConnection):
    """A connection to the service that listens on a Unix socket."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Requests to one service, a connection each. Use as a context. Uses no proxy and follows no redirect, which would get the
    token."""

    def __init__(self, url: str, token: str | None, socket: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Prepare requests to `url`, through the Unix socket where one is given."""
        self.url = url
        self._socket, self._timeout_seconds = socket, timeout_seconds
        self._path = ("" if socket else urlsplit(url).path) + API
        agent = f"adaptive-rec/{__version__}"
        self._headers = {"Accept": "application/json", "User-Agent": agent, "Connection": "close"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open between requests."""

    def get(self, path: str, **query: Any) -> Reply:
        """Send GET; parameters that are None are left out."""
        return self._send("GET", path, {key: value for key, value in query.items() if value is not None})

    def post(self, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Reply:
        return self._send("POST", path, query, body, {"Content-Type": "application/json"})

    def patch(self, path: str, body: Mapping[str, Any], if_match: str, **query: Any) -> Reply:
        """Send a merge patch that applies only to the state with this ETag."""
        headers = {"Content-Type": "application/merge-patch+json", "If-Match": if_match}
        return self._send("PATCH", path, query, body, headers)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        sent = None if body is None else json.dumps(body, allow_nan=False).encode()
        target = f"{self._path}{path}" + (f"?{urlencode(query, errors='replace')}" if query else "")
        response, text = self._answer(method, target, sent, {**self._headers, **((headers or {}) if sent else {})})
        found = _object(text)
        if not 200 <= response.status < 300:
            raise self._refusal(response, found or {})
        if found is None:
            raise UnreachableError(f"{self.url} is no adaptive-rec service: its answer to {API}{path} is no JSON object")
        return Reply(response.status, found, response.getheader("ETag"))

    def _answer(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[HTTPResponse, bytes]:
        """Send a request on a connection of its own; return the answer and its body. Raises UnreachableError."""
        connection = self._connection()
        try:
            try:
                connection.connect()
            except TimeoutError:
                raise
            except OSError as error:
                why = str(error) or type(error).__name__
                raise UnreachableError(f"{self.url} cannot be reached: {why}", faq="unreachable") from None
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response, response.read()
        except TimeoutError:
            raise UnreachableError(f"{self.url} gave no answer within {self._timeout_seconds:.0f} s", faq="unreachable") from None
        except (HTTPException, OSError) as error:
            why = str(error) or type(error).__name__
            raise UnreachableError(f"{self.url} broke the connection off, the run may be ending: {why}") from None
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        if self._socket:
            return UnixConnection(self._socket, self._timeout_seconds)
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self._timeout_seconds)

    def _refusal(self, response: HTTPResponse, problem: Mapping[str, Any]) -> ApiError:
        status = response.status
        text = str(problem.get("detail") or problem.get("title") or f"{self.url} answered {status}")
        if status // 100 == 3 and response.getheader("Location"):
            text = f"{self.url} answered {status}, a redirect, which is not followed; give --url its target"
        faults = [fault for fault in problem.get("errors") or [] if isinstance(fault, dict)]
        lines = [f"{fault.get('knob') or fault.get('name') or ''}: {fault.get('detail')}" for fault in faults]
        text = "\n".join([text, *(f"  {line}" for line in lines if line.partition(": ")[2] not in text)])
        if status == 401:
            text += f"\n{TOKEN_VARIABLE} must hold the token of this run (adaptive-rec dashboard --header prints it)"
        return ApiError(text, status, problem)


def connect(run: str | None, url: str | None) -> Client:
    """Return a client of the run given by --url or --run, else of the only run under way."""
    if url is None:
        return client_of_run(find_run(run))
    if run is not None:
        raise UsageError("--run and --url both name a run; give one of them")
    checked = _checked(url)
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise UsageError(f"--url needs the token in the environment: {TOKEN_VARIABLE} is not set", faq="token")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{TOKEN_VARIABLE} must hold a token and nothing else: it has blanks or non-ASCII characters")
    return Client(checked, token)


def client_of_run(file: RuntimeFile, timeout_seconds: float = TIMEOUT_SECONDS) -> Client:
    """Return a client of a run under way, over its Unix socket where that exists."""
    socket = file.socket if file.socket and Path(file.socket).is_socket() else None
    return Client(file.url, file.control_token, socket, timeout_seconds)


def _checked(url: str) -> str:
    """Return a service's address without a slash at its end. Raises UsageError, whose text never quotes a possible token."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError("--url must be like http://127.0.0.1:8470")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"--url takes no token, user, query or fragment: the token belongs in {TOKEN_VARIABLE}")
    return url.rstrip("/")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
