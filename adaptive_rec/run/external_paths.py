"""Signed list of the paths outside a run's directory that its user has named: ``.made-here``.

`run.disk` and the options of the service are in a run's directory, so that it can be resumed. A directory may be somebody else's,
or a copy, and then nobody has agreed that rows are written and removed in the folder that it names, or that others may connect.
So these settings are signed for the place of the directory, with a key of the user (`system/own_key.py`).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.config.trust import ENVIRONMENT_PREFIX
from adaptive_rec.errors import UsageError
from adaptive_rec.run.new_directory import replace_text
from adaptive_rec.system.own_key import is_signed, signature_of
from adaptive_rec.system.regular_files import read_json

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config

NAME = ".made-here"
DISK = "run.disk"


@dataclass(frozen=True)
class SignedSettings:
    """What this user has agreed to for a run's directory."""

    rows: frozenset[Path] = frozenset()
    """Folders outside of it, resolved, in which the run has rows."""
    serve: Mapping[str, Any] = field(default_factory=dict)
    """Options of the service, as ``serve.json`` has them."""


def signed_settings(run: Path) -> SignedSettings:
    """Return what this user has signed for a run's directory at this place: nothing where somebody else has written it."""
    try:
        found = read_json(run / NAME)
        values = _values(run, found["rows"], found["serve"])
        if is_signed(values, found["signature"]):
            return SignedSettings(frozenset(map(Path, found["rows"])), found["serve"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return SignedSettings()


def sign(run: Path, rows: Iterable[Path] = (), serve: Mapping[str, Any] | None = None) -> None:
    """Add folders of rows to what is signed, and replace the options of the service where some are given. Where this user can
    have no key, nothing is written, and the settings have to be given again."""
    before = signed_settings(run)
    folders = sorted(str(path) for path in {*before.rows, *rows})
    values = _values(run, folders, dict(before.serve if serve is None else serve))
    if (folders or values["serve"]) and (signature := signature_of(values)) is not None:
        with suppress(OSError):
            replace_text(run / NAME, json.dumps({**values, "signature": signature}, indent=1) + "\n")


def _values(run: Path, rows: Sequence[str], serve: Mapping[str, Any]) -> dict[str, Any]:
    return {"directory": str(run.resolve()), "rows": list(rows), "serve": dict(serve)}


def outside(run: Path, config: Config) -> list[Path]:
    """Return the folder of a run's rows where it lies outside of the run's directory, resolved."""
    folder = Path(config.run.disk).resolve() if config.run.disk else run.resolve()
    return [] if folder.is_relative_to(run.resolve()) else [folder]


def own_folders(run: Path, config: Config, named: Iterable[Path]) -> set[Path]:
    """Return those of the folders that a run's files name in which it may remove rows: in its directory, signed for it, or that
    of its configuration, which was checked."""
    own = {*signed_settings(run).rows, *outside(run, config)}
    return {path for path in named if path in own or path.is_relative_to(run.resolve())}


def with_absolute_rows(config: Config) -> Config:
    """Return a configuration as a run's directory keeps it: `run.disk` is absolute, as a run may be resumed from another working
    directory."""
    disk = os.path.abspath(config.run.disk) if config.run.disk else ""
    return config.model_copy(update={"run": config.run.model_copy(update={"disk": disk})})


def check_rows_are_inside(
    run: Path, new: Path | None, config: Config, settings: Iterable[str], environment: Mapping[str, str]
) -> None:
    """Raise UsageError where the configuration of a run that is resumed, or repeated in a `new` directory, has its rows outside
    of its directory, and neither was this signed nor do these settings, KEY=VALUE, or the environment name the folder."""
    if _is_given(settings, environment):
        return
    signed = signed_settings(run).rows
    for folder in outside(new or run, config):
        if new is not None or folder not in signed:
            rule = f"{DISK} in {run / 'config.toml'} must lie in the run's directory, or be given by you"
            what = "rows are written and removed there, and you have not given it for this directory yet"
            if signed and not os.path.isabs(config.run.disk):
                folder, what = min(signed), f"it was {min(signed)} from the working directory in which you gave it"
            words = f"if it is right, add --set {DISK}={shlex.quote(str(folder))}"
            if new is not None:
                words = f"give {new} a folder of its own: --set {DISK}=DIR"
            raise UsageError(f"{rule}, got {config.run.disk}: {what}; {words}")


def check_named_file(
    named: str | None, config: Config, settings: Iterable[str], environment: Mapping[str, str]
) -> None:
    """Raise UsageError where a file that was named as CONFIG is that of another run, whose rows lie outside of its directory, and
    neither these settings nor the environment name a folder."""
    from adaptive_rec.config.tree import DESCRIPTION  # loads pydantic, which help does without

    run = None if named is None else Path(named).parent
    if run is None or not (run / DESCRIPTION).exists() or _is_given(settings, environment):
        return
    if outside(run, config):
        rule = f"{DISK} must be given by you where CONFIG is the file of another run, whose rows lie there"
        raise UsageError(f"{rule}, got {config.run.disk} in {named}; add --set {DISK}=DIR, or --set {DISK}= for none")


def _is_given(settings: Iterable[str], environment: Mapping[str, str]) -> bool:
    given = any(each.partition("=")[0].strip() == DISK for each in settings)
    return given or f"{ENVIRONMENT_PREFIX}RUN__DISK" in environment
