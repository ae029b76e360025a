"""The settings of the data of a run: a file, a prepared folder, or the synthetic stream."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from adaptive_rec.config.knobs import Bytes, Frozen, knob
from adaptive_rec.errors import ConfigError

CRITEO_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Rows of the 26 Criteo Kaggle tables, as in the DLRM reference."""


class SyntheticConfig(Frozen):
    samples: PositiveInt = knob(2_000_000, "samples", "Length of the training stream (one epoch).")
    test_samples: PositiveInt = knob(50_000, "samples", "Samples of the held-out set; they follow the training stream.")
    zipf_exponent: float = knob(
        1.05, "exponent", "Skew of every table: popularity of rank r falls as r to the minus this.", ge=0, le=4
    )
    popular_ratio: float = knob(
        0.5,
        "ratio",
        "Share of samples whose every id is drawn from the head of its table; correlates the tables.",
        ge=0,
        le=1,
    )
    head_ratio: float = knob(0.01, "ratio", "Share of a table's rows (at least one) that forms its head.", gt=0, le=1)
    lookups_per_feature: PositiveInt = knob(
        1, "ids", "Mean ids of a bag; above 1 bags are multi-hot, empty ones included."
    )
    feature_lookups: tuple[PositiveInt, ...] = Field(
        (),
        description="Fixed number of ids of each feature's bag; empty: lookups_per_feature for all.",
        json_schema_extra={"unit": "ids"},
        strict=False,
    )
    drift_ranks: float = knob(
        0.0,
        "ranks/1000 samples",
        "Gradual drift: ranks by which the popularity order moves on each 1000 samples.",
        ge=0,
    )
    sudden_drift_at: int = knob(0, "samples", "Sample at which popularity jumps to other rows; 0 is never.", ge=0)
    teacher_jump_at: int = knob(0, "samples", "Sample at which the teacher's weights are drawn again; 0 is never.", ge=0)
    teacher_scale: float = knob(1.0, "logits", "Standard deviation of the planted teacher's logit.", ge=0)
    label_ratio: float = knob(0.25, "ratio", "Share of positive labels at the teacher's mean logit.", gt=0, lt=1)


