"""The configuration: one frozen tree, assembled once before the run.

Layers, the later wins: defaults < TOML file or preset < environment (``ADAPTIVE_REC_SECTION__KEY``) <
``--set section.key=value``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator

from adaptive_rec.config.checkpoint import CheckpointConfig
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.eval import EvalConfig
from adaptive_rec.config.faults import describe_faults
from adaptive_rec.config.knobs import Frozen, Knobs, within_bounds
from adaptive_rec.config.metrics import is_ranking_metric
from adaptive_rec.config.model import ModelConfig, OptimizerConfig
from adaptive_rec.config.policy import PolicyConfig
from adaptive_rec.config.run import RunConfig
from adaptive_rec.config.trust import ENVIRONMENT_PREFIX
from adaptive_rec.config.watch import WatchConfig
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.system.cuda_driver import may_have_cuda
from adaptive_rec.units import parse_size, toml_number

DESCRIPTION = "run.json"
"""The file beside the `config.toml` of a run's directory."""
PRESETS_FOLDER = Path(__file__).parents[1] / "configs"
MAX_FILE_BYTES = 1 << 20
TOO_DEEP = "values must not be nested so deep"


HOT_PART = 7, 8
"""The part of `run.host_memory` for rows that stay there: on a CPU the hot ones, on a device the most popular cold ones. Rows on
their way and the newest rows of the log take the rest."""
ON_DISK: Mapping[str, Any] = {"hysteresis": 1.0, "decay": "auto"}
"""Knobs where `run.host_memory` is set: a row that leaves memory is written, and read again with its next lookup."""


