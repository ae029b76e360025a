"""Wrong inputs to a trained model and around it: said at once, in a line, with rule, name and value."""

from __future__ import annotations

import csv
import errno
import gzip
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from adaptive_rec.checkpoint.files import DiskOutput
from adaptive_rec.cli import main, train_settings
from adaptive_rec.data.prepared_arrays import mapped
from adaptive_rec.data.standard import Standard
from adaptive_rec.data.tabular.infer import infer
from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.errors import DataError
from adaptive_rec.offline.forecast.sources import read_keys
from adaptive_rec.system import cuda_driver
from adaptive_rec.units import readable

SETTINGS = ["--no-serve", "--set", "model.bottom_mlp=[8]", "--set", "model.top_mlp=[8]"]


# An exported model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_py(place: Path) -> Any:
    """The module model.py of an exported run."""
    folder = place / "exported"
    assert main(["export", str(place / "runs" / "a"), "--to", str(folder)]) == 0
    spec = importlib.util.spec_from_file_location("model_py", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROWS: dict[str, Any] = {
    "user_id": [3, 4],
    "item": ["item, 1", "item, 2"],
    "kinds": ["new|old", ""],
    "price": [1.5, None],
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"user_id": None}, "columns must have 'user_id', a column of the training data, got item, kinds, price"),
        ({"price": [1.0]}, "columns must have as many rows as 'user_id', 2, got 1 of 'price'"),
        ({"item": "item, 1"}, "column 'item' must be a list of values, got 'item, 1'"),
        ({"price": 3}, "column 'price' must be a list of values, got 3"),
        ({"price": [1.0, float("inf")]}, "column 'price', row 2: must be a number, finite in 32 bits, got inf"),
        ({"price": ["1", "-inf"]}, "column 'price', row 2: must be a number, finite in 32 bits, got '-inf'"),
        ({"price": ["1_000", "1"]}, "column 'price', row 1: must be a number, finite in 32 bits, got '1_000'"),
        ({"price": ["1e400", "1"]}, "column 'price', row 1: must be a number, finite in 32 bits, got '1e400'"),
        ({"user_id": ["3", "three"]}, "column 'user_id', row 2: must be a whole number, got 'three'"),
        ({"user_id": [3, 4.5]}, "column 'user_id', row 2: must be a whole number, got 4.5"),
        ({"user_id": [[3], [4]]}, r"column 'user_id', row 1: must be a whole number or a text, got \[3\]"),
        ({"kinds": ["new", 7]}, "column 'kinds', row 2: must be a list of values, got 7"),
    ],
)
def test_columns_that_an_exported_model_cannot_score_are_named(
    model_py: Any, place: Path, changed: dict[str, Any], told: str
) -> None:
    columns = {name: values for name, values in {**ROWS, **changed}.items() if values is not None}
    with pytest.raises(ValueError, match=f"^{told}$"):
        model_py.Model(place / "exported").scores(columns)


def test_missing_values_and_numbers_of_numpy_are_scored(model_py: Any, place: Path) -> None:
    model = model_py.Model(place / "exported")
    plain = model.scores(ROWS)
    others = {
        "user_id": np.array([3, 4]),
        "item": ROWS["item"],
        "kinds": [["new", "old"], None],
        "price": ["1.5", "nan"],
    }
    np.testing.assert_array_equal(model.scores(others), plain)


def test_numbers_far_from_zero_are_standardised_as_the_run_does(model_py: Any) -> None:
    mean, deviation, values = 1.6e9 + 0.67, 836.29, np.array([1.6e9 + 900.0, 1.6e9 + 2580.0])
    column = {"column": "when", "transform": "standard", "missing": 0.0, "mean": mean, "deviation": deviation}
    run = Standard((0,), np.array([mean]), np.array([deviation]), np.zeros(1, dtype=np.float32))
    expected = run.apply(values.astype(np.float32)[:, None])[:, 0]
    np.testing.assert_array_equal(model_py.transformed(values.tolist(), column), expected)


