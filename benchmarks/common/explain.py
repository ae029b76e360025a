"""An error as text for a result."""

from __future__ import annotations

import traceback


def explain(error: BaseException) -> str:
    """The error in a line, then where it came from."""
    return f"{type(error).__name__}: {error}".strip() + "\n" + "".join(traceback.format_exception(error))[-3000:]
