"""The options of the service in a run's directory (``serve.json``), so that a resumed run is found where it was.

The file has what the user gave: address, port, host names, and the path of the token file. It has no token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.errors import UsageError
from adaptive_rec.run.new_directory import replace_text
from adaptive_rec.system.regular_files import read_json

NAME = "serve.json"


def keep_options(run: Path, given: Mapping[str, Any]) -> None:
    """Write the given options of the service (fields of ServeOptions) into a run's directory. Without any, nothing is written."""
    if not given:
        return
    values = {name: _kept(value) for name, value in given.items()}
    try:
        replace_text(run / NAME, json.dumps(values, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"--out {run} cannot be written: {error.strerror}") from None


def kept_options(run: Path) -> dict[str, Any]:
    """Return the options that a run's service was started with; none where the run keeps none. Raises UsageError where the file
    is damaged."""
    path = run / NAME
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} must be options of the service as JSON: {error}; remove it or mend it") from None
    for name, value in found.items() if isinstance(found, dict) else [("content", found)]:
        if name not in _FITS or not _FITS[name](value):
            rule = "must have host, port, allow_hosts and token_file only"
            raise UsageError(f"{path} {rule}, got {name}={str(value)[:100]!r}; remove it or mend it")
    if "token_file" in found:
        found["token_file"] = Path(found["token_file"])
    if "allow_hosts" in found:
        found["allow_hosts"] = tuple(found["allow_hosts"])
    return dict(found)


def _kept(value: Any) -> Any:
    """Return a value as JSON has it: a path is absolute, as a run may be resumed from another directory."""
    return os.path.abspath(value) if isinstance(value, Path) else value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


_FITS = {
    "host": _is_text,
    "port": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "allow_hosts": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "token_file": _is_text,
}
