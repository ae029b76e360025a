"""Files that are read and written past the system's cache (O_DIRECT): memory, places in the file and sizes are then multiples of
a disk's block."""

from __future__ import annotations

import errno
import fcntl
import os


def pass_cache_by(descriptor: int) -> None:
    """Have a file read and written past the system's cache, if its file system can do that. Raises OSError."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def passes_cache_by(descriptor: int) -> bool:
    """Return whether a file is read and written past the system's cache."""
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
