"""Presets on small files of their formats, from the raw file to a score; and the keys that shape them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Position
from adaptive_rec.cli import main
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import LEAST_SCALED_ROWS, kept_rows
from adaptive_rec.dense.models.layers import CrossInteraction
from adaptive_rec.recipes.avazu import LOG_COLUMNS
from adaptive_rec.recipes.globo import COLUMNS
from adaptive_rec.runtime.assemble import assemble

AVAZU = [column.name for column in LOG_COLUMNS]


def globo(random: Any) -> str:
    times = np.sort(random.integers(0, 7_200_000, 300)) + 1_506_826_800_000
    rows = [[u, u, t, 2, a, t, *[1] * 6] for t, u, a in zip(times, ints(random, 40), ints(random, 30), strict=True)]
    return "\n".join(",".join(map(str, row)) for row in [COLUMNS, *rows])


def taobao(random: Any) -> str:
    rows = zip(ints(random, 25), ints(random, 80), ints(random, 9), ints(random, 9_000), strict=True)
    return "\n".join(f"{u},{i},{c},pv,{1_511_000_000 + t}" for u, i, c, t in rows)


def movies(random: Any) -> str:
    rows = zip(ints(random, 25), ints(random, 80), ints(random, 11), ints(random, 9_000), strict=True)
    return "\n".join(f"{u}::{m:07}::{r}::{1_373_000_000 + t}" for u, m, r, t in rows)


def avazu(random: Any) -> str:
    cells = {"id": "7", "hour": "14102100"}
    lines = [
        ",".join(cells.get(name, str(random.integers(2 if name == "click" else 40))) for name in AVAZU)
        for _ in range(300)
    ]
    return "\n".join([",".join(AVAZU), *lines])


def ints(random: Any, below: int) -> list[int]:
    numbers: list[int] = random.integers(0, below, 300).tolist()
    return numbers


PRESETS: dict[str, tuple[Callable[[Any], str], list[str]]] = {
    "globo_tbsm": (globo, ["--format", "globo_sequence"]),
    "taobao_tbsm": (taobao, ["--history", "7"]),
    "movietweetings": (movies, []),
    "avazu": (avazu, []),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains_on_its_format(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, options = PRESETS[name]
    log = tmp_path / "log.csv"
    log.write_text(write(np.random.default_rng(3)) + "\n")
    assert main(["data", "prepare", str(log), "--out", str(tmp_path / "rows"), *options]) == 0
    command = ["train", name, "--data", str(tmp_path / "rows"), "--out", str(tmp_path / "run"), "--policy", "hotline"]
    settings = ["run.batch_size=32", "run.steps=8", "run.device=cpu", "run.threads=1"]
    assert main([*command, "--no-serve", *(part for one in settings for part in ("--set", one))]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 8
    assert summary["samples_trained"] == 8 * 32
    assert summary["eval"]["samples"] > 0
    assert 0 < summary["eval"]["logloss"] < 2
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert again["auc"] == pytest.approx(summary["eval"]["auc"], abs=1e-12)


def test_mlperfs_shape_is_scaled_by_one_key_and_trains() -> None:
    full = load_config("mlperf_dcnv2", {}, ["data.scale=1"])
    assert sum(kept_rows(full, rows) for rows in full.data.table_rows) == 204_184_588
    assert sum(full.data.synthetic.feature_lookups) == 214
    config = load_config(
        "mlperf_dcnv2", {}, ["data.scale=0.00002", "run.batch_size=8", "run.steps=2", "run.device=cpu"]
    )
    runtime = assemble(config)
    model: Any = runtime.dense.model
    assert isinstance(model.interaction, CrossInteraction)
    assert [layer.weight.shape for layer in model.interaction.down] == [(512, 27 * 128)] * 3
    list(runtime.run())
    assert runtime.reports.totals()["lookups"] == 2 * 8 * 214
    assert [t.rows for t in runtime.source.tables] == [
        max(min(rows, LEAST_SCALED_ROWS), round(rows / 50_000)) for rows in config.data.table_rows
    ]


def test_feature_lookups_are_the_length_of_every_bag() -> None:
    settings = ["data.table_rows=[50, 60, 7]", "data.synthetic.feature_lookups=[3, 1, 5]", "data.synthetic.samples=100"]
    source = open_source(load_config(None, {}, settings))
    batch = next(source.train_batches(Position(seed=1), 20))
    assert np.diff(batch.offsets).tolist() == [3, 1, 5] * 20
    with pytest.raises(ValueError, match="feature_lookups must have one entry for each of 2 features, got 3"):
        DataConfig.model_validate({"table_rows": [50, 60], "synthetic": {"feature_lookups": [3, 1, 5]}})


@pytest.mark.parametrize(("rows", "scale", "most", "kept"), [
    (1000, 1.0, 10**6, 1000), (1000, 0.5, 10**6, 500), (1000, 0.5, 300, 300), (1000, 0.01, 10**6, 100), (40, 0.01, 10**6, 40),
    (40, 0.01, 30, 30), (3001, 0.1, 10**6, 300),
])  # fmt: skip
def test_scale_keeps_small_tables_and_a_share_of_the_others(rows: int, scale: float, most: int, kept: int) -> None:
    config = load_config(None, {}, [f"data.scale={scale}", f"data.max_table_rows={most}"])
    assert kept_rows(config, rows) == kept
