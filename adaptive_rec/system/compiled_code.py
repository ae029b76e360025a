"""Where torch keeps the code that it compiles."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_to_ourselves(environment: MutableMapping[str, str]) -> None:
    """Let torch keep compiled code in a folder of the user alone, where one can be made and none is named. By default it is
    executed from the folder for temporary files, where other users can be first. Call it before torch._dynamo is imported."""
    if VARIABLE in environment:
        return
    try:
        folder = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adaptive-rec" / "torch"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return
    environment[VARIABLE] = str(folder)
