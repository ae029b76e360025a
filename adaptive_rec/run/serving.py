"""The options of the service in a run's directory (``serve.json``), so that a resumed run is found where it was.

The file has what the user gave: address, port, host names, and the path of the token file. It has no token. What opens the
service to others is taken from it only where this user gave it for this very directory (`made_here.py`).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.errors import UsageError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.run.external_paths import sign, signed_settings
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
    if opening := _opening(values):
        sign(run, serve=opening)


def agreed_options(run: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a run's service was started with, and those that are given now instead. Raises UsageError where the
    file is damaged, or opens the service to others and this user has not given that for this directory."""
    kept, agreed = kept_options(run), signed_settings(run).serve
    for name, value in _opening({name: _kept(value) for name, value in kept.items() if name not in given}).items():
        if agreed.get(name) != value:
            option = "--allow-host" if name == "allow_hosts" else f"--{name.replace('_', '-')}"
            words = " ".join(f"{option}={shlex.quote(each)}" for each in (value if isinstance(value, list) else [value]))
            rule = "must not open the service to others unless you have given that for this directory"
            raise UsageError(f"{run / NAME} {rule}, got {name}={value}; if it is right, add {words}")
    return {**kept, **given}


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


def _opening(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the kept options by which others than this user may connect, or a file elsewhere is written."""
    return {name: value for name, value in values.items() if name != "port" and not (name == "host" and _is_loopback(value))}


def _is_loopback(host: str) -> bool:
    return ServeOptions(host, allow_hosts=("any",)).is_loopback


def _kept(value: Any) -> Any:
    """Return a value as JSON has it: a path is absolute, as a run may be resumed from another directory."""
    if isinstance(value, tuple):
        return list(value)
    return os.path.abspath(value) if isinstance(value, Path) else value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


_FITS = {
    "host": _is_text,
    "port": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "allow_hosts": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "token_file": _is_text,
}