class Config(Frozen):
    """Everything that is fixed for a run, and the knobs' starting values."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    policy: PolicyConfig = PolicyConfig()
    watch: WatchConfig = WatchConfig()
    knobs: Knobs = Knobs()

    @property
    def whole_tables(self) -> bool:
        """Whether one of several ranks may own a table whole: not where ids get their rows on the way."""
        return self.run.whole_tables and self.data.ids != "raw"

    @model_validator(mode="after")
    def _check_eviction(self) -> Config:
        if fault := self.knobs.eviction_fault(self.data.ids == "raw"):
            raise ValueError(f"knobs.{fault[0]} {fault[1]}")
        return self

    @model_validator(mode="after")
    def _check_table_dims(self) -> Config:
        dims, tables = self.model.table_dims, self.data.table_rows
        knows_tables = self.data.schema_file or os.path.isdir(self.data.source)
        if dims and len(dims) != len(tables) and not knows_tables:
            raise ValueError(f"model.table_dims must have one entry for each of {len(tables)} tables, got {len(dims)}")
        return self

    @model_validator(mode="after")
    def _check_next_window(self) -> Config:
        data, named = self.data, "where eval.mode = \"next_window\""
        if self.eval.mode != "next_window":
            return self
        if data.follow:
            rule = "where data is followed, each sample of which is scored in its own step"
            raise ValueError(f'eval.mode must be "held_out" {rule}, got "next_window"')
        if data.shuffle:
            raise ValueError(f"data.shuffle must be false {named}, got true")
        if data.epochs != 1:
            raise ValueError(f"data.epochs must be 1 {named} (later ones score what was trained on), got {data.epochs}")
        if data.test_range[0] != data.train_range[1]:
            raise ValueError(
                f"data.test_range must begin where data.train_range ends {named}, as the stream is both, got "
                f"{list(data.test_range)} after {list(data.train_range)}"
            )
        return self

    @model_validator(mode="after")
    def _check_validation(self) -> Config:
        mode, follows = self.eval.mode, self.data.follow
        if self.eval.validates and follows:
            rule = "where data is followed, each sample of which is scored in its own step"
            raise ValueError(f'eval.mode must be "held_out" {rule}, got "validation"')
        if self.eval.patience and mode == "held_out" and not follows:
            rule = 'eval.patience must be 0 where eval.mode = "held_out", whose samples would choose the model that they judge'
            raise ValueError(f'{rule}, got {self.eval.patience}; eval.mode = "validation" scores a slice of the training range')
        if self.eval.per_epoch and (follows or mode == "next_window"):
            where = "where data is followed" if follows else 'where eval.mode = "next_window"'
            raise ValueError(f"eval.per_epoch must be 0 {where}, got {self.eval.per_epoch}; give eval.every_steps")
        if is_ranking_metric(self.eval.metric) and self.eval.metric not in self.eval.metrics:
            rule = f"eval.metrics must name {self.eval.metric}, by which eval.metric chooses the best model"
            raise ValueError(f"{rule}, got {list(self.eval.metrics)}")
        if self.eval.per_epoch and (self.eval.every_steps or self.eval.count):
            raise ValueError(f"eval.per_epoch must be 0 where eval.every_steps or eval.count is set, got {self.eval.per_epoch}")
        return self

    @model_validator(mode="after")
    def _check_watched(self) -> Config:
        for rule in self.watch.parsed():
            if is_ranking_metric(rule.metric) and rule.metric not in self.eval.metrics:
                named = list(self.eval.metrics)
                raise ValueError(f"eval.metrics must name {rule.metric}, which {rule.text!r} of watch.rules watches, got {named}")
        return self

    @model_validator(mode="after")
    def _check_follow(self) -> Config:
        if self.data.follow and self.eval.count:
            raise ValueError(f"eval.count must be 0 where data is followed, which has no end, got {self.eval.count}")
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
    """Return the names of the presets that ship with the package."""
    return sorted(path.stem for path in PRESETS_FOLDER.glob("*.toml"))


def load_config(source: str | None, environment: Mapping[str, str], settings: Sequence[str] = ()) -> Config:
    """Build the configuration from a preset name or TOML path, the environment, and ``section.key=value`` strings."""
    tree: dict[str, Any] = {}
    layer: dict[str, Any] = {}
    if source is not None:
        layer = read_layer(source)
        _merge(tree, layer, f"in {source}")
    overrides: dict[str, Any] = {}
    _merge_overrides(overrides, environment, settings)
    _merge(tree, overrides, "in --set")
    _share_host_memory(tree, (layer, overrides), tree.get("run", {}).get("device", "auto"))
    return validate(tree)


def read_layer(source: str) -> dict[str, Any]:
    """Read a preset or a TOML file. Raises ConfigError where there is none."""
    path = Path(source)
    if not path.suffix and not os.path.exists(path):
        path = PRESETS_FOLDER / f"{source}.toml"
        if not os.path.exists(path):
            raise ConfigError(
                f"no preset or file named {source}{did_you_mean(source, presets())} (presets: {', '.join(presets())})",
                faq="unknown-preset",
            )
    layer = _read_toml(path)
    if path.with_name(DESCRIPTION).exists() and isinstance(layer.get("knobs"), dict):  # a run wrote the file
        layer["knobs"] = within_bounds(layer["knobs"])
    return layer


def _share_host_memory(tree: dict[str, Any], layers: Sequence[Mapping[str, Any]], device: Any) -> None:
    """Give hot rows of a CPU run their part of the host memory, unless a layer that sets it, or a later one, sets that too;
    and choose knobs that suit a disk, unless a layer sets them."""
    shared, memory = None, 0
    for layer in layers:
        if given := layer.get("run", {}).get("host_memory"):
            with suppress(TypeError, ValueError, OverflowError):  # a value that is no size is reported with all other faults
                size_bytes = parse_size(given) if isinstance(given, str) else int(given)
                if size_bytes != memory:  # a layer that repeats it leaves what was chosen for it
                    shared = memory = size_bytes
        if "hot_budget_bytes" in layer.get("knobs", {}):
            shared = None
    on_device = device == "cuda" or (device == "auto" and may_have_cuda())
    if shared is not None and not on_device:
        tree.setdefault("knobs", {})["hot_budget_bytes"] = hot_part(shared)
    if memory:
        tree["knobs"] = {**ON_DISK, **tree.get("knobs", {})}


def hot_part(host_memory: int) -> int:
    """Return the part of the memory for rows that those take which stay there, where nothing else is given."""
    return host_memory * HOT_PART[0] // HOT_PART[1]


def overridden_knobs(environment: Mapping[str, str], settings: Sequence[str]) -> set[str]:
    """Return the names of the knobs that the environment or the settings name."""
    tree: dict[str, Any] = {}
    _merge_overrides(tree, environment, settings)
    return set(tree.get("knobs", {}))


def given_keys(source: str | None, environment: Mapping[str, str], settings: Sequence[str]) -> set[str]:
    """Return the keys that a preset or TOML file, the environment or the settings name."""
    tree: dict[str, Any] = {}
    if source is not None:
        _merge(tree, read_layer(source), f"in {source}")
    _merge_overrides(tree, environment, settings)
    return {f"{section}.{name}" for section, values in tree.items() for name in values}


def given_knobs(config: Config, before: Config, overridden: Collection[str]) -> dict[str, Any]:
    """Return the knobs that a run is given when it goes on: those that `config` has otherwise than `before`, its ``config.toml``,
    and those named in `overridden`. All others stay as its checkpoint has them."""
    return {
        name: value
        for name, value in config.knobs.model_dump().items()
        if name in overridden or value != getattr(before.knobs, name)
    }


def _merge_overrides(tree: dict[str, Any], environment: Mapping[str, str], settings: Sequence[str]) -> None:
    """Merge the overrides of the environment and of the settings into a tree."""
    for name in sorted(environment):
        if meant := _meant(name):
            raise ConfigError(f"environment variables of settings must be written as {meant}, got {name}")
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _merge(tree, _nested(key, _literal(environment[name])), f"in environment variable {name}")
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set takes section.key=value, got {setting!r}")
        _merge(tree, _nested(key.strip(), _literal(value.strip())), "in --set")


def _meant(name: str) -> str:
    """Return the environment variable that is meant by the name of one that sets nothing: section and key are joined by one
    underscore, or letters are small. Other names may be other programs', such as Kubernetes' of a service, or Docker's."""
    upper = name.upper()
    if not upper.startswith(ENVIRONMENT_PREFIX) or (name == upper and "__" in name):
        return ""
    wanted = upper.removeprefix(ENVIRONMENT_PREFIX).replace("__", "_")
    keys = [key for key, _ in leaves(Config) if wanted == key.replace(".", "_").upper()]
    return " or ".join(ENVIRONMENT_PREFIX + key.replace(".", "__").upper() for key in keys)


