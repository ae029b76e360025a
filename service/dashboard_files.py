"""The dashboard's files, read once at the start and served from memory by their known names."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from fastapi import APIRouter, Header
from starlette.responses import Response

from adaptive_rec.config.figures import labels
from adaptive_rec.service.problems import ProblemError

FOLDER = Path(__file__).parent / "dashboard"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
"""Files of other kinds are not served."""
ALWAYS_ASK, NEVER_ASK = "no-cache", "private, max-age=31536000, immutable"


class Asset:
    """A file's content and its ETag."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.media_type = MEDIA_TYPES[Path(name).suffix]
        self.etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    def response(self, if_none_match: str | None, caching: str = ALWAYS_ASK) -> Response:
        headers = {"ETag": self.etag, "Cache-Control": caching}
        if matches(if_none_match or "", self.etag):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def matches(if_none_match: str, etag: str) -> bool:
    """Return whether the header names an ETag: alone, in a list, or as a weak one (RFC 9110, 13.1.2); `*` names all."""
    return if_none_match.strip() == "*" or etag in _ETAG.findall(if_none_match)


_ETAG = re.compile(r'(?:W/)?("[^"]*")')


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files that are served, by name."""
    files = sorted(folder.rglob("*")) if folder.is_dir() else []
    served = [path for path in files if path.is_file() and path.suffix in MEDIA_TYPES]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in served}


def router(folder: Path = FOLDER) -> APIRouter:
    """`/`, `/assets/NAME` and `/assets/VERSION/NAME`. Only files found at the start are served.

    The page loads its files from under their version, a digest of all of them. These a browser keeps without asking again: a page
    opened once more takes one request, also where the sidecar has little processor time.
    """
    files = {**contents(folder), "figures.js": f"export const DISK = {json.dumps(labels('disk'))};\n".encode()}
    version = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    assets = {name: Asset(name, content) for name, content in files.items()}
    if "index.html" in files:
        page = files["index.html"].replace(b'"/assets/', f'"/assets/{version}/'.encode())
        assets["index.html"] = Asset("index.html", page)
    routes = APIRouter(include_in_schema=False)

    def find(name: str, if_none_match: str | None) -> Response:
        plain = name.removeprefix(f"{version}/")
        if plain not in assets:
            raise ProblemError(404, "no such file")
        return assets[plain].response(if_none_match, ALWAYS_ASK if plain == name else NEVER_ASK)

    @routes.get("/")
    async def index(if_none_match: str | None = Header(None)) -> Response:
        return find("index.html", if_none_match)

    @routes.get("/assets/{name:path}")
    async def asset(name: str, if_none_match: str | None = Header(None)) -> Response:
        return find(name, if_none_match)

    return routes
