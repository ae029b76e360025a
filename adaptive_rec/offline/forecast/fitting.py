"""Settings that make a run fit a machine, and the largest hot budget that fits, found by planning its rows repeatedly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.memory.parts import BATCH, BATCHES
from adaptive_rec.memory.plan import WORTH_NAMING, MemoryPlan, Place
from adaptive_rec.memory.rows import everything_bytes, row_parts, space_of, twins_of
from adaptive_rec.offline.forecast.ranking import largest
from adaptive_rec.offline.forecast.sources import Folded
from adaptive_rec.policy.find import load_policy

LEAST_BUDGET_BYTES = 4096
ROUND_BITS = 7
"""Leading binary digits of a proposed budget, which rounds it down by less than a hundredth."""

Setting = tuple[str, Any]
"""A configuration key and its value."""


@dataclass(frozen=True)
class Remedy:
    """Settings that make the run fit, and the memory that each place then needs."""

    settings: list[Setting]
    needed_bytes: dict[Place, int]


@dataclass(frozen=True)
class Fitting:
    """A plan and its inputs, from which plans with other rows follow without another measurement."""

    config: Config
    source: Source
    plan: MemoryPlan

    def with_settings(self, settings: Sequence[Setting]) -> MemoryPlan:
        """Return the plan with other settings of its rows, tables or batch size."""
        config = with_settings(self.config, settings)
        limit = config.data.max_table_rows
        source = self.source if limit == self.config.data.max_table_rows else Folded(self.source, limit)
        policy = load_policy(config.knobs.policy)
        fast: Place = "device" if "device" in self.plan.available_bytes else "host"
        rows = row_parts(config, source, policy, fast, self.plan.lookups, twins_of(config, policy))
        plan = self.plan.with_rows(rows, config.knobs.policy)
        return plan.scaled((BATCH, BATCHES), config.run.batch_size / self.config.run.batch_size)

    def fits(self, settings: Sequence[Setting]) -> bool:
        return not self.with_settings(settings).problems

    def everything_bytes(self) -> int:
        """Return the hot budget that holds all rows."""
        return everything_bytes(self.config, space_of(self.source, load_policy(self.config.knobs.policy)))

    @property
    def obeys_budget(self) -> bool:
        """Whether the policy's hot tier is as large as the budget."""
        policy, most = load_policy(self.config.knobs.policy), self.everything_bytes()
        knobs = {size: self.config.knobs.changed({"hot_budget_bytes": size}) for size in (LEAST_BUDGET_BYTES, most)}
        return all(policy.budget_bytes(each, most) == size for size, each in knobs.items())

    def largest_budget(self, others: Sequence[Setting] = ()) -> int:
        """Return the largest hot budget that fits together with other settings. Places too small for any do not count. On a CPU
        with rows on a disk it is at most `run.host_memory`."""
        host_memory = 0 if self._on_device else self.config.run.host_memory
        most = min(self.everything_bytes(), host_memory or self.everything_bytes())
        least, everything = LEAST_BUDGET_BYTES, max(most, LEAST_BUDGET_BYTES)

        def too_small(size: int) -> set[Place]:
            plan = self.with_settings([*others, ("knobs.hot_budget_bytes", size)])
            return {place for place in plan.available_bytes if plan.problem(place)}

        hopeless = too_small(least)
        found = max(least, largest(everything, lambda size: too_small(size) <= hopeless))
        return found if found == everything else rounded_down(found)

    def remedies(self) -> list[Remedy]:
        """Return the single settings that make a run fit that does not; if none does, the first few that do together."""
        if not self.plan.problems:
            return []
        single = [remedy for setting in self._settings(()) if (remedy := self._remedy([setting]))]
        return single or self._together()

    def _settings(self, others: Sequence[Setting]) -> Iterator[Setting]:
        """Yield settings to try, those first that change training least, with the largest values that fit."""
        config = with_settings(self.config, others)
        if self.obeys_budget:
            yield "knobs.hot_budget_bytes", self.largest_budget(others)
        places = [place for place in self.plan.available_bytes if self.plan.problem(place)]
        if any(self._share(place, (BATCH, BATCHES)) >= WORTH_NAMING for place in places):
            fits = largest(config.run.batch_size, lambda size: self.fits([*others, ("run.batch_size", size)]))
            yield "run.batch_size", 1 << max(0, fits.bit_length() - 1)
        if config.run.precision != "float64" and config.run.row_precision == "float32":
            yield "run.row_precision", "bf16"
        if not NAMED_RULES[config.optimizer.embedding].is_compact:
            yield "optimizer.embedding", "rowwise_adagrad"
        rows = max(table.rows for table in self.source.tables)
        fits = largest(rows, lambda n: self.fits([*others, ("data.max_table_rows", n)]))
        yield "data.max_table_rows", max(1, rounded_down(fits))

    def _remedy(self, settings: list[Setting]) -> Remedy | None:
        plan = self.with_settings(settings)
        if plan.problems:
            return None
        return Remedy(settings, {place: plan.needed(place) for place in plan.available_bytes})

    def _together(self) -> list[Remedy]:
        """Add one setting after the other until the run fits."""
        chosen: list[Setting] = []
        for key in [key for key, _ in self._settings(())]:
            value = next(value for name, value in self._settings(chosen) if name == key)
            chosen.append((key, value))
            if remedy := self._remedy(chosen):
                return [remedy]
        return []

    @property
    def _on_device(self) -> bool:
        return "device" in self.plan.available_bytes

    def _share(self, place: Place, keys: tuple[str, ...]) -> float:
        parts = [part.bytes for part in self.plan.parts if part.place == place and part.keys in keys]
        return sum(parts) / max(self.plan.needed(place), 1)


def with_settings(config: Config, settings: Sequence[Setting]) -> Config:
    for key, value in settings:
        section, name = key.split(".")
        part = getattr(config, section)
        changed = part.changed({name: value}) if section == "knobs" else part.model_copy(update={name: value})
        config = config.model_copy(update={section: changed})
    return config


def rounded_down(number: int) -> int:
    """Return the previous number with few binary digits."""
    unit = 1 << max(0, number.bit_length() - ROUND_BITS)
    return number // unit * unit
