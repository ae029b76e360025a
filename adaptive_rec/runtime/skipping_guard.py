"""The guard of policies that skip (`SkippingPolicy.guards_quality`): it lets them skip only what paired trials have priced.

Every so many steps a trial (`paired_trial.py`) finds the price of a stretch of skipping, and the run skips in such stretches
(`stretches.py`) until the next one. Trials of 80 (`policy.trial_steps`), 160, 320 ... steps follow one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.optimizer import LearningRates
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, ratio
from adaptive_rec.policy import SkippingPolicy, StepPlan
from adaptive_rec.policy.plans import count_skipped, plan_at_random
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.runtime.stretches import Stretches
from adaptive_rec.saved import Saved
from adaptive_rec.state.run_state import RunState

if TYPE_CHECKING:  # only runs of policies that skip need them
    from adaptive_rec.runtime.paired_trial import PairedTrial
    from adaptive_rec.tracking.price import Pooled, Price

LONGEST = 32
"""How many times as long as the first trial the longest ones are."""

NO_TRIALS = (
    "policy {} trains everything where several processes train together: what skipping costs is found by a twin, which has no "
    "rows of other processes"
)

ENDED = "a trial of {} steps ended: {}; everything is trained until another one"

CHANCE_EVERY = 4
"""One trial in so many has a twin that skips at random, too, and comes after twice as many steps."""

OF_THE_PLAN = (
    "policy", "action", "keep_probability", "alpha", "stale_metric", "stale_threshold", "target_skip_ratio", "probe_ratio",
)  # fmt: skip
"""Knobs of what is skipped: a price holds while they stay."""


def guards(store: EmbeddingStore) -> bool:
    """Whether trials can be made: by one process alone, as twins have no rows of other processes."""
    return store.group.is_alone


def put_off_trials(replayed: Mapping[int, list[Command]] | None) -> dict[int, str] | None:
    """Return the steps in which a replayed run put a trial off for want of memory, with what it said; None where none is."""
    if replayed is None:
        return None
    return {step: command.values["why"] for step, done in replayed.items() for command in done if command.verb == "put_off_trial"}


class SkippingGuard:
    """Has trials made, and says in which steps a policy may skip."""

    def __init__(
        self, state: RunState, dense: DensePart, observer: Observer, put_off: Mapping[int, str] | None = None
    ) -> None:
        """`put_off`: of a replay, the steps in which the replayed run had too little memory for a trial, and what it said of it.
        The replay does as that run did, whatever memory it has itself."""
        self._put_off_at = put_off
        self._state, self._store, self._dense, self._stale = state, state.store, dense, observer.stale
        self._events: list[Event] = []
        self._shortest = state.config.policy.trial_steps
        self.stretches = Stretches()
        self._begin()

    def _begin(self) -> None:
        """Forget all trials."""
        self.trial: PairedTrial | None = None
        self.price: Price | None = None
        """By the last trial."""
        self._at_random = math.nan
        """Cost of as much at random, by the last trial that measured it."""
        self._pooled: Pooled | None = None
        """The noise of all trials of the present plan."""
        self._plan: str = ""
        """The knobs of what is skipped that the price is of."""
        self._length, self._trials = self._shortest, 0
        self._period_began = self._state.step
        self.stretches.forget()
        self._waits = False
        """Whether a trial waits for rows that have settled, which was reported."""

    # Each step -------------------------------------------------------------------------------------------------------

    def lets_skip(self, probe: bool) -> bool:
        """Whether the run may skip in the next step; begins and ends stretches and trials. Called once for each step."""
        state = self._state
        if not (isinstance(state.policy, SkippingPolicy) and state.policy.guards_quality):
            if self._plan or self._trials or self.trial is not None:
                if self.trial is not None:
                    self._say(f"a trial of {self._length} steps ended: the policy has changed")
                self._begin()
                self._state.price_skipping(None)
            self._period_began = state.step
            return False
        if (plan := _plan_of(state.knobs)) != self._plan:
            self._change_plan(plan)
        if self.trial is not None and not state.knobs.guard_max_logloss_increase:
            self._end_trial("the limit is 0")
        if self.trial is None and self._trial_is_due():
            self._begin_trial()
        return self.trial is None and self._stretch_lasts() and not probe

    def _change_plan(self, plan: str) -> None:
        if self.trial is not None:
            self._end_trial("what is skipped has changed")
        self._plan, self.price, self._pooled, self._at_random = plan, None, None, math.nan
        self._show()
        self._length, self._period_began = self._shortest, self._state.step
        self.stretches.forget()

    def _trial_is_due(self) -> bool:
        knobs = self._state.knobs
        if not knobs.guard_max_logloss_increase:
            return False
        period = max(2 * self._length, math.ceil(self._length / knobs.guard_ratio) * (2 if self._has_chance else 1))
        if self._state.step < self._period_began + period - self._length - self._length // 2:
            return False
        if self._stale.rows_T.any():
            self._waits = False
            return True
        if not self._waits:
            self._waits = True
            self._say("no hot row has settled yet, so nothing would be skipped: the trial waits")
        return False

    @property
    def _has_chance(self) -> bool:
        """Whether the next trial has a twin that skips at random."""
        return self._trials % CHANCE_EVERY == CHANCE_EVERY - 1

    def _begin_trial(self) -> None:
        chance = self._has_chance
        self.stretches.end(self._state.step)
        from adaptive_rec.runtime.paired_trial import PairedTrial

        if self._was_put_off():
            return
        samples = self._state.config.run.batch_size
        needed = PairedTrial.bytes_of(self._dense, self._store, chance, samples)
        if needed > (free := self._store.hot.free_bytes()):
            self._lack_memory(f"memory for a trial must be {needed:,} bytes, got {free:,}; everything is trained")
            return
        try:
            self.trial = PairedTrial(self._dense, self._store, self._length, self._state.step, chance)
        except (MemoryError, RuntimeError) as error:
            if not (isinstance(error, MemoryError) or is_out_of_memory(error)):
                raise
            self._lack_memory(f"memory for a trial must be {needed:,} bytes: {first_line(error)}; everything is trained")

    def _was_put_off(self) -> bool:
        """Put a trial off where the replayed run did, in this step, for want of memory. Returns whether it did."""
        why = (self._put_off_at or {}).get(self._state.step, "")
        if why:
            self._put_off(why, by_memory=True)
        return bool(why)

    def _lack_memory(self, why: str) -> None:
        """Put a trial off as memory is short. Raises MemoryPlanError in a replay: the run that it repeats had enough."""
        if self._put_off_at is not None:
            rule = why.partition(";")[0]
            raise MemoryPlanError(f"{rule}; the replayed run had this trial, so its replay needs the memory, too")
        self._put_off(why, by_memory=True)

    def _put_off(self, why: str, by_memory: bool = False) -> None:
        """Wait for another period, in which nothing is skipped. `by_memory`: a replay is to do so too, whatever memory it has."""
        self._say(why, {"put_off": True} if by_memory else {})
        self.trial, self.price, self._period_began = None, None, self._state.step
        self._show()

    def _stretch_lasts(self) -> bool:
        """Whether a stretch of skipping is under way in the next step, or begins."""
        price, step, limit = self.price, self._state.step, self._state.knobs.guard_max_logloss_increase
        if price is None or not price.skipped:
            return False
        if self.stretches.go_on(step, price, limit):
            return True
        if not self.stretches.may_begin(step, price, limit):
            return False
        self.stretches.begin(step, price)
        self._show()
        if not self.stretches.affords(price, limit):
            spent = self.stretches.spent
            self._say(f"the last stretch of skipping begins that fits the limit of {limit:g}: {spent:.2g} of it is spent")
        return True

    def count_skipped(self, work: ClassifiedBatch, plan: StepPlan) -> None:
        """Count what a step of the run skips in a stretch."""
        if self.stretches.is_under_way:
            self.stretches.count(count_skipped(work, plan, self._state.knobs)[0])

    # A trial's step --------------------------------------------------------------------------------------------------

    def train_twins(self, work: ClassifiedBatch, whole: StepPlan, plan: StepPlan | None, rates: LearningRates) -> None:
        """Have the twins make a step beside the run. `whole` trains everything, `plan` is the policy's, if it skips."""
        trial = self.trial
        assert trial is not None, "twins train in a trial"
        if self._was_put_off():
            return
        skips = plan is not None and self._state.step < trial.began + trial.length
        plans = [plan if skips and plan is not None else whole]
        if len(trial.twins) > 1:
            plans.append(plan_at_random(work, plans[0], whole, self._state.random("chance")) if skips else whole)
        if skips:
            trial.count(*count_skipped(work, plans[0], self._state.knobs))
        trial.train(self._state.step, work, plans, rates, self._state.knobs.clip_norm)

    def step_done(self, left_out: bool) -> None:
        """End the trial where it is over, after a step of the run. `left_out`: the run left the batch out."""
        trial = self.trial
        if trial is None:
            return
        if left_out:
            self._end_trial("a batch was left out")
        elif self._state.step >= trial.began + trial.steps:
            self._judge(trial)

    def _judge(self, trial: PairedTrial) -> None:
        from adaptive_rec.tracking.price import Pooled, price_of, verdict_text

        differences = [twin.differences() for twin in trial.twins]
        if not (np.isfinite(differences[0]).all() and trial.twins[0].fits):
            self._end_trial("the losses of the twin that skips are not finite")
            return
        chance = differences[1] if len(differences) > 1 and np.isfinite(differences[1]).all() else None
        self._pooled = self._pooled or Pooled()
        self.price = price = price_of(differences[0], trial.length, self._pooled, trial.skipped, trial.seen, chance)
        self._trials += 1
        self.trial, self._period_began = None, self._state.step
        self._length = min(2 * self._length, LONGEST * self._shortest)
        limit = self._state.knobs.guard_max_logloss_increase
        self.stretches.forget()
        if chance is not None:
            self._at_random = max(price.chance, price.chance_after)
        self._show()
        left = limit - self.stretches.spent
        details = {**price.state(), "most": price.most, "charge": price.charge, "left": left}
        self._say(verdict_text(price, limit, self.stretches.spent), details)

    def _end_trial(self, why: str) -> None:
        """End a trial without a verdict."""
        self._put_off(ENDED.format(self._length, why))

    def give_up(self, why: str) -> None:
        """End a trial for which memory is short. Raises MemoryPlanError as `_lack_memory` does."""
        if self.trial is not None:
            self._lack_memory(ENDED.format(self._length, f"memory is short ({why})"))

    def follow(self) -> None:
        """Have the twins follow rows that have moved."""
        if self.trial is not None:
            self.trial.follow()

    # Reports ---------------------------------------------------------------------------------------------------------

    def _say(self, text: str, details: Mapping[str, Any] | None = None) -> None:
        self._events.append(Event(self._state.step, "guard", text, details or {}))

    def _show(self) -> None:
        """Have reports show the present price."""
        price, limit = self.price, self._state.knobs.guard_max_logloss_increase
        self._state.price_skipping(
            None if price is None else {
                "cost": price.cost, "least_cost": price.least, "most_cost": price.most, "cost_at_random": self._at_random,
                "ratio": ratio(price.skipped, price.seen), "steps": price.length, "left": limit - self.stretches.spent,
            }
        )  # fmt: skip

    def events(self) -> list[Event]:
        """Return the events that were not returned before."""
        found, self._events = self._events, []
        return found

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "trial": self.trial and self.trial.state(),
            "price": self.price and self.price.state(),
            "at_random": self._at_random,
            "pooled": self._pooled and self._pooled.state(),
            "plan": self._plan,
            "length": self._length,
            "trials": self._trials,
            "period_began": self._period_began,
            "waits": self._waits,
            **self.stretches.state(),
        }

    def set_state(self, found: Saved) -> None:
        """Restore the saved state. Rows, dense part and placement must be restored before."""
        from adaptive_rec.runtime.paired_trial import PairedTrial
        from adaptive_rec.tracking.price import Pooled, Price

        trial, price, pooled = (found.maybe(name) for name in ("trial", "price", "pooled"))
        self.trial = None if trial is None else PairedTrial.restore(trial, self._dense, self._store)
        self.price, self._at_random = None if price is None else Price.of(price), found.number("at_random")
        self._pooled = None if pooled is None else Pooled(pooled.number("squares"), pooled.integer("freedom"))
        self._plan, self._waits = found.text("plan"), found.flag("waits")
        self._length, self._trials = found.integer("length"), found.integer("trials")
        self._period_began = found.integer("period_began")
        self.stretches.set_state(found)
        self._show()


def _plan_of(knobs: Knobs) -> str:
    return " ".join(str(getattr(knobs, name)) for name in OF_THE_PLAN)
