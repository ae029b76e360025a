"""The options of a runtime that do not concern rates, and the store that they define."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import ON_DISK, Config, hot_part, validate
from adaptive_rec.embedding.device import row_bytes
from adaptive_rec.embedding.disk.scratch import ScratchFolder
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError
from adaptive_rec.kernels.key_map import MOST_ROWS
from adaptive_rec.modules.loop.checks import check_budget, check_knobs_of_ids, check_policy_fits, moving_of
from adaptive_rec.modules.loop.rates import Rates
from adaptive_rec.modules.loop.table_rates import TableRates
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import build_store
from adaptive_rec.runtime.capabilities import check_features, of_loop
from adaptive_rec.system.durable import make_folders
from adaptive_rec.system.group import Alone, Group
from adaptive_rec.system.host_memory import keep_freed_memory

DEFAULT_BUDGET = "256MiB"
PRECISIONS = {
    torch.float32: ("float32", "float32"),
    torch.float64: ("float64", "float32"),
    torch.bfloat16: ("float32", "bf16"),
    torch.float16: ("float32", "fp16"),
}
"""By the type of tables: run.precision and run.row_precision. Updates of rows of 16 bits are computed in float32."""
TYPES = "torch.float32, torch.float64, torch.bfloat16 or torch.float16"


def _bytes_of(option: str, value: Any) -> int:
    """Return an option's value in bytes. Raises ConfigError."""
    try:
        return Knobs().changed({"hot_budget_bytes": value}).hot_budget_bytes
    except ConfigError:  # it names the knob, not the option
        raise ConfigError(
            f'{option} must be a whole number of bytes, 0 or more, or a text such as "2GiB", got {value!r}'
        ) from None


@dataclass(frozen=True)
class Setup:
    """The options that do not concern rates, with their defaults."""

    policy: str = "hotline"
    budget: int | str | None = None
    host_memory: int | str = 0
    disk: str | Path | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: torch.device = torch.device("cpu")
    update: str = "backward"
    """Where rows are updated: step or backward."""
    ids: str = "rows"
    """What ids are: rows or raw."""
    shared_rows: int = 1
    padded: bool = False
    """With raw ids: whether the last row of each table is that of a padding id."""
    streams: Streams | None = None
    """Queues of a device that tests make up."""
    group: Group = field(default_factory=Alone)
    """The processes that train together: those of the script's process group."""

    def build(
        self, space: RowSpace, rates: Rates | TableRates, dtype: torch.dtype
    ) -> tuple[Config, Policy, EmbeddingStore]:
        """Build configuration, policy and the store of a row space; all rows are 0, or drawn where ids are raw. `dtype`: type
        of the tables. Raises ConfigError where the options do not fit together."""
        if dtype not in PRECISIONS:
            raise ConfigError(f"dtype of tables must be {TYPES}, got {dtype}")
        precision, row_precision = PRECISIONS[dtype]
        rates = rates if isinstance(rates, TableRates) else TableRates(rates, len(space.tables))
        if "policy" in self.knobs or "hot_budget_bytes" in self.knobs:
            raise ConfigError("policy and hot_budget_bytes must be given as policy= and budget=, not among the knobs")
        if self.raw:
            self._check_raw(space)
        host_memory = _bytes_of("host_memory", self.host_memory)
        on_cpu = self.streams is None and self.device.type == "cpu"
        budget = self.budget if self.budget is not None else (hot_part(host_memory) * on_cpu or DEFAULT_BUDGET)
        of_disk = ON_DISK if host_memory else {}
        knobs = Knobs().changed({"action": "freeze", **of_disk, **self.knobs, "policy": self.policy})
        knobs = knobs.changed({"hot_budget_bytes": _bytes_of("budget", budget)})
        run = {
            "seed": self.seed, "precision": precision, "row_precision": row_precision, "split": "never",
            "host_memory": host_memory,
        }  # fmt: skip
        data = {"ids": "raw", "shared_rows": self.shared_rows} if self.raw else {}
        check_knobs_of_ids(knobs, self.raw)
        config = validate({"run": run, "knobs": knobs.model_dump(), "data": data})
        policy = load_policy(self.policy)
        place = "cpu" if on_cpu else str(self.device)
        size = str(host_memory) if host_memory else ""
        moving, several = moving_of(rates), not self.group.is_alone
        check_features(of_loop(config.knobs, policy, self.raw, several, moving, str(dtype), place, size))
        check_policy_fits(policy, config.knobs)
        if dtype.itemsize == 2:
            for each in rates.distinct:
                each.round_rows(row_precision)
        if self.budget is not None:
            itemsize, records = 8 if dtype == torch.float64 else 4, policy.records_movement(config.knobs)
            sizes = row_bytes(space, rates.rules_of(space), itemsize, records)
            check_budget(space, sizes, policy, config.knobs, "budget")
        streams = self.streams or (CudaStreams(self.device, False) if self.device.type == "cuda" else None)
        rules = rates.rules_of(space)
        if streams is not None and len(set(rules)) > 1:
            raise ConfigError(
                f"tables on a device must be updated by one rule, got {rates.name}; call wrap with each optimizer and the module "
                "of its tables"
            )
        keep_freed_memory()
        if host_memory or self.disk is not None:
            folder = self._folder_on_disk(host_memory)
            return config, policy, _build_on_disk(config, space, policy, streams, rules, folder, self.group.rank)
        return config, policy, build_store(config, space, policy, streams, drawn=self.raw, rule=rules, dice=self.group.rank)

    @property
    def raw(self) -> bool:
        """Whether ids are raw."""
        return self.ids == "raw"

    def rows_of_table(self, rows: int) -> int:
        """Return the rows that a table has, of which `rows` are for ids of their own."""
        return rows + self.shared_rows + self.padded if self.raw else rows

    def _check_raw(self, space: RowSpace) -> None:
        """Raise ConfigError where tables have too many rows for raw ids."""
        if (rows := space.rows * self.group.ranks) > MOST_ROWS:
            raise ConfigError(f"tables of raw ids must have at most {MOST_ROWS:,} rows in all, got {rows:,}")

    def _folder_on_disk(self, host_memory: int) -> Path:
        """Return the folder given for cold rows. Raises ConfigError where they cannot lie on a disk."""
        if not host_memory or self.disk is None:
            raise ConfigError(f"host_memory and disk must be given together, got {host_memory} and {self.disk!r}")
        return Path(self.disk)


def _build_on_disk(
    config: Config, space: RowSpace, policy: Policy, streams: Streams | None, rules: Sequence[RowRule], disk: Path,
    dice: int,
) -> EmbeddingStore:
    """Build a store whose cold rows lie in a new folder within `disk`, which is removed with the store: what a loop saves has the
    rows themselves. Raises ConfigError."""
    try:
        make_folders(disk)
        folder = ScratchFolder(disk, "rows-")
    except OSError as error:
        raise ConfigError(f"disk must be a folder that can be written to, {disk} is not: {error.strerror}") from None
    with folder:
        store = build_store(config, space, policy, streams, rule=rules, rows=folder.path, dice=dice)
        folder.keep_for(store)
    return store
