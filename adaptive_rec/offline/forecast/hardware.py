"""The costs of work on a machine: a small TOML file that `calibrate` writes, people may edit, and `simulate` reads."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt, ValidationError

from adaptive_rec.config.faults import describe_faults
from adaptive_rec.config.knobs import Frozen, knob
from adaptive_rec.errors import ConfigError

HEAD = """\
# What work costs on one machine, measured by `adaptive-rec calibrate`. Every figure may be edited; `adaptive-rec simulate DATA
# --hardware FILE` predicts from them what a step takes.
"""


class RowCosts(Frozen):
    """Costs of embedding rows of one dim, with the optimizer state of the configuration that was measured."""

    dim: PositiveInt = knob(
        16, "components", "Dim these figures are for; between two dims, costs are taken in proportion."
    )
    gather_hot_ns: float = knob(0.0, "ns/lookup", "Gathering and pooling a hot row on the host.", ge=0)
    gather_cold_ns: float = knob(0.0, "ns/lookup", "The same of a cold row, mostly from memory.", ge=0)
    sum_ns: float = knob(0.0, "ns/lookup", "Adding a lookup's gradient to its row's.", ge=0)
    update_hot_ns: float = knob(0.0, "ns/row", "Updating a distinct hot row.", ge=0)
    update_cold_ns: float = knob(0.0, "ns/row", "Updating a distinct cold row.", ge=0)
    migrate_ns: float = knob(0.0, "ns/row", "Moving a row with its state to the other tier.", ge=0)
    probe_ns: float = knob(0.0, "ns/row", "Recording how far a hot row moved, on a probe step.", ge=0)


class DenseCosts(Frozen):
    """Costs of the dense part of one configuration."""

    config: str = knob("", "text", "The configuration that was measured.")
    multiplications: float = knob(
        0.0, "1/sample", "Multiplications of its forward pass, by which others are scaled.", ge=0
    )
    call_ms: float = knob(0.0, "ms/step", "A step's dense part, however few the samples.", ge=0)
    sample_us: float = knob(0.0, "us/sample", "What each sample adds.", ge=0)


class StepCosts(Frozen):
    """Costs of all else in a step."""

    other_ms: float = knob(0.0, "ms/step", "What a step takes beyond everything else here.", ge=0)
    read_ns: float = knob(0.0, "ns/lookup", "Reading a batch (of the data that was measured with).", ge=0)
    classify_ns: float = knob(0.0, "ns/lookup", "Finding distinct rows, and where each is.", ge=0)
    track_ns: float = knob(0.0, "ns/row", "Counting a distinct row in the sketch, on a thread beside the step.", ge=0)
    trial_ns: float = knob(0.0, "ns/row", "What the memories that adaptive tries add to that.", ge=0)
    tick_ms: float = knob(0.0, "ms/window", "Scoring these memories.", ge=0)
    arrange_ns: float = knob(
        0.0, "ns/lookup", "Sorting a lookup out or ranking it, where a policy arranges the stream.", ge=0
    )
    decide_us: float = knob(0.0, "us/decision", "A reclassification, besides its rows.", ge=0)
    decide_ns: float = knob(0.0, "ns/row", "Ranking a hot row or a candidate at a reclassification.", ge=0)
    list_ns: float = knob(0.0, "ns/row", "A row that a phase of the stream lists, to be hot.", ge=0)
    request_us: float = knob(
        0.0, "us/request", "One more request for a table's rows (xdl makes two a table and step).", ge=0
    )


class LinkCosts(Frozen):
    """Costs of copies between host and device; all 0 where there is no device."""

    up_gbs: float = knob(0.0, "10^9 bytes/s", "Copies from pinned host memory to the device.", ge=0)
    down_gbs: float = knob(0.0, "10^9 bytes/s", "Copies back.", ge=0)
    copy_us: float = knob(0.0, "us/copy", "A copy, however small.", ge=0)


class DiskCosts(Frozen):
    """Costs of rows on a disk; all 0 where it was not measured."""

    folder: str = knob("", "text", "The folder whose disk was measured.")
    read_us: float = knob(0.0, "us/row", "Reading a row from a page of its own, of many that are read together.", ge=0)
    read_cpu_us: float = knob(0.0, "us/row", "Processor time of that, on a thread beside the step.", ge=0)
    write_gbs: float = knob(0.0, "10^9 bytes/s", "Writing segments and syncing them.", ge=0)


class DeviceCosts(Frozen):
    """What a device, its link and its host do at best, and what calls cost; all 0 where there is none."""

    launch_us: float = knob(0.0, "us/launch", "An eager kernel of torch, on the training thread.", ge=0)
    triton_launch_us: float = knob(0.0, "us/launch", "A kernel of Triton, on the training thread.", ge=0)
    copy_us: float = knob(0.0, "us/copy", "Queueing a copy, however small.", ge=0)
    event_us: float = knob(0.0, "us/event", "Recording an event or waiting for one, on the training thread.", ge=0)
    python_us: float = knob(0.0, "us/step", "All else that the training thread does in a step.", ge=0)
    kernel_us: float = knob(0.0, "us/kernel", "A recorded kernel, however small.", ge=0)
    up_gbs: float = knob(0.0, "10^9 bytes/s", "Copies from pinned host memory to the device.", ge=0)
    down_gbs: float = knob(0.0, "10^9 bytes/s", "Copies back.", ge=0)
    hbm_gbs: float = knob(0.0, "10^9 bytes/s", "The device's memory, bytes read and written.", ge=0)
    hbm_efficiency: float = knob(
        1.0, "ratio", "Share of it that reading and writing scattered rows reaches.", gt=0, le=1
    )
    dram_gbs: float = knob(0.0, "10^9 bytes/s", "Host memory, for scattered rows, all copying threads together.", ge=0)
    tflops: float = knob(0.0, "10^12/s", "Operations of the dense part's matrix products, in its precision.", ge=0)
    classify_ns: float = knob(
        0.0, "ns/lookup", "Finding distinct rows and segments on a core of the host; 0: the device sorts.", ge=0
    )
    classify_threads: int = knob(1, "threads", "Threads that classify batches ahead.", ge=1)

    @property
    def classifies(self) -> bool:
        """Whether the device finds distinct rows."""
        return self.classify_ns == 0


class Hardware(Frozen):
    """All costs on a machine. With `link.up_gbs` 0 everything runs on the host and nothing travels."""

    name: str = knob("unnamed", "text", "The machine.")
    made: str = knob("", "text", "When and by which version.")
    cores: PositiveInt = knob(1, "cores", "Cores that a run may use.")
    memory_gbs: float = knob(
        0.0, "10^9 bytes/s", "Copies within host memory, for comparison; no prediction uses it.", ge=0
    )
    rows: tuple[RowCosts, ...] = Field((), strict=False)
    dense: DenseCosts = DenseCosts()
    step: StepCosts = StepCosts()
    link: LinkCosts = LinkCosts()
    disk: DiskCosts = DiskCosts()
    device: DeviceCosts = DeviceCosts()

    def of_dim(self, dim: int) -> RowCosts:
        """Return the costs of rows of any dim: interpolated between those measured, beyond them in proportion."""
        known = sorted(self.rows or (RowCosts(),), key=lambda rows: rows.dim)
        dims = [rows.dim for rows in known]
        costs = {
            name: float(np.interp(dim, dims, [getattr(rows, name) for rows in known]))
            for name in RowCosts.model_fields
            if name != "dim"
        }
        beyond = dim / min(max(dim, dims[0]), dims[-1])
        return RowCosts(dim=dim, **{name: cost * max(1.0, beyond) for name, cost in costs.items()})

    def described(self) -> dict[str, Any]:
        return {**self.model_dump(mode="json"), "on_device": self.link.up_gbs > 0 or self.device.up_gbs > 0}


def shipped() -> dict[str, Path]:
    """Return the profiles of stated figures that come with the package, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}


