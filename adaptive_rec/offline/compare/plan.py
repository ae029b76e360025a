"""The plan of a comparison: policies, variants and seeds under equal conditions, which a directory's earlier runs must share."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from adaptive_rec.config.knobs import CONFIGURED
from adaptive_rec.config.tree import Config
from adaptive_rec.errors import UsageError
from adaptive_rec.live.telemetry import to_json
from adaptive_rec.offline.pages.page import write_page
from adaptive_rec.policy.find import BUILT_IN
from adaptive_rec.system.processor import processor
from adaptive_rec.system.regular_files import read_json
from adaptive_rec.system.version import __version__

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


NAME = "conditions.json"
LIBRARIES = ("torch", "numba", "numpy")
EVALUATIONS = 10
"""Evaluations of a run where the configuration sets none; times to an AUC are interpolated between them."""


@dataclass(frozen=True)
class Turn:
    """One run of a comparison."""

    policy: str
    """Name of a policy or a variant."""
    seed: int
    variant: Variant | None = None

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return f"{self.policy.replace(':', '.')}-seed{self.seed}"

    @property
    def words(self) -> list[str]:
        """Words of the command line that distinguish the run from others."""
        policy, settings = (self.variant.policy, self.variant.settings) if self.variant else (self.policy, ())
        return [f"--policy={policy}", f"--seed={self.seed}", *(word for each in settings for word in ("--set", each))]


@dataclass(frozen=True)
class Plan:
    """Policies, the baseline first, variants, and consecutive seeds under one configuration."""

    config: Config
    """Its policy is the baseline, its seed the first one."""
    policies: tuple[str, ...]
    """Names, those of the variants last."""
    seeds: tuple[int, ...]
    baseline: str
    variants: tuple[Variant, ...] = ()

    def turns(self) -> list[Turn]:
        """Return all runs in their order, seed by seed.

        Each seed starts with another policy, so that no policy always runs after the same one.
        """
        turns, variants = [], {variant.name: variant for variant in self.variants}
        for place, seed in enumerate(self.seeds):
            first = place % len(self.policies)
            turns += [
                Turn(policy, seed, variants.get(policy)) for policy in (*self.policies[first:], *self.policies[:first])
            ]
        return turns


def plan_of(
    config: Config, policies: list[str], seeds: int, baseline: str, variants: tuple[Variant, ...] = ()
) -> Plan:
    """Return the plan that the user requested, with the baseline added where it is not named. Raises UsageError."""
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}")
    named = [name.strip() for name in policies]
    if not all(named):
        raise UsageError(f"--policies must be names with commas between them, got {','.join(policies)!r}")
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice:
        raise UsageError(f"--policies must name each policy once, got {twice} twice")
    ordered = (baseline, *(name for name in named if name != baseline), *(variant.name for variant in variants))
    if len(ordered) < 2:
        raise UsageError(
            f"--policies must name at least one policy besides the baseline {baseline}, got {','.join(named)}"
        )
    names = [Turn(policy, 0).name for policy in ordered]
    if len(set(names)) < len(names):
        raise UsageError(f"--policies must name policies that differ in more than a colon, got {', '.join(ordered)}")
    first = config.run.seed
    often = config.eval.every_steps or config.eval.count or config.eval.per_epoch
    scored = often or config.knobs.eval_every_steps != CONFIGURED
    changed = {
        "knobs": config.knobs.model_copy(update={"policy": baseline}),
        "eval": config.eval if scored else config.eval.model_copy(update={"count": EVALUATIONS}),
    }
    return Plan(config.model_copy(update=changed), ordered, tuple(range(first, first + seeds)), baseline, variants)


# Conditions ------------------------------------------------------------------------------------------------------------


def conditions(config: Config) -> dict[str, Any]:
    """Return what all runs of a comparison share, by name: settings, data, versions, machine.

    Policies and seeds are left out, so that more of them can be added later.
    """
    settings = config.model_dump(mode="json")
    settings["run"].pop("seed")
    settings["knobs"].pop("policy")
    return {
        **dict(_leaves(settings)),
        "size of the data": _data_bytes(config.data.source),
        "version of adaptive-rec": __version__,
        "version of Python": platform.python_version(),
        **{f"version of {name}": metadata.version(name) for name in LIBRARIES},
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "graphics processors": _graphics(),
    }


def digest_values(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def settle_conditions(
    out: Path, now: Mapping[str, Any], variants: tuple[Variant, ...] = (), policies: Sequence[str] = ()
) -> None:
    """Write the conditions to a comparison's directory, or compare them with those there. Raises UsageError if they differ.

    Variants can be added later, but not changed. `policies`: names of all, variants included."""
    path, own = out / NAME, {f"variant {variant.name}": variant.text for variant in variants}
    if not path.exists():
        write_page(to_json({**now, **own}, indent=1) + "\n", path)
        return
    try:
        before = dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; give another --out") from None
    for name, text in own.items():
        if before.get(name, text) != text:
            raise UsageError(f"{name} must be as before, {before[name]!r}, got {text!r}; give it another name")
    earlier = {key: value for key, value in before.items() if key.startswith("variant ")}
    before = {key: value for key, value in before.items() if key not in earlier}
    taken = [name for name in policies if f"variant {name.replace(':', '.')}" in earlier.keys() - own.keys()]
    if taken:  # runs are found by their names
        raise UsageError(f"--policies must have other names than the variants in --out {out}, got {taken[0]}")
    made = {path.name.rpartition("-seed")[0] for path in out.glob("*/*-seed*")}
    taken = [variant.name for variant in variants if variant.name in made and f"variant {variant.name}" not in earlier]
    if taken:
        raise UsageError(f"--variant must have another name than the policies in --out {out}, got {taken[0]}")
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        shown = "; ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in changed[:5])
        more = f" (and {len(changed) - 5} more)" if len(changed) > 5 else ""
        raise UsageError(
            f"--out {out} holds runs made under other conditions, all must be equal: {shown}{more}; give another --out"
        )
    if own.keys() - earlier.keys():
        write_page(to_json({**now, **earlier, **own}, indent=1) + "\n", path)


def code_digest() -> str:
    """Return a digest of the package's sources, by which runs of different code are noticed."""
    found = hashlib.sha256()
    package = Path(__file__).parents[2]
    folders = [package, *(path for path in sorted(package.iterdir()) if path.is_dir() and path.name != "compare")]
    for folder in folders:
        for path in sorted(folder.glob("*.py") if folder == package else folder.rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found


def _data_bytes(source: str) -> int:
    path = Path(source)
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return path.stat().st_size if path.is_file() else 0


def _graphics() -> list[str]:
    """Return the names of the GPUs that the driver lists, without opening a device."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]
    return found
