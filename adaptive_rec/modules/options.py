"""Options of a runtime for the user's training loop, and the parts of the runtime that they define."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import ON_DISK, Config, hot_part, validate
from adaptive_rec.embedding.device import row_bytes
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.kernels.key_map import MOST_ROWS
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.modules.loop_checks import check_budget, check_knobs_of_ids, check_policy_fits, moving_of
from adaptive_rec.modules.loop_disk import build_on_disk
from adaptive_rec.modules.rates import Rates, named_rates, rates_of_class
from adaptive_rec.modules.table_rates import TableRates
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import build_store
from adaptive_rec.runtime.capabilities import check_features, of_loop
from adaptive_rec.system.group import Alone, Group
from adaptive_rec.system.host_memory import keep_freed_memory
from adaptive_rec.system.torch_group import TorchGroup

DEFAULT_BUDGET = "256MiB"
PRECISIONS = {
    torch.float32: ("float32", "float32"),
    torch.float64: ("float64", "float32"),
    torch.bfloat16: ("float32", "bf16"),
    torch.float16: ("float32", "fp16"),
}
"""By the type of tables: run.precision and run.row_precision. Updates of rows of 16 bits are computed in float32."""
TYPES = "torch.float32, torch.float64, torch.bfloat16 or torch.float16"


class Options(TypedDict, total=False):
    """Keyword arguments of `wrap`, `AdaptiveEmbeddingBag` and `AdaptiveEmbeddingBagCollection`."""

    policy: str
    """A name, an entry point or package.module:Class; the policy must not arrange the stream. Default: hotline."""
    budget: int | str
    """Device memory for hot rows and their optimizer state: bytes, or a text such as "2GiB"."""
    host_memory: int | str
    """On a CPU, memory of each process for rows with their optimizer state; cold rows then lie on a disk. Seven eighths of it
    hold hot rows, unless `budget` is given."""
    disk: str | Path
    """Folder for the cold rows, where `host_memory` is given. They have a folder of their own in it, which is removed when the
    runtime is no longer in use."""
    optimizer: str | torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Callable[..., torch.optim.Optimizer] | None
    """A rule's name (sgd, adagrad, ...; docs/models.md has all), or an optimizer of torch.optim that holds the weights, or for
    `wrap` a list of optimizers of which each holds some, or the class of one that will, or a ``functools.partial`` of
    the class with the options that it will be made with."""
    update: str | None
    """Where rows are updated: "step", in the optimizer's ``step()``, with all that torch does before it (sums over backward
    passes, clipping, ``GradScaler``); "backward", at the end of each backward pass, which keeps no gradients. By default
    "backward" for a rule's name, otherwise "step"."""
    lr: float | None
    """Learning rate of rows, where `optimizer` is a name."""
    eps: float | None
    betas: tuple[float, float] | None
    knobs: Mapping[str, Any]
    """Values of other knobs by name (`adaptive_rec.config.knobs.Knobs`)."""
    seed: int
    ids: str
    """"rows" (the default): ids are numbers of rows. "raw": ids are any whole numbers of 64 bits; in training mode an id gets a
    row with the call that makes `admit_after` (a knob) lookups of it."""
    shared_rows: int
    """With raw ids: rows besides, in each table, that ids without a row of their own share. Default: 1."""


def bytes_of(option: str, value: Any) -> int:
    """Return an option's value in bytes. Raises ConfigError."""
    try:
        return Knobs().changed({"hot_budget_bytes": value}).hot_budget_bytes
    except ConfigError:  # it names the knob, not the option
        raise ConfigError(
            f'{option} must be a whole number of bytes, 0 or more, or a text such as "2GiB", got {value!r}'
        ) from None


