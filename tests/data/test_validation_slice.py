"""The validation slice of every source: the last part of the training rows, which is not trained on; the held-out rows stay."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.batch import SLICE, Position
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.left_out import steps_to_come
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.errors import ConfigError, DataError

ROWS = 200
SCHEMA = 'label = "label"\ndense = [{ column = "number", transform = "none" }]\nsparse = ["user"]\ntime = "when"\n'
VALIDATES = ["eval.mode=validation", "eval.validation_ratio=0.25", "data.train_range=[0.1, 0.8]", "data.test_range=[0.8, 1.0]"]
TRAINED, VALIDATED, HELD_OUT = range(20, 125), range(125, 160), range(160, 200)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file whose rows are in the order of their numbers and against that of their times, its folder, and a Criteo file."""
    folder = tmp_path_factory.mktemp("files")
    with (folder / "rows.csv").open("w", newline="") as file:
        rows = [(n % 2, n % 7, n, 1_600_000_000 - n) for n in range(ROWS)]
        csv.writer(file).writerows([("label", "user", "number", "when"), *rows])
    (folder / "schema.toml").write_text(SCHEMA)
    words = [str(folder / "rows.csv"), "--schema", str(folder / "schema.toml"), "--out", str(folder / "made")]
    assert main(["data", "prepare", *words]) == 0
    columns = [[n % 2, n, *[0] * 12, *[f"{n % 7:08x}"] * 26] for n in range(ROWS)]
    (folder / "criteo.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in columns))
    return folder


def opened(files: Path, kind: str, *settings: str) -> Source:
    names = {"prepared": "made", "in time": "made", "raw": "rows.csv"}
    of_kind = {
        "in time": ["data.order=time"],
        "raw": ["data.ids=raw", f"data.schema_file={files / 'schema.toml'}"],
        "streamed": ["data.ids=hash"],
    }
    data = [f"data.source={files / names.get(kind, 'criteo.tsv')}", "data.shuffle=false"]
    return open_source(load_config(None, {}, [*data, *of_kind.get(kind, []), *VALIDATES, *settings]))


def numbers(kind: str, dense_BX: np.ndarray) -> list[int]:
    return [round(n) for n in (dense_BX[:, 0] if kind in ("prepared", "in time", "raw") else np.expm1(dense_BX[:, 0]))]


@pytest.mark.parametrize("kind", ["prepared", "in time", "raw", "in memory", "streamed"])
def test_the_slice_ends_the_training_rows_and_is_not_trained_on(files: Path, kind: str) -> None:
    source = opened(files, kind)
    order = list(range(ROWS))[:: -1 if kind == "in time" else 1]
    trained = [n for batch in source.train_batches(Position(seed=1), 16) for n in numbers(kind, batch.dense_BX)]
    validated = [n for batch in source.test_batches(16, validation=True) for n in numbers(kind, batch.dense_BX)]
    held_out = [n for batch in source.test_batches(16) for n in numbers(kind, batch.dense_BX)]
    assert trained == [order[n] for n in TRAINED]
    assert validated == [order[n] for n in VALIDATED]
    assert held_out == [order[n] for n in HELD_OUT]
    assert (source.train_samples, source.test_samples) == (len(TRAINED), len(HELD_OUT))
    assert source.validation_samples == len(VALIDATED)
    assert [batch.size for batch in source.test_batches(16, 20, validation=True)] == [16, 4]


@pytest.mark.parametrize("kind", ["prepared", "raw", "in memory", "streamed"])
def test_a_reader_goes_on_from_any_place_of_the_slice(files: Path, kind: str) -> None:
    source = opened(files, kind)

    def read(source: Source, offset: int) -> list[int]:
        batches = source.train_batches(Position(SLICE, 1, offset), 16)
        return [n for batch in batches for n in numbers(kind, batch.dense_BX)]

    assert [read(source, offset) for offset in (0, 10, 34)] == [list(VALIDATED)[offset:] for offset in (0, 10, 34)]
    if kind in ("prepared", "in memory"):
        shuffled = opened(files, kind, "data.shuffle=true")
        assert sorted(whole := read(shuffled, 0)) == list(VALIDATED)
        assert whole != list(VALIDATED)
        assert read(shuffled, 10) == whole[10:]
    places = [batch.position for batch in source.train_batches(Position(SLICE, 1, 0), 16)]
    assert places == [Position(SLICE, 1, 16), Position(SLICE, 1, 32), Position(SLICE + 1, 1, 0)]
    assert list(source.train_batches(places[-1], 16)) == []
    assert [steps_to_come(source, Position(SLICE, 1, offset), 16) for offset in (0, 16, 34)] == [3, 2, 1]
    assert steps_to_come(source, places[-1], 16) == 0


def test_the_slice_of_synthetic_data_ends_the_stream_and_changes_no_sample() -> None:
    sizes = ["data.synthetic.samples=400", "data.synthetic.test_samples=50", "data.table_rows=[30, 20]", "data.shuffle=false"]
    without = open_source(load_config(None, {}, sizes))
    source = open_source(load_config(None, {}, [*sizes, "eval.mode=validation"]))
    whole, position = next(without.train_batches(Position(seed=1), 400)), Position(seed=1)
    [trained], [validated] = source.train_batches(position, 400), source.test_batches(400, validation=True)
    assert (trained.size, validated.size, source.train_samples) == (360, 40, 360)
    for name in ("dense_BX", "labels_B"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(trained, name), getattr(validated, name)]), getattr(whole, name)
        )
        [one], [other] = without.test_batches(50), source.test_batches(50)
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_dense_columns_are_scaled_by_the_rows_that_are_trained_on(files: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('"none"', '"standard"'))
    raw = ["data.ids=raw", f"data.schema_file={tmp_path / 'schema.toml'}", f"data.source={files / 'rows.csv'}"]
    source = open_source(load_config(None, {}, [*raw, "data.shuffle=false", *VALIDATES]))
    dense = np.concatenate([batch.dense_BX[:, 0] for batch in source.train_batches(Position(seed=1), 50)])
    assert abs(dense.mean()) < 1e-6
    assert dense.std() == pytest.approx(1, abs=1e-5)


