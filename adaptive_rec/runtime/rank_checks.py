"""Checks that all ranks of a run have the same settings and data: otherwise they would train something else without an error."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.system.group import Group
from adaptive_rec.system.version import __version__

OF_A_MACHINE = ("data.source", "run.threads", "run.classify_threads", "run.copy_threads", "run.track")
"""Settings that ranks may have otherwise: where a machine has the data, its cores, and what rank 0 alone does."""


def check_ranks_start(group: Group, config: Config, resume: bool) -> None:
    """Raise ConfigError on all ranks where one has another version, another setting, or goes on with a run that others begin."""
    settings = _flat(config.model_dump(mode="json"))
    own = {name: value for name, value in settings.items() if name not in OF_A_MACHINE}
    check_same_on_ranks(group, {"the version of adaptive-rec": __version__, "--resume": resume, **own})


def check_data(group: Group, source: Source, config: Config) -> Batch | None:
    """Raise ConfigError on all ranks where one has other tables, other numbers of samples, or another first batch, and return
    that batch (of raw ids: with keys for ids). Data that is followed has neither: rank 0 alone reads it."""
    from adaptive_rec.data.raw.raw_ids import RawIds

    read = source.key_batches if isinstance(source, RawIds) else source.train_batches
    batches = () if config.data.follow else read(Position(seed=config.run.seed), config.run.batch_size)
    first = next(iter(batches), None)
    weights_B = None if first is None else first.weights_B
    check_same_on_ranks(
        group,
        {
            "tables of data.source": [asdict(table) for table in source.tables],
            "columns of data.source": [source.dense_features, *(feature.name for feature in source.features)],
            "training samples of data.source": source.train_samples,
            "held-out samples of data.source": source.test_samples,
            "the sum of the first batch's ids": zlib.crc32(first.ids_N.tobytes()) if first is not None else 0,
            "the sum of the first batch's weights": 0 if weights_B is None else zlib.crc32(weights_B.tobytes()),
        },
    )
    return first


def check_directory(group: Group, out: Path) -> None:
    """Raise UsageError on all ranks where one does not see the run directory that rank 0 has made."""
    group.gather(np.zeros(1, np.int64))  # by now it is made
    kept = out / "config.toml"
    sums_W = group.gather(np.array([zlib.crc32(kept.read_bytes()) if kept.is_file() else -1]))[:, 0]
    for rank, found in enumerate(sums_W.tolist()):
        if found != sums_W[0]:
            raise UsageError(f"--out must be a directory that all ranks share, rank {rank} finds no {kept} of this run")


def check_same_on_ranks(group: Group, own: Mapping[str, Any]) -> None:
    """Raise ConfigError on all ranks where a named value, which must have a JSON form, is not the same on all of them."""
    first, *others = group.share(own)
    for rank, found in enumerate(others, start=1):
        for name in {**first, **found}:
            if first.get(name) != found.get(name):
                raise ConfigError(
                    f"{name} must be the same on all ranks, got {first.get(name)} on rank 0 and {found.get(name)} on rank {rank}"
                )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by their full names."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        values |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values
