"""What the settings of a run must keep to before anything is made: one list for a run, its dry run and its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source, has_groups
from adaptive_rec.dense.linear import linear_layers
from adaptive_rec.embedding.device import all_rows_bytes, row_bytes
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import AdaptiveRecError, ConfigError, DataError
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.runtime.capabilities import check_features, features_of_run
from adaptive_rec.runtime.knob_checks import check_admit_after, check_change

NAME_GROUP = "train --group COLUMN reads the groups, such as users, from a column of CSV, TSV or Parquet files"


def check_settings(config: Config, policy: Policy, on_device: bool, several: bool = False, trains: bool = True) -> None:
    """Check what shows without the data. `on_device`: whether steps run on a GPU; `several`: whether processes train together;
    `trains`: False for a run that is only scored. Raises ConfigError."""
    check_features(features_of_run(config, policy, on_device, several, trains))
    config.eval.check_window()
    if config.run.linear == "onednn":
        linear_layers(config.run.linear, config.run.compile, config.run.batch_size)


def check_rows(
    config: Config, policy: Policy, space: RowSpace, on_device: bool, saves: bool = True, acts: bool = True
) -> None:
    """Check what depends on the rows: their bytes, and what rules of the watchdog change. `saves`: whether the run writes
    checkpoints; `acts`: False for a replay, in which rules do nothing. Raises ConfigError."""
    rule = RowRule.of(config.optimizer, config.run.row_precision)
    sizes = row_bytes(space, rule, 8 if config.run.precision == "float64" else 4, policy.records_movement(config.knobs))
    rows_bytes = all_rows_bytes(space, sizes)
    limit = 0 if on_device else config.run.host_memory
    if limit:
        from adaptive_rec.runtime.rows_on_disk import check_hot_rows

        check_hot_rows(limit, policy, policy.budget_bytes(config.knobs, rows_bytes))

    def change(after: Knobs) -> None:
        raw = config.data.ids == "raw"
        check_change(config.knobs, after, policy, raw, limit, rows_bytes)
        check_admit_after(config.knobs, after, policy, raw)

    if acts:
        check_rules(config, policy, change, saves)


def check_scored(config: Config, source: Source) -> None:
    """Raise DataError where a run has no samples to be scored on, ConfigError where they have no groups to be ranked within."""
    check_groups(config.eval.metrics, has_groups(source), config.data.source)
    if not source.test_samples and not config.data.follow:
        raise DataError(
            f"data.test_range must hold at least one sample, on which the run is scored at its end; "
            f"{list(config.data.test_range)} of {config.data.source} holds none",
            faq="nothing-held-out",
        )


def check_groups(metrics: Sequence[str], grouped: bool, data: str) -> None:
    """Raise ConfigError where metrics rank the samples of groups that the data does not have."""
    if metrics and not grouped:
        names = ", ".join(metrics)
        raise ConfigError(f"eval.metrics must be empty where rows have no groups, got {names} of {data}; {NAME_GROUP}")


def check_rules(config: Config, policy: Policy, change: Callable[[Knobs], None], saves: bool) -> None:
    """Raise ConfigError where a run cannot do what a rule says. `change` raises where its knobs cannot change to others; `saves`:
    whether the run has a folder for checkpoints."""
    for rule in config.watch.parsed():
        try:
            change(config.knobs.changed({each.name: each.of(config.knobs) for each in rule.knobs}))
        except AdaptiveRecError as error:
            text = f"watch.rules must change knobs to what the run can take, got {rule.text!r}: {error}"
            raise ConfigError(text) from None
        if rule.action == "rollback" and not saves:
            raise ConfigError(f"watch.rules must not roll back where the run writes no checkpoints, got {rule.text!r}")
        if rule.skips_data and (policy.arranges_stream or config.data.follow):
            which = "data is followed" if config.data.follow else "the policy arranges the stream"
            raise ConfigError(f"watch.rules must not skip data where {which}, got {rule.text!r}")


def check_admission(config: Config) -> None:
    """Raise ConfigError where a knob is set that is for raw ids, and ids are rows."""
    if config.data.ids != "raw" and config.knobs.admit_after != 1:
        raise ConfigError(f'knobs.admit_after must be 1 unless data.ids = "raw", got {config.knobs.admit_after}')
