"""A key of this user, by which files are known again that this user's processes have written: nobody else can sign for them."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.system.drafts import write_first

KEY_BYTES = 32


def signature_of(values: Mapping[str, Any]) -> str | None:
    """Return the signature of values that JSON can hold; None where this user can have no key."""
    key = _key()
    text = json.dumps(values, sort_keys=True, ensure_ascii=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() if key else None


def is_signed(values: Mapping[str, Any], signature: object) -> bool:
    """Return whether a signature is that of these values by this user."""
    own = signature_of(values) if isinstance(signature, str) and signature.isascii() else None
    return own is not None and hmac.compare_digest(own, str(signature))


def _key() -> bytes | None:
    """Return the key, which is made where there is none; None where it cannot be, or others can read it."""
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        path = Path(home) / "adaptive-rec" / "key"
        return _read(path) if path.exists() else _made(path)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return None


def _made(path: Path) -> bytes | None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_first(path, secrets.token_bytes(KEY_BYTES))
    return _read(path)


def _read(path: Path) -> bytes | None:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        key = file.read(KEY_BYTES) if own else b""
    return key if len(key) == KEY_BYTES else None