class ImplicitConfig(Frozen):
    negatives: int = knob(
        0,
        "samples",
        "Data whose rows are all positives ([implicit] of its schema): samples with label 0 that are drawn for each row; 0: rows "
        "have labels.",
        ge=0,
        le=1000,
    )
    sampling: Literal["uniform", "popularity"] = knob(
        "uniform", "name", "How the items of negatives are drawn: all alike, or by their training rows to the power of power."
    )
    power: float = knob(
        0.75, "exponent", "Power of an item's training rows under popularity; 1 draws as items in batch come.", ge=0, le=2
    )
    seen: Literal["redraw", "accept"] = knob(
        "redraw",
        "name",
        "A drawn item that the user has among the training rows is drawn again, up to 16 times, or taken; that of the row itself "
        "is drawn again in any case.",
    )


    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not the defaults."""
        return self.model_dump(exclude_defaults=True)


class DataConfig(Frozen):
    source: str = knob(
        "synthetic", "path", "synthetic, a Criteo TSV file (plain, .gz or .zst), or a folder that data prepare made."
    )
    schema_file: str = knob(
        "",
        "path",
        "Raw ids: schema of the CSV, TSV or Parquet file, or folder of them, in source; train --label or --schema sets it.",
    )
    table_rows: tuple[PositiveInt, ...] = Field(
        CRITEO_KAGGLE_ROWS,
        description="Rows of each table: one sparse feature each.",
        json_schema_extra={"unit": "rows"},
        min_length=1,
        strict=False,
    )
    max_table_rows: PositiveInt = knob(100_000, "rows", "Tables are cut to this size; ids are folded into it.")
    scale: float = knob(
        1.0,
        "ratio",
        "Share of each table's rows that is kept (of tables of 100 rows and less all); a large shape on a smaller machine.",
        gt=0,
        le=1,
    )
    feature_tables: tuple[int, ...] = Field(
        (),
        description="Table of each sparse feature, where several share one; empty: feature i has table i.",
        json_schema_extra={"unit": "index"},
        strict=False,
    )
    dense_features: int = knob(13, "features", "Dense features of a sample.", gt=0, le=1 << 20)
    pooling: Literal["sum", "mean"] = knob("sum", "name", "How the rows of a bag become one vector.")
    ids: Literal["auto", "hash", "contiguous", "raw"] = knob(
        "auto",
        "name",
        "hash folds a file's ids into table_rows; contiguous numbers the ids that occur (file held in memory); "
        "auto is contiguous up to in_memory_bytes; raw gives ids rows of their own while the run trains.",
    )
    shared_rows: PositiveInt = knob(
        1, "rows", "Raw ids: rows besides, in each table, that ids without a row of their own share."
    )
    keep_evicted: int = knob(
        0,
        "rows",
        "Raw ids: ids of each table that are kept on the disk when they lose their row, with vector and optimizer state, and "
        "come back with these; beyond that the oldest are dropped. 0 keeps none.",
        ge=0,
        le=1 << 30,
    )
    in_memory_bytes: Bytes = knob(
        1 << 30, "bytes", "Largest file, by decompressed size, that auto holds in memory.", ge=0
    )
    order: Literal["file", "time"] = knob(
        "file",
        "name",
        "Order of the rows: file is that of the files (or with shuffle a drawn one); time is by the time of each row.",
    )
    shuffle: bool = knob(
        True, "switch", "Draw a new order of the training samples each epoch (files in memory, prepared folders)."
    )
    epochs: PositiveInt = knob(1, "passes", "Passes over the training range at the most.")
    train_range: tuple[float, float] = Field(
        (0.0, 0.9),
        description="Part of a file to train on, by position.",
        json_schema_extra={"unit": "ratio"},
        strict=False,
    )
    test_range: tuple[float, float] = Field(
        (0.9, 1.0),
        description="Part of a file held out for evaluation, by position.",
        json_schema_extra={"unit": "ratio"},
        strict=False,
    )
    on_bad_row: Literal["error", "skip"] = knob(
        "error", "name", "A malformed row stops the run, or is counted and skipped."
    )
    follow: bool = knob(
        False,
        "switch",
        "Raw ids of CSV, TSV, Parquet: train on rows as they are appended, or as files come into the folder; none are held out.",
    )
    follow_idle_seconds: float = knob(
        0.0, "seconds", "With follow: the run ends after so long without a new row; 0 waits for ever.", ge=0
    )
    synthetic: SyntheticConfig = SyntheticConfig()
    implicit: ImplicitConfig = ImplicitConfig()

    def check_ranges_are_used(self) -> None:
        """Raise ConfigError for parts of a file where the data is synthetic. A run that has trained on it keeps them: they did
        nothing."""
        defaults = {name: list(type(self).model_fields[name].default) for name in ("train_range", "test_range")}
        ways = " and ".join(f"data.{name}={default}".replace(" ", "") for name, default in defaults.items())
        for name, default in defaults.items():
            given = list(getattr(self, name))
            if self.source == "synthetic" and given != default:
                raise ConfigError(
                    f"data.{name} must be {default} where data.source is synthetic, whose sizes are "
                    f"data.synthetic.samples and data.synthetic.test_samples, got {given}: name a file of clicks by "
                    f"--data, or set {ways}"
                )

    @model_validator(mode="after")
    def _check_raw(self) -> DataConfig:
        if self.ids != "raw" and self.shared_rows != 1:
            raise ValueError(f"shared_rows must be 1 unless ids = \"raw\", got {self.shared_rows} with ids = {self.ids!r}")
        if self.ids != "raw" and self.keep_evicted:
            raise ValueError(f"keep_evicted must be 0 unless ids = \"raw\", got {self.keep_evicted} with ids = {self.ids!r}")
        if self.ids != "raw" and self.schema_file:
            raise ValueError(f"schema_file must be empty unless ids = \"raw\", got {self.schema_file!r} with ids = {self.ids!r}")
        if self.follow and self.ids != "raw":
            raise ValueError(f"ids must be \"raw\" where data is followed, got {self.ids!r}")
        if self.follow and self.epochs != 1 and not self.implicit.negatives:  # these two are refused as a pair
            raise ValueError(f"epochs must be 1 where data is followed, got {self.epochs}")
        if self.order == "time" and self.follow:
            raise ValueError('order must be "file" where data is followed, whose rows are trained on as they come, got "time"')
        if self.order == "time" and self.shuffle:
            raise ValueError('shuffle must be false where order = "time", got true')
        if self.order == "time" and self.epochs != 1:
            raise ValueError(
                f'epochs must be 1 where order = "time" (a second one would train on the past again), got {self.epochs}'
            )
        if self.follow_idle_seconds and not self.follow:
            raise ValueError(f"follow_idle_seconds must be 0 unless follow = true, got {self.follow_idle_seconds:g}")
        return self

    @model_validator(mode="after")
    def _check_ranges(self) -> DataConfig:
        for name in ("train_range", "test_range"):
            low, high = getattr(self, name)
            if not 0.0 <= low < high <= 1.0:
                raise ValueError(f"{name} must satisfy 0 <= start < end <= 1, got [{low}, {high}]")
        if max(self.train_range[0], self.test_range[0]) < min(self.train_range[1], self.test_range[1]):
            raise ValueError(
                f"train_range {list(self.train_range)} and test_range {list(self.test_range)} must not overlap"
            )
        bags, features = self.synthetic.feature_lookups, len(self.feature_tables or self.table_rows)
        if bags and len(bags) != features:
            raise ValueError(
                f"synthetic.feature_lookups must have one entry for each of {features} features, got {len(bags)}"
            )
        if any(not 0 <= table < len(self.table_rows) for table in self.feature_tables):
            raise ValueError(
                f"feature_tables must name tables 0 to {len(self.table_rows) - 1}, got {list(self.feature_tables)}"
            )
        return self
