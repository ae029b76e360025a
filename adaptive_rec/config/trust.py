"""Which classes may be imported by the name that a setting gives, and how they are found.

A configuration, a checkpoint or a journal may be somebody else's, and to import a module is to execute it. So the command line
imports a class by ``package.module:Class`` only where its user has named it, too.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from adaptive_rec.errors import ConfigError, UsageError, did_you_mean

ENVIRONMENT_PREFIX = "ADAPTIVE_REC_"
"""What the names of environment variables begin with that set keys of the configuration."""

OPTION = "--trust-plugins"
"""Trusts all classes; with ``=NAME,...`` only those."""


class PluginTrust:
    """The classes that this process may import by name. In a program that uses the library these are all."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._trusts_all = True
        self._in_folder = False
        """Whether a module may lie in the working directory, which is not on the module path."""

    @contextmanager
    def only(self, words: Iterable[str]) -> Iterator[None]:
        """In the body of a ``with``, allow only the classes that these words of a command line name; all after `OPTION`."""
        before, given = (self._names, self._trusts_all, self._in_folder), list(words)
        self._names = frozenset(part for word in given for part in re.split(r"""[\s=,\[\]"']+""", word) if ":" in part)
        self._trusts_all, self._in_folder = OPTION in given, True
        try:
            yield
        finally:
            self._names, self._trusts_all, self._in_folder = before

    def words(self) -> list[str]:
        """Return words of a command line that allow the same in another process."""
        return [OPTION] if self._trusts_all else [f"{OPTION}={name}" for name in sorted(self._names) if is_class(name)]

    def check(self, key: str, name: str) -> None:
        """Raise ConfigError where a setting names a class that may not be imported."""
        if ":" in name and not self._trusts_all and name not in self._names:
            rule = "must be a built-in name, an installed entry point, or a class that the command line names"
            # A name of another form might end as a command where it is copied into a shell.
            way_out = f"; if you trust the module {name.partition(':')[0]}, add {OPTION}={name}" * is_class(name)
            raise ConfigError(f"{key} {rule}, got {name!r}{way_out}", faq="own-class")

    def load(self, place: str) -> Any:
        """Import ``package.module:Class``. A module that is not installed is looked for in the working directory, the last place,
        so that it shadows nothing."""
        module, _, attribute = place.partition(":")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not self._in_folder or error.name != module.partition(".")[0] or os.getcwd() in sys.path:
                raise
            sys.path.append(os.getcwd())
            found = importlib.import_module(module)
        return getattr(found, attribute)


def is_class(name: str) -> bool:
    """Return whether a name has the form ``package.module:Class``."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def taken_out(words: Iterable[str]) -> list[str]:
    """Return a command line without `OPTION`, which every command takes, in any place before ``--``. Raises UsageError."""
    left, rest = list(words), []
    if "--" in left:
        left, rest = left[: left.index("--")], left[left.index("--") :]
    for word in left:
        named = word.removeprefix(f"{OPTION}=")
        if named != word and not all(map(is_class, named.split(","))):
            raise UsageError(f"{OPTION}=NAME must be package.module:Class, several with commas between them, got {named!r}")
    return [word for word in left if word != OPTION and not word.startswith(f"{OPTION}=")] + rest


def settings_in(environment: Mapping[str, str]) -> list[str]:
    """Return the values of the variables that set keys of the configuration."""
    return [value for name, value in environment.items() if name.startswith(ENVIRONMENT_PREFIX) and "__" in name]


TRUST = PluginTrust()
"""That of this process."""


def find_plugin(key: str, name: str, built_in: Mapping[str, str], group: str) -> Any:
    """Return the class that `name` stands for. Raises ConfigError, also where it may not be imported.

    `key` is the setting that holds the name, `built_in` maps names to ``package.module:Class``, `group` is that of entry points.
    """
    TRUST.check(key, name)
    place = built_in.get(name, name)
    try:
        if ":" in place:
            return TRUST.load(place)
        points = {point.name: point for point in entry_points(group=group)}
        if name in points:
            return points[name].load()
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(f"{key} {name} cannot be loaded: {type(error).__name__}: {error}", faq="own-class") from error
    known = (*built_in, *points)
    raise ConfigError(
        f"{key} must be one of {', '.join(known)} or package.module:Class, got {name!r}{did_you_mean(name, known)}",
        faq="policy-name",
    )
