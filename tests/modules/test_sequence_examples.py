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


SHARES = {
    "ngram_lm": "Batch(batch.tokens[own], batch.following[own], [ids[own] for ids in batch.ngrams])",
    "hstu": "Batch(batch.users[own], batch.tracks[own], batch.listened[own], batch.labels[own])",
}
STREAMS = {"ngram_lm": "batches({steps}, size)", "hstu": "batches(log_of(size), size, 0, {steps} * size.batch)"}
LOSSES = {
    "ngram_lm": "script.loss_of(parallel, part)",
    "hstu": "torch.nn.functional.binary_cross_entropy_with_logits(parallel(part), part.labels)",
}
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
size = Size(**{size!r}, home={{"budget": "256KiB"}})
model = script.{model}(size)
share = (size.sequences if hasattr(size, "sequences") else size.batch) // dist.get_world_size()
own = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
of_tables = [each for module in model.modules() if isinstance(module, torch.nn.Embedding) for each in module.parameters()]
others = [each for each in model.parameters() if not any(each is one for one in of_tables)]
tables, rest = torch.optim.Adagrad(of_tables, lr=0.01), torch.optim.AdamW(others, lr=3e-3)
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


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_train_the_model_of_one(name: str, tmp_path: Path) -> None:
    script = RANKS.format(
        examples=str(training.EXAMPLES), name=name, model=MODELS[name], size=SMALL[name], stream=STREAMS[name].format(steps=200),
        share=SHARES[name], loss=LOSSES[name],
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
        states.append(torch.load(folder / "model.pt", weights_only=True))
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