def rates_from(options: Options) -> Rates:
    """Return the rates that the options name. Raises ConfigError."""
    optimizer, rules = options.get("optimizer"), ", ".join(NAMED_RULES)
    if optimizer is None:
        raise ConfigError(
            f"optimizer must be given: one of {rules}, or to wrap() the torch optimizer that holds the tables"
        )
    if isinstance(optimizer, (type, partial)):
        if given := [name for name in ("lr", "eps", "betas") if options.get(name) is not None]:
            raise ConfigError(f"{given[0]} must be left to the optimizer that will be made, got {options[given[0]]}")  # type: ignore[literal-required]
        return rates_of_class(optimizer)
    if not isinstance(optimizer, str):
        raise ConfigError(
            f"optimizer must be the name of a rule ({rules}) or a class of torch.optim, got {type(optimizer).__name__}; "
            "wrap(model, optimizer=...) takes an optimizer of torch.optim, or a list of such"
        )
    return named_rates(optimizer, options.get("lr"), options.get("eps"), options.get("betas"))


def setup_from(options: Options, device: torch.device) -> Setup:
    """Return the options that do not concern rates. Raises TypeError for an unknown keyword."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown keyword argument {sorted(unknown)[0]}{did_you_mean(sorted(unknown)[0], Options.__annotations__)}"
        )
    own = ("policy", "budget", "host_memory", "disk", "knobs", "seed", "ids", "shared_rows")
    given = {name: value for name, value in options.items() if name in own}
    _check_ids(options)
    return Setup(**given, device=device, update=_update_from(options), group=TorchGroup.beside())  # type: ignore[arg-type]


def _check_ids(options: Options) -> None:
    """Raise ConfigError where the options of ids are wrong."""
    ids, shared_rows = options.get("ids", "rows"), options.get("shared_rows", 1)
    if ids not in ("rows", "raw"):
        raise ConfigError(f"ids must be rows or raw, got {ids!r}")
    if isinstance(shared_rows, bool) or not isinstance(shared_rows, int) or shared_rows < 1:
        raise ConfigError(f"shared_rows must be a whole number, 1 or more, got {shared_rows!r}")
    if ids == "rows" and shared_rows != 1:
        raise ConfigError(f"shared_rows must be left out unless ids are raw, got {shared_rows}")


def _update_from(options: Options) -> str:
    """Return where rows are updated. Raises ConfigError."""
    optimizer, update = options.get("optimizer"), options.get("update")
    if update not in (None, "step", "backward"):
        raise ConfigError(f"update must be step or backward, got {update!r}")
    if isinstance(optimizer, str):
        if update == "step":
            raise ConfigError(f"update must be backward for the rule {optimizer}, which no optimizer carries out, got step")
        return "backward"
    if isinstance(optimizer, (type, partial)) and update == "backward":
        raise ConfigError(
            "update must be step where the optimizer is yet to be made, as its learning rate is not known, got backward"
        )
    return update or "step"


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
        host_memory = bytes_of("host_memory", self.host_memory)
        budget = self.budget if self.budget is not None else (hot_part(host_memory) or DEFAULT_BUDGET)
        of_disk = ON_DISK if host_memory else {}
        knobs = Knobs().changed({"action": "freeze", **of_disk, **self.knobs, "policy": self.policy})
        knobs = knobs.changed({"hot_budget_bytes": bytes_of("budget", budget)})
        run = {
            "seed": self.seed, "precision": precision, "row_precision": row_precision, "split": "never",
            "host_memory": host_memory,
        }  # fmt: skip
        data = {"ids": "raw", "shared_rows": self.shared_rows} if self.raw else {}
        check_knobs_of_ids(knobs, self.raw)
        config = validate({"run": run, "knobs": knobs.model_dump(), "data": data})
        policy = load_policy(self.policy)
        place = "cpu" if self.streams is None and self.device.type == "cpu" else str(self.device)
        size = str(host_memory) if host_memory else ""
        moving, several = moving_of(rates), not self.group.is_alone
        check_features(of_loop(config.knobs, policy, self.raw, several, moving, str(dtype), place, size))
        check_policy_fits(policy, config.knobs)
        if dtype.itemsize == 2:
            for each in rates.distinct:
                each.round_rows(row_precision)
        if self.budget is not None:
            sizes = row_bytes(space, rates.rules_of(space), 8 if dtype == torch.float64 else 4, policy.tracks_movement)
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
            return config, policy, build_on_disk(config, space, policy, rules, self._folder_on_disk(host_memory))
        return config, policy, build_store(config, space, policy, streams, drawn=self.raw, rule=rules)

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
