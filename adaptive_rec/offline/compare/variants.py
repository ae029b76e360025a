"""Variants of a comparison: a policy under settings of its own, such as fewer steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from adaptive_rec.errors import UsageError
from adaptive_rec.policy.find import BUILT_IN

POLICY = "knobs.policy"
FIXED = ("run.seed", "data.", "eval.", "knobs.eval_every_steps")
"""Keys, or beginnings of keys, that all runs share: another seed, other data or other evaluations could not be compared."""
FREE = ("data.train_range", "data.shuffle", "data.epochs")
"""Keys of these that only decide what is trained on."""

_NAMED = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9_.-]{0,99})\s*:\s*(\S.*?)\s*", re.DOTALL)
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z0-9_.]+\s*=)")
"""A comma before the next KEY=VALUE; a comma within a list stays."""


@dataclass(frozen=True)
class Variant:
    """A policy under settings of its own."""

    name: str
    policy: str
    settings: tuple[str, ...]
    """KEY=VALUE each, without the policy."""

    @property
    def text(self) -> str:
        return ", ".join((f"{POLICY}={self.policy}", *self.settings))


def read_variants(texts: list[str], baseline: str, policies: list[str]) -> tuple[Variant, ...]:
    """Return the variants of texts ``NAME: KEY=VALUE, ...``, under the baseline's policy where they name none.

    Raises UsageError."""
    found = tuple(_read(text, baseline) for text in texts)
    taken = [*BUILT_IN, *policies, baseline]
    for variant in found:
        if variant.name in taken:
            raise UsageError(f"--variant must have a name that no policy and no other variant has, got {variant.name}")
        taken.append(variant.name)
    return found


def _read(text: str, baseline: str) -> Variant:
    named = _NAMED.fullmatch(text)
    settings = _BETWEEN.split(named[2]) if named else []
    pairs = [[part.strip() for part in setting.partition("=")[::2]] for setting in settings]
    if named is None or not all(key and value for key, value in pairs):
        raise UsageError(
            f"--variant must be NAME: KEY=VALUE, ... with a NAME of up to 100 letters, digits, '-', '_' and '.', got {text!r}"
        )
    for key, _ in pairs:
        if "." not in key:  # a whole section, in which a fixed key could be
            raise UsageError(f"--variant must name keys as section.key, got {key} in {text!r}")
        if key not in FREE and key.startswith(FIXED):
            raise UsageError(f"--variant must leave {key} as it is for all runs, got {text!r}")
    values = dict(pairs)
    policy = values.pop(POLICY, baseline).strip("\"'")
    return Variant(named[1], policy, tuple(f"{key}={value}" for key, value in values.items()))