def read_hardware(path: Path, stated: bool = False) -> Hardware:
    """Read a hardware profile, or one that comes with the package by its name. Raises ConfigError where the file cannot be read
    or a figure is invalid. `stated`: the figures of a device may stand in place of costs that were measured."""
    path = path if path.exists() else shipped().get(str(path), path)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        found = Hardware.model_validate(tree)
    except OSError as error:
        raise ConfigError(f"--hardware {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hardware {path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"in {path}:\n{describe_faults(error)}") from None
    if not found.rows and not (stated and found.device.up_gbs):
        raise ConfigError(f"a hardware profile must have at least one [[rows]] section, {path} has none")
    return found


def to_text(hardware: Hardware) -> str:
    """Return the profile as TOML, each figure with its unit and a description."""
    parts = [HEAD]
    sections = ("dense", "step", "link", "disk", "device")
    plain = [name for name in Hardware.model_fields if name not in ("rows", *sections)]
    parts += [_line(hardware, name) for name in plain]
    for rows in hardware.rows:
        parts += ["\n[[rows]]\n", *(_line(rows, name) for name in RowCosts.model_fields)]
    for name in sections:
        section = getattr(hardware, name)
        parts += [f"\n[{name}]\n", *(_line(section, key) for key in type(section).model_fields)]
    return "".join(parts)


def _line(section: Frozen, name: str) -> str:
    import tomli_w

    field, value = type(section).model_fields[name], getattr(section, name)
    value = float(f"{value:.4g}") if isinstance(value, float) else value
    extra = field.json_schema_extra
    unit = f"{extra['unit']}; " if isinstance(extra, dict) and extra["unit"] != "text" else ""
    said = tomli_w.dumps({name: value}).strip()
    return f"{said:<30}  # {unit}{field.description}\n"
