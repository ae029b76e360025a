"""The dashboard's files, read once at the start and served from memory by their known names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Header
from starlette.responses import Response

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


class Asset:
    """A file's content and its ETag."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.media_type = MEDIA_TYPES[path.suffix]
        self.etag = f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def response(self, if_none_match: str | None) -> Response:
        headers = {"ETag": self.etag, "Cache-Control": "no-cache"}
        if if_none_match == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def router(folder: Path = FOLDER) -> APIRouter:
    """`/` and `/assets/NAME`. Only files found at the start are served."""
    files = sorted(folder.rglob("*")) if folder.is_dir() else []
    assets = {
        path.relative_to(folder).as_posix(): Asset(path)
        for path in files
        if path.is_file() and path.suffix in MEDIA_TYPES
    }
    routes = APIRouter(include_in_schema=False)

    def find(name: str, if_none_match: str | None) -> Response:
        if name not in assets:
            raise ProblemError(404, "no such file")
        return assets[name].response(if_none_match)

    @routes.get("/")
    async def index(if_none_match: str | None = Header(None)) -> Response:
        return find("index.html", if_none_match)

    @routes.get("/assets/{name:path}")
    async def asset(name: str, if_none_match: str | None = Header(None)) -> Response:
        return find(name, if_none_match)

    return routes
