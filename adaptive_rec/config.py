"""The configuration: one frozen tree, put together once before the run.

Layers, the later wins: defaults < TOML file or preset < environment (``ADAPTIVE_REC_SECTION__KEY``) <
``--set section.key=value``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PositiveInt, ValidationError, model_validator

from adaptive_rec.config_data import DataConfig
from adaptive_rec.config_model import ModelConfig, OptimizerConfig
from adaptive_rec.config_policy import PolicyConfig
from adaptive_rec.config_run import RunConfig
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.knobs import Frozen, Knobs, describe, knob

ENVIRONMENT_PREFIX = "ADAPTIVE_REC_"
PRESETS_FOLDER = Path(__file__).parent / "configs"


class EvalConfig(Frozen):
    every_steps: int = knob(0, "steps", "Steps between evaluations on held-out rows; 0: as many as eval.count.", ge=0)
    count: int = knob(0, "number", "Evaluations spread evenly over a run, the last one at its end; 0: only that.", ge=0)
    batch_size: PositiveInt = knob(8192, "samples", "Samples of an evaluation batch.")
    max_samples: int = knob(0, "samples", "Held-out samples to use; 0 is all.", ge=0)

    def interval(self, steps: int) -> int:
        """Steps from one evaluation to the next in a run of `steps`; 0 where there are none along the way."""
        return self.every_steps or (max(1, round(steps / self.count)) if self.count else 0)


class Config(Frozen):
    """Everything that is fixed for a run, and the knobs' starting values."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    policy: PolicyConfig = PolicyConfig()
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
