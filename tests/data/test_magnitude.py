"""Dense columns whose numbers are too large are named before a run trains on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.dense_scale import remark
from adaptive_rec.data.open import open_source

SCHEMA = """
label = "label"
dense = [{ column = "age" }, { column = "price" }, { column = "seconds", transform = "standard" }, { column = "time" }]
sparse = ["user"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("large")
    rows = [f"{n % 7},{20 + n % 60},{900 + n},{1_600_000_000 + n},{1_600_000_000 + 7 * n},{n % 2}" for n in range(400)]
    (place / "rows.csv").write_text("\n".join(["user,age,price,seconds,time,label", *rows]) + "\n")
    (place / "schema.toml").write_text(SCHEMA)
    words = ["--schema", str(place / "schema.toml"), "--out", str(place / "folder")]
    assert main(["data", "prepare", str(place / "rows.csv"), *words]) == 0
    return place / "folder"


def test_large_columns_are_named_with_the_way_out(folder: Path) -> None:
    text = remark(open_source(load_config("clicks_small", {}, [f"data.source={folder}"])))
    assert "time (about 1,600,001,256), price (about 1,084);" in text, text
    assert 'give them transform = "standard" or "log" in a schema' in text
    assert "age" not in text
    assert "seconds" not in text
    assert remark(open_source(load_config("tiny", {}))) == ""


def test_a_run_warns_of_them_before_its_first_step(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--data", str(folder), "--steps", "2", "--no-serve", "--set", "run.on_nan=skip_batch"]
    small = ["--set=run.threads=1", "--set=run.batch_size=64", "--set=model.bottom_mlp=[8]", "--set=model.top_mlp=[8]"]
    main([*words, *small, "--out", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert "step 0   warning: dense columns should be of the order of 1, or the first losses are absurd: time" in said