def validate(tree: Mapping[str, Any]) -> Config:
    """Check a nested mapping against the tree's rules."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_described(error), faq="value-of-a-setting") from None


def _described(error: ValidationError) -> str:
    try:
        return describe_faults(error)
    except RecursionError:
        return TOO_DEEP


def to_toml(config: Config) -> str:
    """Return the resolved configuration as TOML; training from it reruns the same run."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(mode="json"))


def _read_toml(path: Path) -> dict[str, Any]:
    hint = "" if path.suffix == ".toml" else f"; a file of data is named with --data {path}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"configuration file {path} must have at most {MAX_FILE_BYTES} bytes, it has more{hint}")
        return tomllib.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist", faq="configuration-file") from None
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}{hint}", faq="configuration-file") from None
    except RecursionError:
        raise ConfigError(f"configuration file {path} is not valid TOML: {TOO_DEEP}") from None


def _literal(text: str) -> Any:
    """Return a value as TOML reads it; any other text is a string."""
    try:
        text.encode("utf-8")  # a shell may pass other bytes
        found = tomllib.loads(f"value = {toml_number(text)}")
    except UnicodeEncodeError:
        raise ConfigError(f"values must be text in UTF-8, got {text!r}") from None
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text  # a second line would be a second key


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(
    tree: dict[str, Any], layer: Mapping[str, Any], where: str, model: type[BaseModel] = Config, prefix: str = ""
) -> None:
    """Merge one layer into the tree; the error for an unknown key names the nearest known one."""
    for name, value in layer.items():
        if name not in model.model_fields:
            known = [key for key, _ in leaves(Config)] + list(Config.model_fields)
            raise ConfigError(f"unknown key {prefix}{name} {where}{_nearest_key(prefix + name, known)}", faq="unknown-key")
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
