"""Checks of what a user's loop is asked for: whether it can carry that out, and whether its processes ask for the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch

from adaptive_rec.batch import TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.device import all_rows_bytes, least_budget, split_budget
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.loop.table_rates import TableRates
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.capabilities import check_features, of_loop
from adaptive_rec.system.group import Group
from adaptive_rec.system.torch_group import ranks_of_script

OF_RUNS = (
    "lr_factor", "embedding_lr_factor", "schedule_offset", "clip_norm",
    "eval_every_steps", "checkpoint_every_steps", "checkpoint_every_seconds",
)  # fmt: skip
"""Knobs of what a user's loop does by itself."""


def check_knobs_of_ids(knobs: Knobs, raw: bool) -> None:
    """Raise ConfigError where a knob is set that is for raw ids, and ids are numbers of rows."""
    for name, unset in (("admit_after", 1), ("evict_ratio", 0), ("evict_after", 0)):
        if not raw and (value := getattr(knobs, name)) != unset:
            raise ConfigError(f'knobs.{name} must be {unset} unless ids="raw", got {value}')


OF_GUARDS = ("guard_ratio", "guard_max_logloss_increase")
"""Knobs of the guard of quality, which needs the loss of each sample."""


def check_budget(space: RowSpace, bytes_per_row: list[int], policy: Policy, knobs: Knobs, name: str) -> None:
    """Raise ConfigError where no row would fit into the hot tier though it is to have some; `name`: what the user set it by."""
    given = policy.budget_bytes(knobs, all_rows_bytes(space, bytes_per_row))
    if given > 0 and not any(split_budget(space, bytes_per_row, given)):
        least = least_budget(space, bytes_per_row)
        raise ConfigError(
            f"{name} must be 0, for no hot rows, or at least {least} bytes, room for a row with its optimizer state, got {given}",
            faq="budget-too-small",
        )


def check_loop_change(before: Knobs, after: Knobs, raw: bool, group: Group, rates: TableRates, store: EmbeddingStore) -> None:
    """Raise ConfigError where knobs cannot be changed to others in the user's loop."""
    policy = load_policy(after.policy)
    check_knobs_of_ids(after, raw)
    check_features(of_loop(after, policy, raw, not group.is_alone, moving_of(rates)))
    check_policy_fits(policy, after)
    records = policy.records_movement(after)
    if (after.policy, after.hot_budget_bytes, records) != (before.policy, before.hot_budget_bytes, store.hot.monitored):
        check_budget(store.space, store.hot.row_bytes(records), policy, after, "hot_budget_bytes")


def moving_of(rates: TableRates) -> str:
    """Return the name of the optimizer that moves every row at every step; empty where none does."""
    return "" if rates.moving is None else rates.moving.name


def check_policy_fits(policy: Policy, knobs: Knobs) -> None:
    """Raise ConfigError where a policy cannot be carried out in the user's loop under these knobs."""
    reasons = {OF_RUNS: "which sets its own rates and cadence", OF_GUARDS: "which gives no losses of single samples"}
    for names, reason in reasons.items():
        for name, value in Knobs().model_dump(include=set(names)).items():
            if (given := getattr(knobs, name)) != value:
                raise ConfigError(f"knobs.{name} must be {value} in a user's loop, {reason}, got {given}")
    if not policy.exact and knobs.action != "freeze":
        raise ConfigError(
            f"knobs.action must be freeze in a user's loop, whose samples cannot be left out, got {knobs.action}"
        )


def check_same(group: Group, tables: Sequence[TableSpec], rates: TableRates, dtype: torch.dtype) -> None:
    """Raise ConfigError on all ranks where one has other tables, or updates rows by another rule."""
    if group.is_alone:
        return
    shapes = [f"{table.name}, {table.rows} x {table.dim}, of {dtype}" for table in tables]
    found = group.share([rates.shown, shapes])
    first_rule, first = found[0]
    for rank, (rule, other) in enumerate(found):
        if rule != first_rule:
            raise ConfigError(
                f"the optimizer of rows must be the same on all ranks, got {first_rule} on rank 0 and {rule} on rank {rank}"
            )
        differing = [pair for pair in zip_longest(first, other, fillvalue="none") if pair[0] != pair[1]]
        if differing:
            raise ConfigError(
                f"tables must be the same on all ranks, got {differing[0][0]} on rank 0 and {differing[0][1]} on rank {rank}"
            )


def check_ranks(group: Group) -> None:
    """Raise ConfigError where a process group was opened after the runtime was made: its rows would come apart."""
    if group.is_alone and (ranks := ranks_of_script()) > 1:
        raise ConfigError(
            f"torch.distributed.init_process_group must be called before tables are moved into two tiers, there are {ranks} "
            "processes in the group now and there was one then"
        )
