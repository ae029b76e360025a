"""The sequence models of examples/: in each home of rows, and on two ranks, they train as with torch's own tables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from . import training
from .test_torchrun import TORCHRUN

SMALL: dict[str, dict[str, Any]] = {
    "ngram_lm": {"sequences": 4, "length": 16, "files": 12},
    "hstu": {"batch": 16, "history": 12, "listens": 20_000, "tracks": 3_000},
}
MODELS = {"ngram_lm": "LanguageModel", "hstu": "HSTU"}
RULES = {"ngram_lm": (torch.optim.SparseAdam, torch.optim.Adagrad), "hstu": (torch.optim.SGD, torch.optim.Adagrad)}
"""Adam divides by the gradient: where that is nothing but rounding, a number moves by a whole step of it (in HSTU one number by
1.7e-9 within 200 steps)."""


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trained(name: str, kind: str, steps: int, rule: Any, **home: Any) -> tuple[list[float], dict[str, Any]]:
    script = training.load(f"{name}_{kind}")
    torch.manual_seed(0)
    size = script.Size(**SMALL[name], home=home)
    model = getattr(script, MODELS[name])(size)
    losses = list(script.training(model, size, steps, rule))
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "home", "rule", "steps"),
    [
        ("ngram_lm", "disk", torch.optim.Adagrad, 8),
        ("hstu", "disk", torch.optim.Adagrad, 8),
        *(
            pytest.param(name, home, rule, 200, marks=pytest.mark.slow)
            for name in MODELS
            for home in ("hot", "cold", "disk")
            for rule in RULES[name]
        ),
    ],
)
def test_in_each_home_the_model_is_that_of_plain_tables(name: str, home: str, rule: Any, steps: int, tmp_path: Path) -> None:
    homes: dict[str, dict[str, Any]] = {
        "hot": {"budget": "64MiB"}, "cold": {"budget": 0}, "disk": {"host_memory": "512KiB", "disk": tmp_path}
    }  # fmt: skip
    ours, theirs = trained(name, "adaptive", steps, rule, **homes[home]), trained(name, "plain", steps, rule)
    assert len(ours[0]) == steps
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    for key, value in theirs[1].items():
        torch.testing.assert_close(ours[1][key], value, rtol=0, atol=1e-9, msg=key)


def scattered(numbers: int) -> torch.Tensor:
    """Return the ids of a made-up log with raw ids, by what they are otherwise."""
    return torch.arange(numbers) * 0x9E3779B1 % 2**32


KEPT = {
    "tracks": torch.cat([torch.zeros(1, dtype=torch.int64), scattered(SMALL["hstu"]["tracks"]) + 1]), "users": scattered(1000)
}  # fmt: skip
"""Raw ids of the rows of a model that trains on a log without them."""


def numbered(batches: Iterator[Any]) -> Iterator[Any]:
    """Replace the raw ids of batches by the numbers of the rows that a model of plain tables has for them."""
    for batch in batches:
        for name, ids in KEPT.items():
            order = torch.argsort(ids)
            setattr(batch, name, order[torch.searchsorted(ids[order], getattr(batch, name))])
        yield batch


@pytest.mark.parametrize(
    ("home", "steps"),
    [("disk", 8), *(pytest.param(home, 200, marks=pytest.mark.slow) for home in ("hot", "cold", "disk"))],
)
def test_raw_ids_train_the_model_of_plain_tables(
    home: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: dict[str, Any] = {"ids": "raw", "keys": KEPT}
    homes: dict[str, Any] = {
        "hot": {"budget": "64MiB"}, "cold": {"budget": 0}, "disk": {"host_memory": "512KiB", "disk": tmp_path}
    }  # fmt: skip
    ours = trained("hstu", "adaptive", steps, torch.optim.Adagrad, **raw, **homes[home])
    plain = training.load("hstu_plain")
    monkeypatch.setattr(training, "load", lambda name: plain)
    real = plain.batches
    monkeypatch.setattr(plain, "batches", lambda *some: numbered(real(*some)))
    theirs = trained("hstu", "plain", steps, torch.optim.Adagrad, **raw)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    for name, value in theirs[1].items():
        first = {"tracks.weight": 1, "users.weight": 0}.get(name)
        found = ours[1][name] if first is None else ours[1][name][1 : 1 + len(value) - first]
        torch.testing.assert_close(found, value[first or 0 :], rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_ids_get_rows_as_they_come(name: str, tmp_path: Path) -> None:
    """On a disk as in memory; of the n-grams with fewer rows than ids."""
    keys = {"ngram_lm": [f"ngrams.{number}" for number in range(3)], "hstu": ["tracks", "users"]}
    script = training.load(f"{name}_adaptive")
    found = []
    for home in ({"budget": "256KiB"}, {"host_memory": "256KiB", "disk": tmp_path}):
        torch.manual_seed(0)
        small = {**SMALL[name], **({"tracks": 200, "listens": 2_000} if name == "hstu" else {"rows": 100})}
        size = script.Size(**small, home={**home, "ids": "raw", "keys": dict.fromkeys(keys[name])})
        model = getattr(script, MODELS[name])(size)
        losses = list(script.training(model, size, 4, torch.optim.Adagrad))
        counts = next(module for module in model.modules() if hasattr(module, "runtime")).runtime.stats().raw_ids
        assert counts["keys"] > 60
        assert (counts["refused"] > 0) == (name == "ngram_lm")
        found.append((losses, counts))
    assert found[0] == found[1]


SHARES = {
    "ngram_lm": "Batch(batch.tokens[own], batch.following[own], [ids[own] for ids in batch.ngrams])",
    "hstu": "Batch(batch.users[own], batch.tracks[own], batch.listened[own], batch.labels[own])",
}
STREAMS = {"ngram_lm": "batches({steps}, size)", "hstu": "batches(log_of(size), size, 0, {steps} * size.batch)"}
LOSSES = {
    "ngram_lm": "script.loss_of(parallel, part)",
    "hstu": "torch.nn.functional.binary_cross_entropy_with_logits(parallel(part), part.labels)",
}
STEPS = 200
RANKS = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, {examples!r})
import adaptive_rec
import {name}_adaptive as script
from {name}_adaptive import *

dist.init_process_group("gloo")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
size = Size(**{size!r}, home={home})
model = script.{model}(size)
share = (size.sequences if hasattr(size, "sequences") else size.batch) // dist.get_world_size()
own = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
of_tables = [each for module in model.modules() if isinstance(module, torch.nn.Embedding) for each in module.parameters()]
others = [each for each in model.parameters() if not any(each is one for one in of_tables)]
tables, rest = torch.optim.Adagrad(of_tables, lr=0.01), torch.optim.{rest}(others, lr=3e-3)
runtime = adaptive_rec.wrap(model, optimizer=tables, **size.home)
parallel = DistributedDataParallel(model)
for batch in {stream}:
    part = {share}
    loss = {loss}
    tables.zero_grad()
    rest.zero_grad()
    loss.backward()
    tables.step()
    rest.step()
state = model.state_dict()
if dist.get_rank() == 0:
    torch.save(state, "model.pt")
dist.destroy_process_group()
"""


