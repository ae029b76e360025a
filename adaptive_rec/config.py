"""The configuration: one frozen tree, put together once before the run.

Layers, the later wins: defaults < TOML file or preset < environment (``ADAPTIVE_REC_SECTION__KEY``) <
``--set section.key=value``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PositiveInt, ValidationError, model_validator

from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.knobs import Bytes, Frozen, Knobs, describe, knob

ENVIRONMENT_PREFIX = "ADAPTIVE_REC_"
PRESETS_FOLDER = Path(__file__).parent / "configs"

CRITEO_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Rows of the 26 Criteo Kaggle tables, as in the DLRM reference."""


CORES_FOR_CLASSIFYING_AHEAD = 8
"""On fewer, the dense part has all of them busy, and a worker beside it holds it up for longer than it takes itself."""


@dataclass(frozen=True)
class ThreadBudget:
    """Threads of a run by what they do. Reading, staging, putting rows home and tracking have one more each."""

    dense: int
    classify: int
    """0 leaves it to the training thread."""
    copy: int


class RunConfig(Frozen):
    seed: int = knob(1, "number", "Seed of initialisation, data order, probes and sampling.", ge=0, le=2**63 - 1)
    steps: int = knob(2000, "steps", "Mini-batches to train on; 0 means as many as data.epochs holds.", ge=0)
    batch_size: PositiveInt = knob(512, "samples", "Samples of a mini-batch.")
    device: Literal["auto", "cpu", "cuda"] = knob(
        "auto", "name", "Where the dense part and the hot rows live; auto takes CUDA where there is one."
    )
    precision: Literal["float32", "bf16", "float64"] = knob(
        "float32", "name", "bf16 is autocast of the dense part; float64 exists to prove parity."
    )
    row_precision: Literal["float32", "bf16", "fp16"] = knob(
        "float32",
        "name",
        "Storage of embedding rows; 16 bits halve their memory, and rows are rounded stochastically at each update; "
        "optimizer state stays float32.",
    )
    split: Literal["auto", "always", "never"] = knob(
        "auto",
        "name",
        "Run popular samples as a micro-batch of their own; auto tries and times it on a device, and leaves it on the CPU.",
    )
    compile: bool = knob(
        False,
        "switch",
        "On a CPU, compile the dense part with torch.compile before the first step; pays in bf16, needs a C++ compiler.",
    )
    cuda_graphs: bool = knob(
        True, "switch", "On CUDA, record the dense part once for each size of micro-batch and replay it from then on."
    )
    threads: int = knob(
        0, "threads", "Threads of the dense part, and of the kernels on a CPU; 0 takes all cores it may use.", ge=0
    )
    classify_threads: int = knob(
        0,
        "threads",
        "Threads that classify batches ahead; 0 takes a quarter of the cores, but on a CPU of fewer than 8 leaves it to "
        "the training thread.",
        ge=0,
    )
    copy_threads: int = knob(
        0,
        "threads",
        "On a device, threads that copy rows between host memory and staging; 0 takes a quarter of the cores, from 1 to 8.",
        ge=0,
    )

    def thread_budget(self, stages_ahead: bool) -> ThreadBudget:
        """What is configured; what is left at 0 comes from the cores this process may use."""
        cores = len(os.sched_getaffinity(0))
        quarter = max(1, cores // 4)
        ahead = quarter if stages_ahead or cores >= CORES_FOR_CLASSIFYING_AHEAD else 0
        return ThreadBudget(self.threads or cores, self.classify_threads or ahead, self.copy_threads or min(8, quarter))

    @model_validator(mode="after")
    def _check_row_precision(self) -> RunConfig:
        if self.precision == "float64" and self.row_precision != "float32":
            raise ValueError(
                f"row_precision must be float32 where precision is float64 (rows are of 64 bits then), got {self.row_precision}"
            )
        return self


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
    drift_ranks: float = knob(
        0.0,
        "ranks/1000 samples",
        "Gradual drift: ranks by which the popularity order moves on each 1000 samples.",
        ge=0,
    )
    sudden_drift_at: int = knob(0, "samples", "Sample at which popularity jumps to other rows; 0 is never.", ge=0)
    teacher_jump_at: int = knob(0, "samples", "Sample at which the teacher's weights are drawn anew; 0 is never.", ge=0)
    teacher_scale: float = knob(1.0, "logits", "Standard deviation of the planted teacher's logit.", ge=0)
    label_ratio: float = knob(0.25, "ratio", "Share of positive labels at the teacher's mean logit.", gt=0, lt=1)


class DataConfig(Frozen):
    source: str = knob(
        "synthetic", "path", "synthetic, a Criteo TSV file (plain, .gz or .zst), or a folder that data prepare made."
    )
    table_rows: tuple[PositiveInt, ...] = Field(
        CRITEO_KAGGLE_ROWS,
        description="Rows of each table: one sparse feature each.",
        json_schema_extra={"unit": "rows"},
        min_length=1,
        strict=False,
    )
    max_table_rows: PositiveInt = knob(100_000, "rows", "Tables are cut to this size; ids are folded into it.")
    feature_tables: tuple[int, ...] = Field(
        (),
        description="Table of each sparse feature, where several share one; empty: feature i has table i.",
        json_schema_extra={"unit": "index"},
        strict=False,
    )
    dense_features: PositiveInt = knob(13, "features", "Dense features of a sample.")
    pooling: Literal["sum", "mean"] = knob("sum", "name", "How the rows of a bag become one vector.")
    ids: Literal["auto", "hash", "contiguous"] = knob(
        "auto",
        "name",
        "hash folds a file's ids into table_rows; contiguous numbers the ids that occur (file held in memory); "
        "auto is contiguous up to in_memory_bytes.",
    )
    in_memory_bytes: Bytes = knob(
        1 << 30, "bytes", "Largest file, by decompressed size, that auto holds in memory.", ge=0
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
    synthetic: SyntheticConfig = SyntheticConfig()

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
        if any(not 0 <= table < len(self.table_rows) for table in self.feature_tables):
            raise ValueError(
                f"feature_tables must name tables 0 to {len(self.table_rows) - 1}, got {list(self.feature_tables)}"
            )
        return self


class ModelConfig(Frozen):
    name: Literal["dlrm"] = knob("dlrm", "name", "The dense part.")
    embedding_dim: PositiveInt = knob(16, "components", "Dim of every embedding row.")
    table_dims: tuple[PositiveInt, ...] = Field(
        (),
        description="Dim of each table where they differ; a linear map brings them to embedding_dim.",
        json_schema_extra={"unit": "components"},
        strict=False,
    )
    bottom_mlp: tuple[PositiveInt, ...] = Field(
        (512, 256, 64),
        description="Hidden widths of the bottom MLP.",
        json_schema_extra={"unit": "units"},
        strict=False,
    )
    top_mlp: tuple[PositiveInt, ...] = Field(
        (512, 256), description="Hidden widths of the top MLP.", json_schema_extra={"unit": "units"}, strict=False
    )


class OptimizerConfig(Frozen):
    embedding: Literal["sgd", "rowwise_adagrad", "adagrad", "lazy_adam"] = knob(
        "rowwise_adagrad", "name", "Update rule of embedding rows; Adam is lazy: only touched rows move."
    )
    embedding_lr: float = knob(0.02, "rate", "Learning rate of embedding rows.", gt=0)
    dense: str = knob("Adagrad", "name", "Any optimizer of torch.optim, by its class name.")
    dense_lr: float = knob(0.01, "rate", "Learning rate of the dense part.", gt=0)
    dense_options: dict[str, float | bool] = knob({}, "table", "Further arguments of the dense optimizer.")
    eps: float = knob(1e-8, "number", "Added to the denominator by Adagrad and Adam.", gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.999), description="Decay of Adam's two moments.", json_schema_extra={"unit": "ratio"}, strict=False
    )
    warmup_steps: int = knob(0, "steps", "Steps over which both learning rates rise linearly from 0.", ge=0)
    decay_start: int = knob(0, "steps", "Step at which both learning rates begin to fall.", ge=0)
    decay_steps: int = knob(0, "steps", "Steps over which they fall quadratically to 0; 0 is never.", ge=0)


class EvalConfig(Frozen):
    every_steps: int = knob(0, "steps", "Steps between evaluations on held-out rows; 0: only at the end.", ge=0)
    batch_size: PositiveInt = knob(8192, "samples", "Samples of an evaluation batch.")
    max_samples: int = knob(0, "samples", "Held-out samples to use; 0 is all.", ge=0)


class Config(Frozen):
    """Everything that is fixed for a run, and the knobs' starting values."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    knobs: Knobs = Knobs()

    @model_validator(mode="after")
    def _check_table_dims(self) -> Config:
        dims, tables = self.model.table_dims, self.data.table_rows
        if dims and len(dims) != len(tables) and not os.path.isdir(self.data.source):  # a folder knows its own tables
            raise ValueError(f"model.table_dims must have one entry for each of {len(tables)} tables, got {len(dims)}")
        return self


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, pydantic field) for every key of the tree, in order."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def presets() -> list[str]:
    """Names of the presets that ship with the package."""
    return sorted(path.stem for path in PRESETS_FOLDER.glob("*.toml"))


def load_config(source: str | None, environment: Mapping[str, str], settings: Sequence[str] = ()) -> Config:
    """Build the configuration from a preset name or TOML path, the environment, and ``section.key=value`` strings."""
    tree: dict[str, Any] = {}
    if source is not None:
        path = Path(source)
        if not path.suffix and not path.exists():
            path = PRESETS_FOLDER / f"{source}.toml"
            if not path.exists():
                raise ConfigError(
                    f"no preset or file named {source}{did_you_mean(source, presets())} (presets: {', '.join(presets())})"
                )
        _merge(tree, _read_toml(path), f"in {source}")
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _merge(tree, _nested(key, _literal(environment[name])), f"in environment variable {name}")
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set takes section.key=value, got {setting!r}")
        _merge(tree, _nested(key.strip(), _literal(value.strip())), "in --set")
    return validate(tree)


def validate(tree: Mapping[str, Any]) -> Config:
    """Check a nested mapping against the tree's rules."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(describe(error)) from None


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; training from it reruns the same run."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(mode="json"))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from None


def _literal(text: str) -> Any:
    """A value as TOML would read it; text that is no TOML value is a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(
    tree: dict[str, Any], layer: Mapping[str, Any], where: str, model: type[BaseModel] = Config, prefix: str = ""
) -> None:
    """Lay one layer over the tree; a key the tree does not have is an error that names the nearest one."""
    for name, value in layer.items():
        if name not in model.model_fields:
            known = [key for key, _ in leaves(Config)] + list(Config.model_fields)
            raise ConfigError(f"unknown key {prefix}{name} {where}{_nearest_key(prefix + name, known)}")
        kind = model.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{prefix}{name} is a section and takes keys, got {value!r} {where}")
            _merge(tree.setdefault(name, {}), value, where, kind, f"{prefix}{name}.")
        else:
            tree[name] = value


def _nearest_key(key: str, known: list[str]) -> str:
    """Suggest a key with the same last part in another section first, then the nearest spelling."""
    for candidate in known:
        if candidate.rpartition(".")[2] == key.rpartition(".")[2]:
            return f"; did you mean {candidate}?"
    return did_you_mean(key, known)
