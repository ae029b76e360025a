"""`ClickModel`: fit and predict on frames equal train and predict on a file, bit by bit; scikit-learn's conventions; refusals."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import adaptive_rec
from adaptive_rec.cli import from_python, main
from adaptive_rec.cli.frames import frame_of
from adaptive_rec.errors import ConfigError, ConflictError, DataError, UsageError
from adaptive_rec.run.inputs import check_trained

SMALL = {"run.batch_size": 64, "run.threads": 1, "model.bottom_mlp": [4], "model.top_mlp": [4], "model.embedding_dim": 4}

STOPPING: dict[str, Any] = {"budget": "16KiB", "patience": 1}
"""Parameters of a model that is validated and keeps its best checkpoint, as a run on files of one's own does."""


def rows(number: int = 900) -> pa.Table:
    dice = np.random.default_rng(1)
    user, item, price = dice.integers(0, 30, number), dice.integers(0, 20, number), dice.gamma(2, 10, number)
    click = dice.random(number) < 1 / (1 + np.exp(1 - 2.0 * (user % 3 == item % 3)))
    texts = pa.array([f"user {each}" for each in user]).dictionary_encode()
    return pa.table({"user": texts, "item": item, "price": np.where(price < 5, np.nan, price), "click": click.astype(int)})


ROWS = rows()


def model(folder: Path, **params: Any) -> adaptive_rec.ClickModel:
    return adaptive_rec.ClickModel(**{"verbose": False, "runs": folder / "runs", "settings": SMALL, "epochs": 1, **params})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> adaptive_rec.ClickModel:
    return model(tmp_path_factory.mktemp("fitted"), **STOPPING).fit(ROWS, label="click")


def by_command(folder: Path, table: pa.Table, *words: str) -> tuple[Path, np.ndarray[Any, Any]]:
    """Train and score a Parquet file of these rows by the command line."""
    pq.write_table(table, folder / "rows.parquet")
    settings = [word for key, value in {**SMALL, "data.epochs": 1}.items() for word in ("--set", f"{key}={value}")]
    data, run = str(folder / "rows.parquet"), str(folder / "by_command")
    assert main(["train", "--data", data, "--label", "click", "--no-serve", "--out", run, *settings, *words]) == 0
    assert main(["predict", run, "--data", data, "--out", str(folder / "scores.parquet"), "--keep", ""]) == 0
    return folder / "by_command", pq.read_table(folder / "scores.parquet")["score"].to_numpy()


def learned(run: Path) -> tuple[bytes, dict[str, Any]]:
    """The dense part of a run's newest checkpoint, and the figures of its end; which rows a checkpoint holds, and how many
    checkpoints there are, depends on the clock."""
    newest = max((run / "checkpoints").glob("step-*"))
    summary = json.loads((run / "summary.json").read_text())
    names = ("steps", "samples_trained", "train_logloss", "eval", "best_eval", "hot_rows", "total_rows")
    return (newest / "dense.safetensors").read_bytes(), {name: summary[name] for name in names}


def test_fit_and_predict_equal_the_commands_on_the_same_rows(trained: adaptive_rec.ClickModel, tmp_path: Path) -> None:
    run, scores = by_command(tmp_path, ROWS, "--set", "knobs.hot_budget_bytes=16KiB", "--patience", "1")
    assert learned(trained.run) == learned(run)
    found = trained.predict_proba(ROWS)
    assert found.shape == (len(ROWS), 2)
    assert found[:, 1].tobytes() == scores.tobytes()
    assert trained.predict_proba(tmp_path / "rows.parquet")[:, 1].tobytes() == scores.tobytes()
    assert np.array_equal(trained.predict(ROWS), (scores > 0.5).astype(int))
    assert 0.5 < np.mean(trained.predict(ROWS) == ROWS["click"].to_numpy()) == trained.score(ROWS, ROWS["click"].to_numpy())
    assert 0 < trained.summary["hot_rows"] < trained.summary["total_rows"], "some rows are cold"


def test_only_the_schema_and_the_prepared_rows_stay_of_a_frame(trained: adaptive_rec.ClickModel) -> None:
    runs = trained.run.parent
    schema, folder, run = sorted(runs.iterdir(), key=lambda path: (path.is_dir(), path.name != "data"))
    assert (schema.name.startswith("frame-"), folder.name, run) == (True, "data", trained.run)
    assert [path.name.startswith("frame-") and (path / "meta.json").exists() for path in folder.iterdir()] == [True]