def test_settings_that_cannot_be_are_refused(files: Path) -> None:
    assert opened(files, "prepared", "eval.validation_ratio=0.001").train_samples == 139, "one row at the least"
    settings = load_config(None, {}, ["eval.mode=validation", "eval.validation_ratio=0.5"]).eval
    assert [settings.validation_samples(samples) for samples in (4, 5)] == [2, 2]
    with pytest.raises(DataError, match="eval.validation_ratio must leave at least 2 of the 3 training samples to train on"):
        settings.validation_samples(3)
    for settings, rule in [
        (["eval.patience=3"], 'eval.patience must be 0 where eval.mode = "held_out", whose samples would choose the model'),
        (["eval.metric=recall"], "a metric must be one of auc, logloss, accuracy, normalized_entropy, calibration, gauc, mrr"),
        (["eval.metric=calibration"], "a metric to judge by must be one of auc, logloss, accuracy, normalized_entropy or a"),
        (["eval.metric=recall@5", "eval.mode=validation"], "eval.metrics must name recall@5, by which eval.metric chooses"),
        (["eval.mode=validation", "eval.per_epoch=2", "eval.count=3"], "eval.per_epoch must be 0 where eval.every_steps or"),
        (["eval.mode=validation", "eval.validation_ratio=0.51"], "eval.validation_ratio must be at most 0.5, got 0.51"),
        (["data.follow=true", "data.ids=raw", "eval.mode=validation"], 'eval.mode must be "held_out" where data is followed'),
    ]:
        with pytest.raises(ConfigError) as error:
            load_config(None, {}, settings)
        assert rule in str(error.value)
