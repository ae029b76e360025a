"""Settings that only a device, or only a CPU, can run."""

from __future__ import annotations

from adaptive_rec.config.run import OF_DEVICES
from adaptive_rec.config.tree import Config
from adaptive_rec.dense.linear import linear_layers
from adaptive_rec.errors import ConfigError


def check_fits_device(config: Config, on_device: bool, trains: bool = True) -> None:
    """Raise ConfigError where a run on a device, or on a CPU, cannot have a setting. Training and its plan both ask.

    A run that only scores may be one of TF32: a CPU makes its products in float32."""
    run = config.run
    if run.precision == "tf32" and trains and not on_device:
        raise ConfigError("run.precision must not be tf32 on a CPU, which has no TF32, got tf32; take float32 or bf16")
    if run.classify == "device" and not on_device:
        raise ConfigError("run.classify must be host or auto on a CPU, got device")
    if run.cold_rows in OF_DEVICES and not on_device:
        raise ConfigError(f"run.cold_rows must be auto or staged on a CPU, got {run.cold_rows}")
    if run.compile and on_device:
        raise ConfigError("run.compile must be false on a device, where the dense part is recorded instead, got true")
    if run.linear == "onednn" and on_device:
        raise ConfigError("run.linear must be auto or torch on a device, got onednn")
    if run.linear == "onednn" and run.precision != "float32":
        rule = f"run.linear must be auto or torch where run.precision is {run.precision}: it is for float32"
        raise ConfigError(f"{rule}, got onednn")
    if run.linear == "onednn":
        linear_layers(run.linear, run.compile, run.batch_size)