def as_arrow_stream() -> Any:
    """An object that only has Arrow's protocol, as frames of polars and duckdb do."""

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            views = ROWS.set_column(0, "user", ROWS["user"].cast(pa.string()).cast(pa.string_view()))
            return views.__arrow_c_stream__(requested_schema)

    return Stream()


def as_pandas() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: the rows of its frames are tested as Arrow's")
    return pandas.DataFrame({name: ROWS[name].to_pandas() for name in ROWS.column_names}).set_index(np.arange(900) * 7 % 900)


def test_columns_of_pandas_are_called_by_their_texts() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: the rows of its frames are tested as Arrow's")
    frame = frame_of(pandas.DataFrame({0: [1, 2], 7: ["x", None]}, index=[7, 3]))
    assert frame.names == ["0", "7"]
    assert [batch.to_pydict() for batch in frame.batches] == [{"0": [1, 2], "7": ["x", None]}]


def as_polars() -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed: the rows of its frames are tested as Arrow's")
    return polars.from_arrow(ROWS)


FRAMES: dict[str, Callable[[], Any]] = {
    "batch": lambda: ROWS.combine_chunks().to_batches()[0],
    "dictionary": lambda: {name: ROWS[name] if name == "user" else ROWS[name].to_numpy() for name in ROWS.column_names},
    "stream": as_arrow_stream,
    "pandas": as_pandas,
    "polars": as_polars,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_of_any_kind_is_the_same_rows(kind: str, trained: adaptive_rec.ClickModel) -> None:
    """All in one process, so a table in several chunks is among them."""
    chunks = pa.concat_tables([ROWS.slice(0, 300), ROWS.slice(300)])
    assert trained.predict_proba(FRAMES[kind]()).tobytes() == trained.predict_proba(chunks).tobytes()


def test_y_is_a_label_of_any_two_classes(trained: adaptive_rec.ClickModel, tmp_path: Path) -> None:
    words = np.where(ROWS["click"].to_numpy() == 1, "yes", "no")
    found = model(tmp_path, **STOPPING).fit(ROWS.drop_columns(["click"]), words)
    assert learned(found.run) == learned(trained.run), "the label's name means nothing"
    assert found.classes_.tolist() == ["no", "yes"]
    assert (found.n_features_in_, found.feature_names_in_.tolist()) == (3, ["user", "item", "price"])
    assert set(found.predict(ROWS)) <= {"no", "yes"}
    for again in (adaptive_rec.ClickModel.load(found.run), pickle.loads(pickle.dumps(found))):  # noqa: S301
        assert (again.run, again.classes_.tolist(), again.n_features_in_) == (found.run, ["no", "yes"], 3)
        assert again.predict_proba(ROWS).tobytes() == trained.predict_proba(ROWS).tobytes()


def test_weights_beside_the_rows_are_those_of_a_column(tmp_path: Path) -> None:
    heavy = np.random.default_rng(2).integers(0, 4, len(ROWS)).astype(float)
    weighted = ROWS.append_column("heavy", pa.array(heavy))
    run, scores = by_command(tmp_path, weighted, "--weight", "heavy")
    beside = model(tmp_path).fit(ROWS, label="click", sample_weight=heavy)
    named = model(tmp_path, weight="heavy").fit(weighted, label="click")
    assert learned(beside.run) == learned(named.run) == learned(run)
    assert beside.predict_proba(ROWS)[:, 1].tobytes() == scores.tobytes()
    assert named.feature_names_in_.tolist() == beside.feature_names_in_.tolist() == ["user", "item", "price"]


def test_an_array_has_numbered_columns(tmp_path: Path) -> None:
    array = np.stack([ROWS["user"].combine_chunks().indices.to_numpy(), ROWS["item"].to_numpy()], axis=1)
    found = model(tmp_path).fit(array, ROWS["click"].to_numpy())
    assert (found.n_features_in_, hasattr(found, "feature_names_in_")) == (2, False)
    assert found.predict_proba(array).shape == (900, 2)
    assert [table["table"] for table in found.tables] == ["x0", "x1"]
    with pytest.raises(ValueError, match="X has 1 features, but ClickModel is expecting 2 features as input"):
        found.predict(array[:, :1])


def test_the_tables_say_what_is_hot(trained: adaptive_rec.ClickModel) -> None:
    tables = trained.tables
    assert [table["table"] for table in tables] == ["user", "item"]
    assert sum(table["hot_rows"] for table in tables) == trained.summary["hot_rows"]
    most = tables[1]["most_popular"]
    assert 0 < len(most) <= 10
    assert [each["lookups"] for each in most] == sorted((each["lookups"] for each in most), reverse=True)
    assert {each["value"] for each in most if each["id"] > 1} <= set(range(20))


def test_a_model_is_exported(trained: adaptive_rec.ClickModel, tmp_path: Path) -> None:
    assert (trained.export(tmp_path / "model") / "model.py").is_file()
    with pytest.raises(UsageError, match="must be a folder that can be made"):
        trained.export(tmp_path)


def test_a_run_of_raw_ids_keeps_the_rows_that_it_reads(tmp_path: Path) -> None:
    settings = {**SMALL, "data.ids": "raw", "data.max_table_rows": 100}
    found = model(tmp_path, settings=settings).fit(ROWS, label="click")
    assert found.predict_proba(ROWS).shape == (900, 2)
    (kept,) = (tmp_path / "runs" / "data").glob("frame-*.rows/frame-*.parquet")
    assert pq.read_metadata(kept).num_rows == 900
    assert found.tables[0]["table"] == "user"
    backwards = ROWS.append_column("when", pa.array(range(900, 0, -1)))
    with pytest.raises(DataError, match=r"^X, .* column when: rows must be in order of time"):
        model(tmp_path, settings=settings, time="when").fit(backwards, label="click")


def test_what_is_printed_is_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = pa.table({**{name: ROWS[name] for name in ROWS.column_names}, "bought": ROWS["click"]})
    model(tmp_path, verbose=True, epochs=2).fit(told, label="click")
    printed = capsys.readouterr().out
    assert "  sparse    item" in printed
    assert "bought tells the label" in printed
    assert f"directory   {tmp_path / 'runs'}" in printed
    with pytest.warns(UserWarning, match="bought tells the label"):
        model(tmp_path).fit(told, label="click")
    assert capsys.readouterr().out == ""


def test_a_fit_does_not_depend_on_options_of_an_earlier_one(tmp_path: Path) -> None:
    """Both fit the same rows, so their schema is one file."""
    plain = model(tmp_path).fit(ROWS, label="click").predict_proba(ROWS)
    with pytest.raises(DataError, match="column price"):
        model(tmp_path, group="price").fit(ROWS, label="click")
    model(tmp_path, weight="item").fit(ROWS, label="click")
    assert (model(tmp_path).fit(ROWS, label="click").predict_proba(ROWS) == plain).all()


def test_values_of_numpy_are_settings_and_labels(tmp_path: Path) -> None:
    numbers = {**SMALL, "run.batch_size": np.int64(128), "model.top_mlp": np.array([4])}
    labels = np.array([np.int64(value) for value in ROWS["click"].to_numpy()], dtype=object)
    new = model(tmp_path, budget=np.int64(16_384), epochs=np.int64(1), settings=numbers)
    fitted = new.fit(ROWS.drop_columns("click"), labels)
    assert (fitted.summary["steps"], fitted.classes_.tolist()) == (7, [0, 1])


def test_values_that_an_array_masks_are_missing(tmp_path: Path) -> None:
    numbers = np.stack([ROWS["item"].to_numpy(), np.arange(900) % 7], axis=1)
    masked = np.ma.array(numbers, mask=numbers == 3)
    table = pa.table({f"x{n}": pa.array(numbers[:, n], mask=numbers[:, n] == 3) for n in range(2)})
    first, second = (model(tmp_path).fit(X, ROWS["click"]).predict_proba(X) for X in (masked, table))
    assert first.tobytes() == second.tobytes()
    with pytest.raises(ValueError, match="X has 1 features, but ClickModel is expecting 2 features"):
        model(tmp_path).fit(table, ROWS["click"]).predict(numbers[:, :1])


def test_a_pandas_frame_whose_texts_are_in_chunks_is_scored(trained: adaptive_rec.ClickModel) -> None:
    """`concat` and `read_csv` make such frames; a block of rows is then in two chunks."""
    pandas = pytest.importorskip("pandas")
    frame = ROWS.cast(pa.schema([("user", pa.string()), *list(ROWS.schema)[1:]])).to_pandas()
    found = trained.predict_proba(pandas.concat([frame] * 3, ignore_index=True))
    assert found.tobytes() == np.tile(trained.predict_proba(ROWS), (3, 1)).tobytes()


# Parameters and refusals ---------------------------------------------------------------------------------------------


def test_parameters_are_read_and_set(tmp_path: Path) -> None:
    made = model(tmp_path, budget="1MiB")
    assert made.get_params()["budget"] == "1MiB"
    assert made.set_params(budget=4096, epochs=3) is made
    assert (made.budget, made.epochs, made.get_params()["seed"]) == (4096, 3, None)
    assert repr(adaptive_rec.ClickModel("2MiB", seed=3)) == "ClickModel(budget='2MiB', seed=3)"
    with pytest.raises(UsageError, match="a parameter of ClickModel must be one of budget, .*, got alpha"):
        made.set_params(alpha=1)


class NAType:
    """What pandas has for a missing value."""

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


REFUSED: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ({}, (ROWS,), {}, ValueError, "fit needs y, or label=COLUMN"),
    ({}, (ROWS, "click"), {}, ValueError, "a column of X is label='click'"),
    ({}, (ROWS, np.zeros(3)), {}, ValueError, "y must have two classes, got 1 class"),
    ({}, (ROWS, np.arange(900)), {}, ValueError, "y must have two classes, got 900 classes"),
    ({}, (ROWS, np.arange(3) % 2), {}, ValueError, "^y must have a value for each of the 900 rows of X, got 3"),
    ({}, (ROWS, [b"y", b"n"] * 450), {}, ValueError, "y must hold numbers, truth values or texts, got values of type"),
    ({}, (ROWS, np.arange(900).astype("M8[D]")), {}, ValueError, "y must hold numbers, truth values or texts"),
    ({}, (ROWS, [Decimal(1), Decimal(0)] * 450), {}, ValueError, "y must hold numbers, truth values or texts, got Decimal"),
    ({}, (ROWS, np.array(["y", 1] * 450, dtype=object)), {}, ValueError, "got a mixture: int, str"),
    ({}, (ROWS, np.array(["y", NAType()] * 450, dtype=object)), {}, ValueError, "Input y contains NaN"),
    ({}, (ROWS, np.ma.array([0, 1] * 450, mask=[0, 1] * 450)), {}, ValueError, "Input y contains NaN"),
    ({}, (ROWS,), {"label": ""}, UsageError, "^label must be a column, or a comparison"),
    ({}, (pa.chunked_array([[1, 2]]), [0, 1]), {}, ValueError, "X must be a pandas or polars frame, .* got ChunkedArray"),
    ({}, ({"a": ["b", 1]}, [0, 1]), {}, ValueError, "X must have columns that Arrow can hold, a is none: "),
    ({"settings": [1]}, (ROWS,), {"label": "click"}, ValueError, "settings must be a dictionary"),
    ({}, (ROWS, np.array([0.0, np.nan])), {}, ValueError, "Input y contains NaN"),
    ({}, (ROWS, np.zeros((900, 2))), {}, ValueError, r"y must be one label, .* shape \(900, 2\)"),
    ({}, (ROWS,), {"label": ["click", "buy"]}, ValueError, "label must be one label, the name of a column"),
    ({}, (ROWS,), {"label": "click,item"}, UsageError, "^label must be one label, got 'click,item', 2 columns of X"),
    ({}, (ROWS,), {"label": "clik"}, UsageError, "did you mean click"),
    ({}, (ROWS.slice(0, 0),), {"label": "click"}, ValueError, "X must have a row"),
    ({}, (ROWS,), {"label": "click", "sample_weight": np.ones(9)}, ValueError, "^sample_weight must have a value for"),
    ({}, (ROWS,), {"label": "click", "sample_weight": -np.ones(900)}, ValueError, "sample_weight must be finite and at least 0"),
    ({}, (ROWS,), {"label": "click", "sample_weight": np.zeros(900)}, ValueError, "must not be zero for all rows"),
    ({}, ("rows.csv",), {"label": "a", "sample_weight": [1]}, ValueError, "sample_weight must be None where X is a path"),
    ({"weight": "price"}, (ROWS,), {"label": "click", "sample_weight": np.ones(900)}, ValueError, "where weight names a column"),
    ({}, (3,), {"label": "click"}, ValueError, "X must be a pandas or polars frame, .* got int"),
    ({}, ({"a": [1], "b": [1, 2]},), {"label": "a"}, ValueError, "X must have columns that Arrow can hold"),
    ({}, ("nowhere.csv",), {"label": "a"}, DataError, "nowhere.csv"),
    ({}, ("nowhere.csv", [1]), {}, ValueError, "y must be None where X is a path"),
    ({"budget": "much"}, (ROWS,), {"label": "click"}, ConfigError, "hot_budget_bytes"),
    ({"policy": "hotlin"}, (ROWS,), {"label": "click"}, ConfigError, "did you mean hotline"),
    ({"settings": {"run.steeps": 1}}, (ROWS,), {"label": "click"}, ConfigError, "run.steps"),
    ({"settings": {"run.steps": object()}}, (ROWS,), {"label": "click"}, ValueError, "settings must be texts"),
    ({"settings": {"data.epochs": 2}}, (ROWS,), {"label": "click"}, ValueError, "settings must not have data.epochs"),
    ({"epochs": 0}, (ROWS,), {"label": "click"}, ConfigError, "epochs"),
    ({"seed": 1, "settings": {"run.seed": 4}}, (ROWS,), {"label": "click"}, ValueError, "run.seed, which the parameter seed"),
    ({"settings": {"eval.metrics": ["gauc"]}}, (ROWS,), {"label": "click"}, UsageError, "such as users: add group=COLUMN, or"),
]


