"""Files of a folder which may be somebody else's: reading them waits for no pipe, and takes no endless memory."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 16 * 2**20
"""The largest description that is read."""


def open_regular(path: Path, links: bool = True) -> BinaryIO:
    """Open a regular file for reading, also through a link unless not `links`. Raises OSError for anything else."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "must be a regular file", str(path))
    return os.fdopen(file, "rb")


def read_regular(path: Path) -> bytes:
    """Return what a regular file of at most MOST_BYTES holds. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"must have at most {MOST_BYTES} bytes, it has more", str(path))
    return data


def bounded_lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file, an incomplete last one included, and the bytes that each takes there. One of more than
    MOST_BYTES is no line of a run: it is yielded as the number of its bytes, which is no JSON object."""
    while line := file.readline(MOST_BYTES):
        size = len(line)
        if size < MOST_BYTES or line.endswith(b"\n"):
            yield line, size
            continue
        end = b""
        while not end.endswith(b"\n") and (end := file.readline(MOST_BYTES)):
            size += len(end)
            line = end
        yield b"%d bytes" % size + (b"\n" if line.endswith(b"\n") else b""), size


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says. Raises ValueError, also where values are nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("values must not be nested so deep") from None


def read_json(path: Path) -> Any:
    """Return what a JSON file in UTF-8 says. Raises OSError and ValueError."""
    return parse_json(read_regular(path).decode())
