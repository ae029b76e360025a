"""The screen of ``train --dry-run``: columns, split, passes, tables, time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.cli.plan import plan_head
from adaptive_rec.units import clock, count, counted, percent, readable, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.data.source import Source
    from adaptive_rec.data.split_facts import Looked
    from adaptive_rec.data.tabular.schema import Schema
    from adaptive_rec.memory.plan import MemoryPlan

SHOWN_NAMES, SHOWN_UNUSED, SHOWN_PARTS = 12, 12, 4
LEAST_SHARE = 0.001
"""Share of unseen values from which on a column is named."""


@dataclass
class Described:
    """What a run would read."""

    config: Config
    source: Source | None = None
    """Files that are not prepared yet, with tables of estimated sizes; None where the configuration names what is there."""
    schema: Schema | None = None
    unused: dict[str, str] = field(default_factory=dict)
    """Columns of the files that are not used, and why."""
    said: list[tuple[str, str]] = field(default_factory=list)
    """Lines about schema and files."""


@dataclass
class DryRunScreen:
    """What a dry run shows beside the verdict on memory."""

    described: Described
    source: Source
    plan: MemoryPlan
    looked: Looked | None
    boundary: int | None
    """The time from which on rows are held out."""
    steps: int | None
    step_seconds: float | None
    not_timed: str

    @property
    def seconds(self) -> float | None:
        return None if self.step_seconds is None or self.steps is None else self.step_seconds * self.steps

    @property
    def unseen(self) -> dict[str, float]:
        """Share of the held-out rows looked at, by column, whose value the training rows compared lack."""
        looked = self.looked
        if looked is None or not looked.held_out.looked:
            return {}
        found = zip(looked.sparse_names, looked.unseen_C.tolist(), strict=False)
        return {name: share for name, share in found if not np.isnan(share)}

    def as_dict(self) -> dict[str, Any]:
        schema = self.described.schema
        used = None if schema is None else {
            "label": schema.label, "sparse": [each.column for each in schema.sparse],
            "dense": [each.column for each in schema.dense], "time": schema.time.column or None,
            "weight": schema.weight or None, "group": schema.group.column or None,
        }  # fmt: skip
        return {
            "columns": used, "unused": self.described.unused, "train_samples": self.source.train_samples,
            "validation_samples": self.source.validation_samples, "test_samples": self.source.test_samples,
            "held_out_from": self.boundary, "unseen_ratios": self.unseen,
            "epochs": self.source.epochs, "steps": self.steps, "seconds": self.seconds,
            "tables_estimated": self.described.source is not None,
        }  # fmt: skip

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what the screen has beside the verdict on memory."""
        from adaptive_rec.data.split_facts import lines

        config, schema = self.described.config, self.described.schema
        yield from self.described.said
        if schema is not None:
            yield ("label", schema.label + self._shares_of_one()) if schema.implicit is None else ("positives", self._drawn())
            for what, columns in (("categories", schema.sparse), ("numbers", schema.dense)):
                yield what, _named([each.column for each in columns])
            yield from (("time", schema.time.column), ("weight", schema.weight), ("group", schema.group.column))
        unused = list(self.described.unused.items())
        for name, why in unused[:SHOWN_UNUSED]:
            yield "unused", f"{readable(name, word=60)}: {why}"
        yield "unused", f"and {len(unused) - SHOWN_UNUSED} further columns" if len(unused) > SHOWN_UNUSED else ""
        if not config.data.follow:
            yield "split", self._split()
            yield "unseen", self._unseen() if schema is not None else ""
            yield "passes", self._passes()
        yield from plan_head(self.plan, config)
        yield "", _named([f"{t.name} {count(t.rows)}" for t in sorted(self.plan.tables, key=lambda t: -t.rows)], False)
        slots, rows = (sum(getattr(pool, name) for pool in self.plan.hot) for name in ("slots", "rows"))
        held = size(sum(pool.bytes for pool in self.plan.hot))
        yield "budget", f"{size(config.knobs.hot_budget_bytes)} for hot rows: {count(slots)} of {count(rows)} rows, {held}"
        largest = sorted(self.plan.parts, key=lambda part: -part.bytes)[:SHOWN_PARTS]
        yield "memory", ", ".join(f"{part.name} {size(part.bytes)}" for part in largest)
        yield "time", self.not_timed or f"about {clock(self.seconds or 0)}: {self._step_time()}"
        for line in [] if self.looked is None else lines(self.looked):
            yield "warning", line

    def _drawn(self) -> str:
        """Return how negatives are drawn for rows that are all positives."""
        from adaptive_rec.data.implicit.negatives import negatives_of

        drawn = negatives_of(self.source)
        return "every row" + ("" if drawn is None else f"; negatives: {drawn.in_words()}")

    def _shares_of_one(self) -> str:
        if self.looked is None:
            return ""
        parts = zip(self.looked.labels, ("the training rows", "those held out"), strict=True)
        shares = [f"{percent(each.positives / each.looked)} of {what}" for each, what in parts if each.looked]
        return f", 1 in {' and '.join(shares)}" if shares else ""

    def _split(self) -> str:
        from adaptive_rec.data.tabular.times import time_text

        trained, held_out = self.source.train_samples, self.source.test_samples
        order = f"the newest, from {time_text(self.boundary)} UTC on" if self.boundary is not None else "by position"
        if self.described.config.data.source == "synthetic":
            order = "drawn apart"
        bad = f"; {counted(self.source.malformed_rows, 'malformed row')} left out" if self.source.malformed_rows else ""
        validated = f", {whole(self.source.validation_samples)} to validate on" if self.source.validation_samples else ""
        return f"{counted(trained, 'row')} to train on{validated}, {whole(held_out)} held out ({order}){bad}"

    def _unseen(self) -> str:
        if not self.unseen:
            return "shares of categories that only held-out rows have: known after preparing"
        assert self.looked is not None, "it has the shares"
        named = sorted(self.unseen.items(), key=lambda item: -item[1])
        shown = [f"{readable(name, word=60)} {percent(share)}" for name, share in named if share >= LEAST_SHARE]
        of_some = self.looked.compared < self.looked.train.rows
        some = f", at the most: {whole(self.looked.compared)} training rows were looked at" if of_some else ""
        if not shown:
            return f"each category of the held-out rows{' looked at' * of_some} occurs in training rows"
        return f"{_named(shown, counted_too=False)} of the held-out rows have a value that training rows lack{some}"

    def _passes(self) -> str:
        passes, settings = self.source.epochs, self.described.config.eval
        most = f"{passes} pass{'es' * (passes > 1)} over the training rows, {counted(self.steps or 0, 'step')}"
        if not settings.patience:
            return most
        evaluations = counted(settings.patience, "evaluation")
        then = ", then trains the best model on the rows that were validated on" if settings.trains_slice else ""
        return f"at most {most}; stops after {evaluations} in a row without a better {settings.metric}{then}"

    def _step_time(self) -> str:
        return f"{counted(self.steps or 0, 'step')} of {1000 * (self.step_seconds or 0):.1f} ms, timed with small tables"


def _named(names: Sequence[str], counted_too: bool = True) -> str:
    """Return some names, and how many there are."""
    if not names:
        return ""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    shown = ", ".join(readable(name, word=60) for name in names[:SHOWN_NAMES])
    return f"{len(names)}: {shown}{more}" if counted_too else f"{shown}{more}"
