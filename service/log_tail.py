"""The last lines of a run's logs, in bounded memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from adaptive_rec.service.hello import Values

LOGS = ("log.txt", "sidecar.log")
MOST_BYTES = 1 << 16


def log_tail(run: Path, name: str, since: int | None) -> Values:
    """Return the lines of a log after the place `since`, or its last ones; at most MOST_BYTES, the newest of them.

    Only finished lines are returned, unless one is longer than that. A file that is shorter than `since` was begun anew. Links
    and what is no plain file count as not there.
    """
    nothing = {"name": name, "exists": False, "size_bytes": 0, "start": 0, "end": 0, "lines": []}
    try:
        fd = os.open(run / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return nothing
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return nothing
        size = about.st_size
        begin = since if since is not None and since <= size else 0
        start = max(begin, size - MOST_BYTES)
        file.seek(start)
        content = file.read(MOST_BYTES)
    if start > begin:  # the first line may have begun earlier
        cut = content.find(b"\n") + 1
        start, content = start + cut, content[cut:]
    whole = content.rfind(b"\n") + 1
    if len(content) < MOST_BYTES or whole:
        content = content[:whole]
    lines = content.decode("utf-8", "replace").split("\n")
    return {
        "name": name,
        "exists": True,
        "size_bytes": size,
        "start": start,
        "end": start + len(content),
        "lines": lines[:-1] if content.endswith(b"\n") else [line for line in lines if line],
    }