def test_a_packed_file_is_scored_as_the_plain_one(
    model_py: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "user_id\titem\tkinds\tprice\n3\titem, 1\tnew\t1\n"
    (tmp_path / "rows.tsv").write_text(text)
    (tmp_path / "rows.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert [model_py.main([str(tmp_path / name)]) for name in ("rows.tsv", "rows.tsv.gz")] == [0, 0]
    plain, packed = capsys.readouterr().out.split()
    assert plain == packed


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rows.parquet", b"PAR1\xff\xfe\x00", "must be a CSV or TSV file in utf-8, plain or .gz, it is none: "),
        ("rows.csv.gz", b"user_id,item", "cannot be read: Not a gzipped file"),
        (
            "rows.csv",
            b"user_id,item,kinds,price\n",
            "must name its columns in the first line and hold at least one row",
        ),
        ("rows.csv", b"", "must name its columns in the first line and hold at least one row"),
        ("rows.csv", b"user_id,item,kinds,price\n3,a\n", "row 1: must have 4 fields between ',', got 2"),
        ("rows.csv", b"user_id,item\n3,a\n", "columns must have 'kinds'"),
        (".", None, "cannot be read: Is a directory"),
        ("none.csv", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_model_py_cannot_score_is_an_error_of_one_line(
    model_py: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, told: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert model_py.main([str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert told in printed.err
    assert printed.err.count("\n") == 1


def test_model_py_wants_one_file(model_py: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_py.main([]) == 2
    assert capsys.readouterr().err == "error: give one CSV or TSV file: python model.py rows.csv, got 0 words\n"


# Before data is prepared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (["knobs.policy=fae", "eval.mode=next_window", "eval.every_steps=9", "data.shuffle=false"], "knobs.policy must keep"),
        (["run.device=cpu", "run.cold_rows=direct"], "run.cold_rows must be auto or staged on a CPU"),
        (["run.classify=device"], "run.classify must be host where several processes train together"),
    ],
)
@pytest.mark.parametrize("begins", [["--dry-run"], ["--out", "runs/one"]])
def test_settings_that_do_not_go_together_are_refused_before_data_is_prepared(
    settings: list[str], rule: str, begins: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_text("clicked,item\n1,x\n0,y\n")
    given = [word for each in settings for word in ("--set", each)] + ["--processes", "2"] * ("processes" in rule)
    assert main(["train", "--data", "clicks.csv", "--label", "clicked", "--no-serve", *given, *begins]) == 2
    assert rule in capsys.readouterr().err
    assert os.listdir() == ["clicks.csv"]


# Before torch is loaded ----------------------------------------------------------------------------------------------


def a_run(folder: Path, checkpoint: bool = True, source: str = "synthetic") -> Path:
    """Make what looks like a run directory."""
    (folder / "checkpoints" / "step-000000010").mkdir(parents=True) if checkpoint else folder.mkdir()
    (folder / "config.toml").write_text(f'[data]\nsource = "{source}"\n')
    return folder


USES = [
    ["predict", "RUN", "--data", "rows.csv", "--out", "scores.csv"],
    ["eval", "RUN"],
    ["export", "RUN", "--to", "model"],
    ["nearest", "RUN", "item", "x"],
]


@pytest.mark.parametrize("words", USES, ids=lambda words: words[0])
def test_a_run_that_cannot_be_used_is_refused_at_once(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "error: RUN must be a run directory, RUN does not exist\n" == refused(*words)
    Path("file").write_text("")
    assert "error: RUN must be a run directory, file is a file\n" == refused(words[0], "file", *words[2:])
    Path("folder").mkdir()
    assert "error: RUN must be a run directory, folder has no config.toml\n" == refused(words[0], "folder", *words[2:])
    a_run(Path("young"), checkpoint=False)
    assert "with a checkpoint, young has none" in refused(words[0], "young", *words[2:])


@pytest.mark.parametrize(
    "words", [USES[0], ["eval", "RUN", "--data", "rows.csv"], *USES[2:]], ids=lambda words: words[0]
)
def test_a_run_without_names_of_columns_is_refused_at_once(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a_run(Path("RUN"))
    assert "RUN must have been trained on CSV, TSV or Parquet files" in (told := refused(*words))
    assert told.endswith("; RUN was trained on synthetic data\n")
    shutil.rmtree("RUN")
    a_run(Path("RUN"), source="runs/data/away")
    assert refused(*words).endswith(
        "RUN needs the file or folder that it was trained on, which has the values of its ids, runs/data/away is gone\n"
    )


def test_rows_and_folders_that_are_not_there_are_named_at_once(place: Path, refused: Callable[..., str]) -> None:
    run = str(place / "runs" / "a")
    for words in (["eval", run], ["predict", run, "--out", str(place / "x.csv")]):
        told = refused(*words, "--data", str(place / "none.csv"), code=3)
        assert told == f"error: --data must be a file or a folder that exists, got {place / 'none.csv'}\n"
    assert refused("export", run, "--to", str(place)).startswith(
        f"error: --to {place} must be a folder that can be made"
    )


def test_a_device_that_is_not_there_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setattr(cuda_driver, "may_have_cuda", lambda: False)
    words = ["train", "tiny", "--out", str(tmp_path / "run"), "--no-serve"]
    assert refused(*words, "--device", "cuda") == f"error: {cuda_driver.NO_CUDA}\n"
    told = refused(*words, "--data", str(tmp_path / "none"))
    assert "must be synthetic, or a file or folder that exists" in told


def test_a_profile_of_costs_that_cannot_be_written_is_refused_before_the_measuring(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert refused("calibrate", "--out", str(tmp_path)).startswith(
        "error: --out must be a file in a folder that exists"
    )
    assert refused("calibrate", "--out", str(tmp_path / "no" / "x.toml")).endswith(f"got {tmp_path}/no/x.toml\n")


def test_a_signal_ends_what_waits_for_threads() -> None:
    text = (
        "import os, signal, threading, time; from adaptive_rec.cli.signals import ended_at_once\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "with ended_at_once(): os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=120).returncode == 130


# Words ---------------------------------------------------------------------------------------------------------------


def test_a_size_below_zero_is_a_value_and_no_option(refused: Callable[..., str]) -> None:
    told = refused("plan", "tiny", "--gpu-memory", "-1GiB")
    assert told == "error: --gpu-memory must be a number of bytes such as 16GiB, got -1GiB\n"


def test_values_that_begin_with_a_dash_come_last(refused: Callable[..., str]) -> None:
    told = refused("nearest", "runs/none", "item", "--", "-18", "--limit", "3")
    assert told == "error: options must come before --, after which all words are values, got --limit after it\n"
    told = refused("nearest", "runs/none", "item", "-x", "--limit", "3")
    assert told.startswith(
        "error: the following arguments are required: VALUE; a value such as -x comes last, after -- ("
    )
    told = refused("export", "runs/none", "--out", "model")
    assert told.startswith("error: the following arguments are required: --to; --out is unknown")
    assert "runs/none does not exist" in refused("nearest", "runs/none", "item", "--limit", "3", "--", "-x")
    assert "runs/none does not exist" in refused("nearest", "runs/none", "item", "-18", "--limit", "3")


def test_a_new_run_that_was_to_be_resumed_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "ratings")
    train_settings.warn_of_no_checkpoint(tmp_path / "ratings")
    assert capsys.readouterr().err == ""
    train_settings.warn_of_no_checkpoint(tmp_path / "rating")
    told = f"warning: --resume: {tmp_path}/rating does not exist; did you mean ratings?: the run starts from the beginning\n"
    assert capsys.readouterr().err == told


def test_names_of_thousands_of_characters_lose_their_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readable("short, as it was\nhere") == "short, as it was\nhere"
    name = "n" * 5000
    (tmp_path / "wide.csv").write_text(f"{name},{name}1,label\n" + "".join(f"{k},{k % 3},{k % 2}\n" for k in range(9)))
    assert main(["data", "prepare", str(tmp_path / "wide.csv"), "--label", "labl", "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "must be a column of" in told
    assert "did you mean label?" in told
    assert len(told) < 2500
    features = [column.feature for column in infer(tmp_path / "wide.csv", "label").schema.sparse]
    assert features
    assert max(map(len, features)) <= 100


def test_a_label_that_names_a_column_and_a_comparison_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.csv").write_text("user,rating >= 4\n1,0\n2,1\n")
    words = ["data", "prepare", str(tmp_path / "two.csv"), "--label", "rating >= 4", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "--label must be a column or a comparison, 'rating >= 4' is both in" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["user >= 1e999", "user >= 1.2.3"])
def test_a_comparison_with_what_is_no_number_is_no_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str
) -> None:
    (tmp_path / "x.csv").write_text("user,label\n1,0\n2,1\n")
    assert main(["data", "prepare", str(tmp_path / "x.csv"), "--label", label, "--out", str(tmp_path / "out")]) == 2
    assert f"or a comparison such as 'rating >= 4', got '{label}'" in capsys.readouterr().err


def test_files_in_the_place_of_folders_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    a_run(Path("run"))
    assert "--out must be a run directory to continue, file is a file" in refused("train", "--resume", "--out", "file")
    assert "or a checkpoint, file is a file" in refused("checkpoint", "list", "file")
    told = refused("export", "run", "--to", "file/m")
    assert told == f"error: --to file/m must be a folder that can be made: {tmp_path}/file is no folder\n"
    assert refused("data", "prepare", "x.csv", "--label", "y", "--out", "file").endswith("new directory, file exists\n")


def test_rows_of_one_label_have_no_auc(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "ones.csv").write_text("user_id,item,kinds,price,label\n1,a,new,1,1\n")
    assert main(["eval", str(place / "runs" / "a"), "--data", str(place / "ones.csv"), "--json"]) == 0
    assert "warning: all rows have the same label: there is no AUC and no normalized entropy" in capsys.readouterr().err


def test_a_file_without_rows_has_no_scores(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "head.csv").write_text("user_id,item,kinds,price\n")
    out = place / "none.parquet"
    assert main(["predict", str(place / "runs" / "a"), "--data", str(place / "head.csv"), "--out", str(out)]) == 3
    assert f"error: --data must hold at least one row, {place}/head.csv has none" in capsys.readouterr().err
    assert not out.exists()


def test_the_rate_of_scoring_leaves_out_the_loading(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(place / "rate.csv")
    assert main(["predict", str(place / "runs" / "a"), "--data", str(place / "clicks.csv"), "--out", out]) == 0
    assert re.search(r"rows +6,000, [\d.,]+( [kM])? a second once the model was loaded\n", capsys.readouterr().out)


def test_a_name_that_is_too_long_is_told_as_it_was_given(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = place / ("y" * 260)
    assert main(["export", str(place / "runs" / "a"), "--to", str(out)]) == 2
    told = capsys.readouterr().err
    assert told.endswith("cannot be written: File name too long\n")
    assert ".draft" not in told
    assert not list(place.glob(".draft*"))


def test_a_full_disk_is_told_by_the_name_that_was_given(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Any, data: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DiskOutput, "write", full)
    assert main(["export", str(place / "runs" / "a"), "--to", str(place / "full")]) == 5
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"error: {place}/full/tables/")
    assert told.endswith("No space left on device")


def test_numpys_advice_to_load_objects_reaches_nobody(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("hello")
    for name in ("objects.npy", "text.npy"):
        for read in (read_keys, lambda path: mapped(path, np.int32, (0,))):
            with pytest.raises(DataError) as error:
                read(tmp_path / name)
            assert "pickle" not in str(error.value)


def test_a_schema_of_a_failed_try_gives_way_to_another_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with open("x.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "seen", "bought"])
        rows.writerows([k % 7, k % 2, int(k % 3 == 0)] for k in range(50))
        rows.writerow([1, "", ""])
    words = ["train", "--data", "x.csv", "--out", "runs/a", *SETTINGS, "--label"]
    kept = Path("runs/x.schema.toml")
    for label in ("seen", "bought"):
        assert main([*words, label]) == 3  # the last row has none
        assert load_schema(kept).label == label
    kept.write_text(f"{kept.read_text()}# edited\n")
    capsys.readouterr()
    assert main([*words, "seen"]) == 2
    assert (
        "--label must be the label of runs/x.schema.toml, 'bought', got 'seen'; remove that file"
        in capsys.readouterr().err
    )


def test_categories_of_bytes_are_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = range(60)
    columns = {"key": [bytes([k % 5, 255]) for k in rows], "label": [k % 2 for k in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), "x.parquet")
    Path("x.toml").write_text('label = "label"\nsparse = ["key"]\n')
    assert main(["train", "--data", "x.parquet", "--schema", "x.toml", "--out", "runs/x", *SETTINGS]) == 0
    assert main(["export", "runs/x", "--to", "model"]) == 2
    told = "error: columns must hold whole numbers or texts to be exported, key holds bytes\n"
    assert capsys.readouterr().err.endswith(told)
    assert not Path("model").exists()