@pytest.mark.parametrize(("params", "words", "named", "kind", "rule"), REFUSED)
def test_what_does_not_fit_is_refused_and_leaves_no_run(
    params: dict[str, Any], words: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], rule: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=rule):
        model(tmp_path, **params).fit(*words, **named)
    assert not list(tmp_path.glob("runs/*/config.toml"))
    assert not list(tmp_path.glob("runs/data/*.rows")), "no rows stay"


def test_a_directory_that_exists_is_refused(trained: adaptive_rec.ClickModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a new directory"):
        model(tmp_path, out=trained.run).fit(ROWS, label="click")


def test_a_model_is_used_once_it_is_fitted(trained: adaptive_rec.ClickModel, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not fitted yet"):
        model(tmp_path).predict(ROWS)
    with pytest.raises(UsageError, match="RUN must be a run directory"):
        adaptive_rec.ClickModel.load(tmp_path)
    with pytest.raises(DataError, match="^X must have the column item of the schema"):
        trained.predict(ROWS.drop_columns(["item"]))


def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch, trained: adaptive_rec.ClickModel) -> None:
    monkeypatch.setattr(from_python, "_used_by", [1])
    for use in (lambda: trained.predict(ROWS), lambda: trained.fit(ROWS, label="click")):
        with pytest.raises(ConflictError, match="forked from one that has used it"):
            use()


# Processes and threads -----------------------------------------------------------------------------------------------


def test_the_class_is_found_without_torch_and_numba() -> None:
    code = "import sys, adaptive_rec; adaptive_rec.ClickModel(); print([m for m in ('torch', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_threads_train_one_after_another(trained: adaptive_rec.ClickModel, tmp_path: Path) -> None:
    """A thread gets no signals, as cells of some notebooks do not."""
    found: list[tuple[bytes, dict[str, Any]]] = []

    def fit() -> None:
        found.append(learned(model(tmp_path, **STOPPING).fit(ROWS, label="click").run))

    threads = [threading.Thread(target=fit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [learned(trained.run)] * 2


@pytest.fixture
def interrupting() -> Iterator[Callable[[Path], None]]:
    threads, over = list[threading.Thread](), threading.Event()

    def begin(folder: Path) -> None:
        """Send Ctrl-C to this process once a run below a folder has made steps."""

        def wait() -> None:
            while not over.is_set():
                if any(path.stat().st_size for path in folder.glob("*/metrics.jsonl")):
                    os.kill(os.getpid(), signal.SIGINT)
                    return
                time.sleep(0.01)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


def test_an_interrupt_leaves_a_model_and_the_program(tmp_path: Path, interrupting: Callable[[Path], None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    made = model(tmp_path, epochs=10_000, settings={**SMALL, "knobs.report_every": 1})
    interrupting(tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        made.fit(ROWS, label="click")
    assert signal.getsignal(signal.SIGINT) is before
    check_trained(made.run)
    assert 0 < made.summary["steps"] < made.summary["steps_total"]
    assert made.predict_proba(ROWS).shape == (900, 2)
    words = ["train", "--resume", "--no-serve", "--out", str(made.run), "--steps", str(made.summary["steps"] + 2)]
    assert main(words) == 0, "the directory is free"