def without_free_rows(state: dict[str, Any]) -> dict[str, Any]:
    """Set rows that no raw id has to 0: ranks draw first values of their own for them, until an id gets one."""
    for name in [name for name in state if name.endswith("raw_ids")]:
        rows = state[name.replace("raw_ids", "weight")]
        free = torch.ones(len(rows), dtype=torch.bool)
        free[state[name][:, 1]] = free[0] = False  # the first one is shared
        rows[free] = 0
    return state


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "home"),
    [
        *((name, '{"budget": "256KiB"}') for name in MODELS),
        *((name, '{"host_memory": "256KiB", "disk": "rows"}') for name in MODELS),
        ("hstu", '{"host_memory": "256KiB", "disk": "rows", "ids": "raw", "keys": {"tracks": None, "users": None}}'),
    ],
)
def test_two_ranks_train_the_model_of_one(name: str, home: str, tmp_path: Path) -> None:
    """AdamW of the dense layers enlarges rounding: with raw ids a change of 4e-16 in one parameter is one of 9e-7 in a row after
    200 steps of one process, under SGD of 4e-14. So the dense layers beside raw ids are trained by SGD."""
    script = RANKS.format(
        examples=str(training.EXAMPLES), name=name, model=MODELS[name], size=SMALL[name],
        stream=STREAMS[name].format(steps=STEPS), share=SHARES[name], loss=LOSSES[name], home=home,
        rest="SGD" if '"ids"' in home else "AdamW",
    )  # fmt: skip
    states = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        (folder / "mine.py").write_text(script)
        command = [*TORCHRUN, f"--nproc-per-node={ranks}", "mine.py"]
        here = {**os.environ, "PYTHONPATH": str(training.EXAMPLES.parent)}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900, env=here)
        assert done.returncode == 0, done.stderr
        states.append(without_free_rows(torch.load(folder / "model.pt", weights_only=True)))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("name", "words", "rule"),
    [
        ("listens", ["--batch", "0"], "--batch must be 1 or more, got 0"),
        ("listens", ["--steps", "-1"], "--steps must be 0 or more, got -1"),
        ("listens", ["--dim", "15"], "--dim must be a multiple of --heads, got 15 and 2"),
        ("ngrams", ["--length", "0"], "--length must be 1 or more, got 0"),
        ("ngrams", ["--rows", "-5"], "--rows must be 1 or more, got -5"),
        ("ngrams", ["--heads", "3"], "--width must be a multiple of twice --heads, got 32 and 3"),
        ("listens", ["--ids", "raw"], "--ids raw needs the adaptive script"),
        ("ngrams", ["--ids", "raw"], "--ids raw needs the adaptive script"),
    ],
)
def test_options_that_make_no_model_are_refused(
    name: str, words: list[str], rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = training.load(name)
    monkeypatch.setattr("sys.argv", [f"{name}.py", *words])
    with pytest.raises(SystemExit):
        script.arguments()
    assert rule in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--depth", "3", "--budget", "0"])
    steps, size = script.arguments()
    assert (steps, size.depth, size.home) == (300 if name == "ngrams" else 0, 3, {"budget": "0"})


def test_the_adaptive_scripts_take_raw_ids_and_have_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, tables in (("listens", ["tracks", "users"]), ("ngrams", ["ngrams.0", "ngrams.1", "ngrams.2"])):
        monkeypatch.setattr("sys.argv", [f"{name}_adaptive.py", "--ids", "raw"])
        _, size = training.load(name).arguments()
        assert size.raw
        assert size.home == {"budget": "512KiB", "ids": "raw", "keys": dict.fromkeys(tables)}
    ngrams = training.load("ngrams")
    monkeypatch.setattr("sys.argv", ["ngram_lm_plain.py", "--orders", "0"])
    assert ngrams.arguments()[1].orders == 0
    monkeypatch.setattr("sys.argv", ["ngram_lm_adaptive.py", "--orders", "0"])
    with pytest.raises(SystemExit):
        ngrams.arguments()
    assert "--orders must be 1 or more, got 0: a model without tables is trained by ngram_lm_plain" in capsys.readouterr().err
