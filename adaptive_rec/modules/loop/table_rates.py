"""The update rules of a runtime's tables, of which each follows one optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.modules.loop.rates import Rates
from adaptive_rec.placement import RowSpace


class TableRates:
    """Update rules, constants and present learning rates of tables, by table. Tables of different rules have pools of their own
    in the store, as their optimizer states differ in width."""

    def __init__(self, rates: Rates | Sequence[Rates], tables: int) -> None:
        """`rates`: those of all tables, or of each."""
        self._rates_T = [rates] * tables if isinstance(rates, Rates) else list(rates)
        self.distinct = list(dict.fromkeys(self._rates_T))
        """The rates of each optimizer, in the order of their first tables."""
        rules = list(dict.fromkeys((each.name, each.rule) for each in self._rates_T))
        found = [rules.index((each.name, each.rule)) for each in self._rates_T]
        self.kinds: tuple[int, ...] = tuple(found) if len(rules) > 1 else ()
        """A number for the rule of each table; empty where they have one rule."""

    def of(self, table: int) -> Rates:
        """Return the rates of a table."""
        return self._rates_T[table]

    def rule_of(self, table: int) -> RowRule:
        """Return the update rule of a table."""
        return self._rates_T[table].rule

    def rules_of(self, space: RowSpace) -> Sequence[RowRule]:
        """Return the update rule of each pool."""
        pool_T = [space.table_range(table)[0] for table in range(len(space.tables))]
        return [self.rule_of(pool_T.index(pool)) for pool in range(len(space.pools))]

    @property
    def name(self) -> str:
        """The names of the rules."""
        return ", ".join(dict.fromkeys(each.name for each in self.distinct))

    @property
    def shown(self) -> str:
        """The rules with their constants, by torch's names; where they differ, with the numbers of their tables."""
        shown = [each.shown for each in self._rates_T]
        if not self.kinds:
            return shown[0]
        tables = {text: [str(table) for table, other in enumerate(shown) if other == text] for text in shown}
        return "; ".join(f"{text} for tables {', '.join(some)}" for text, some in tables.items())

    @property
    def moving(self) -> Rates | None:
        """The rates of an optimizer that moves every row of its tables at every step, if there is one."""
        return next((each for each in self.distinct if each.rule.catches_up), None)

    @property
    def counts_steps(self) -> bool:
        """Whether an update depends on the number of its table's updates."""
        return any(each.counts_steps for each in self.distinct)

    @property
    def lr(self) -> float:
        """Present learning rate of the first optimizer's tables."""
        return self.distinct[0].lr

    def check(self, tables: Iterable[int]) -> None:
        """Raise ConfigError where another option of these tables' param groups than the lr has changed."""
        for rates in dict.fromkeys(map(self.of, tables)):
            rates.check()
