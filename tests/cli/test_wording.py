"""The words of errors: the rule, the name and the value, in the project's own sentences."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import export, main, runs
from adaptive_rec.config.faults import RULES
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepared_arrays import NpyRows
from adaptive_rec.errors import ConfigError, DataError, UsageError
from adaptive_rec.run.serving import kept_options
from adaptive_rec.units import counted


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("run.steps=-1", "run.steps must be at least 0, got -1"),
        ("run.steps=abc", "run.steps must be a whole number, got 'abc'"),
        ("run.steps=1.5", "run.steps must be a whole number, got 1.5"),
        ("run.threads=10000", "run.threads must be at most 1024, got 10000"),
        ("run.classify_threads=10000", "run.classify_threads must be at most 1024, got 10000"),
        ("run.cuda_graphs=3", "run.cuda_graphs must be true or false, got 3"),
        ("run.device=tpu", "run.device must be 'auto', 'cpu' or 'cuda', got 'tpu'"),
        ("run.track=3", "run.track must be a list, got 3"),
        ("knobs.alpha=2", "knobs.alpha must be at most 1, got 2"),
        *[
            (f"knobs.hot_budget_bytes={wrong}", f"knobs.hot_budget_bytes must be a size such as 64MiB, got {wrong!r}")
            for wrong in ("1,5GiB", "5GB?", "5MiB/s", "5 G B", "3MiB;rm", "\u0665MiB")
        ],
        ("knobs.hot_budget_bytes=abc", "knobs.hot_budget_bytes must be a size such as 64MiB, got 'abc'"),
        ("model.bottom_mlp=3", "model.bottom_mlp must be a list, got 3"),
        ("data.train_range=[0.5]", "data.train_range.1 must be given"),
        ("data.source=3", "data.source must be a text, got 3"),
        ("optimizer.embedding_lr=nan", "optimizer.embedding_lr must be a finite number, got nan"),
        ("optimizer.dense_options=3", "optimizer.dense_options must be a section with keys, got 3"),
    ],
)
def test_a_wrong_setting_names_rule_key_and_value(setting: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, {}, [setting])
    assert str(error.value) == told


def test_no_rule_is_worded_as_pydantic_words_it() -> None:
    assert not [rule for rule in RULES.values() if "should" in rule or "Input" in rule]
    with pytest.raises(ConfigError) as error:
        Knobs().changed({"alpha": "much", "probe_ratio": -1, "report_every": 1.5, "policy": 3})
    assert "should" not in str(error.value)
    assert str(error.value).count(" must be ") == 4


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("data prepare", "SRC, --out"),
        ("data prepare --out x", "SRC"),
        ("data prepare x", "--out"),
        ("predict", "RUN, --data, --out"),
        ("checkpoint import", "FILE, --config, --out"),
    ],
)
def test_all_missing_arguments_are_named(words: str, missing: str, refused: Callable[..., str]) -> None:
    assert f"the following arguments are required: {missing} (see" in refused(*words.split())


def test_a_file_of_scores_in_a_folder_that_is_not_there_is_refused_at_once(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    out = tmp_path / "none" / "scores.csv"
    assert refused("predict", "runs/one", "--data", "rows.csv", "--out", str(out)).endswith(
        f"--out must be a file in a folder that exists, got {out}\n"
    )


def denied(*_: object, **__: object) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs/one/metrics.jsonl")


def test_a_file_that_may_not_be_read_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from adaptive_rec.offline.report import run_report

    monkeypatch.setattr(run_report, "write_report", denied)
    assert main(["report", "runs/one"]) == UsageError.exit_code
    assert capsys.readouterr().err.endswith("error: runs/one/metrics.jsonl cannot be used: Permission denied\n")


def test_what_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x_dense.npy", np.zeros((2, 1), dtype=np.float32))
    (tmp_path / "serve.json").write_text("{}")
    monkeypatch.setattr(np.lib.format, "open_memmap", denied)
    with pytest.raises(DataError, match=r"x_dense.npy cannot be read: Permission denied$"):
        NpyRows(tmp_path / "x_dense.npy", np.float32, (2, 1))
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(UsageError, match=r"serve.json cannot be read: Permission denied$"):
        kept_options(tmp_path)


def test_one_thing_is_no_plural() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]


def test_a_report_overwrites_no_file(tmp_path: Path) -> None:
    held = tmp_path / "mine.csv"
    held.write_text("a,b")
    with pytest.raises(UsageError, match=r"--out must be a new file, .*mine\.csv exists"):
        runs.report(argparse.Namespace(directory=tmp_path, out=held))
    assert held.read_text() == "a,b"


def test_links_that_lead_in_a_circle_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    for words in (["train", "tiny", "--out", "one", "--no-serve"], ["train", "--data", "one", "--label", "x", "--no-serve"]):
        assert main(words) in (2, 3)


def test_a_value_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="VALUE must be text in UTF-8"):
        export.nearest(argparse.Namespace(directory=tmp_path, column="c", value="\udcff", limit="3", json=False))
