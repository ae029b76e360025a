"""What a user says of a runtime of their own: policy, budget, rates, knobs; and how it is built from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch

from adaptive_rec.batch import TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.config.tree import Config, validate
from adaptive_rec.embedding.optimizer import RULES
from adaptive_rec.embedding.staged.streams import CudaStreams, Streams
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.modules.rates import Rates, named_rates
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import build_store
from adaptive_rec.system.host_memory import keep_freed_memory

DEFAULT_BUDGET = "256MiB"
PRECISIONS = {torch.float32: "float32", torch.float64: "float64"}


class Options(TypedDict, total=False):
    """Keyword arguments that every way to make a runtime takes."""

    policy: str
    """By name, by entry point, or as package.module:Class; one that does not arrange the stream. Default: hotline."""
    budget: int | str
    """Device memory for hot rows, with their optimizer state: bytes, or a text such as "2GiB"."""
    optimizer: str | torch.optim.Optimizer | None
    """sgd, adagrad, rowwise_adagrad, lazy_adam; or (`wrap`) a torch optimizer that holds the tables."""
    lr: float | None
    """Learning rate of rows, where the optimizer is a name."""
    eps: float | None
    betas: tuple[float, float] | None
    knobs: Mapping[str, Any]
    """Further knobs by name (`adaptive_rec.config.knobs.Knobs`)."""
    seed: int


def own_rates(options: Options) -> Rates:
    """The rates of a module that makes its own runtime. Raises ConfigError."""
    optimizer, rules = options.get("optimizer"), ", ".join(RULES)
    if optimizer is None:
        raise ConfigError(
            f"optimizer must be given: one of {rules}, or to wrap() the torch optimizer that holds the tables"
        )
    if not isinstance(optimizer, str):
        raise ConfigError(
            f"optimizer must be the name of a rule ({rules}), got {optimizer!r}; "
            "wrap(model, optimizer=...) takes an optimizer of torch.optim"
        )
    return named_rates(optimizer, options.get("lr"), options.get("eps"), options.get("betas"))


def setup_of(options: Options, device: torch.device) -> Setup:
    """What does not concern rates. Raises TypeError for a word that is none of `Options`."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown keyword argument {sorted(unknown)[0]}{did_you_mean(sorted(unknown)[0], Options.__annotations__)}"
        )
    given = {name: value for name, value in options.items() if name in ("policy", "budget", "knobs", "seed")}
    if given.get("budget", 0) is None:
        del given["budget"]
    return Setup(**given, device=device)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Setup:
    """Those that do not concern rates, with their defaults."""

    policy: str = "hotline"
    budget: int | str = DEFAULT_BUDGET
    knobs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: torch.device = torch.device("cpu")
    streams: Streams | None = None
    """A device's queues, where the device is none of torch's own: for tests."""

    def build(
        self, tables: tuple[TableSpec, ...], rule: OptimizerConfig, dtype: torch.dtype
    ) -> tuple[Config, Policy, EmbeddingStore]:
        """Configuration, policy and store. Rows are zeros. Raises ConfigError where these do not go together."""
        if dtype not in PRECISIONS:
            raise ConfigError(f"dtype of tables must be torch.float32 or torch.float64, got {dtype}")
        if "policy" in self.knobs or "hot_budget_bytes" in self.knobs:
            raise ConfigError("policy and hot_budget_bytes are given as policy= and budget=, not among the knobs")
        try:
            knobs = Knobs().changed({"hot_budget_bytes": self.budget})
        except ConfigError:  # which calls it by the knob's name
            raise ConfigError(
                f'budget must be a whole number of bytes, 0 or more, or a text such as "2GiB", got {self.budget!r}'
            ) from None
        knobs = knobs.changed({"action": "freeze", **self.knobs, "policy": self.policy})
        run = {"seed": self.seed, "precision": PRECISIONS[dtype], "split": "never"}
        config = validate({"run": run, "optimizer": rule.model_dump(), "knobs": knobs.model_dump()})
        policy = load_policy(self.policy)
        check_policy_fits(policy, config.knobs.action)
        streams = self.streams or (CudaStreams(self.device, False) if self.device.type == "cuda" else None)
        keep_freed_memory()
        space = RowSpace.by_pool(tables)
        return config, policy, build_store(config, space, policy, streams, drawn=False)


def check_policy_fits(policy: Policy, action: str) -> None:
    """Raise ConfigError where a policy cannot have its way in a loop that is not the runtime's own."""
    if policy.arranges_stream or policy.request_per_table:
        why = "arranges the stream" if policy.arranges_stream else "keeps every table by itself"
        raise ConfigError(f"policy must leave the stream to the loop, {policy.name} {why}; it needs adaptive-rec train")
    if not policy.exact and action != "freeze":
        raise ConfigError(
            f"knobs.action must be freeze in a loop that is not the runtime's own, whose samples cannot be left out, got {action}"
        )
