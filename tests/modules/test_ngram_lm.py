"""The language model of examples/ with tables of n-grams: in each home of rows, and on two ranks, as with torch's own tables."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from . import training
from .test_torchrun import TORCHRUN

SMALL = {"sequences": 4, "length": 16, "files": 12}


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trained(kind: str, steps: int, rule: Any, **home: Any) -> tuple[list[float], dict[str, Any]]:
    script = training.load(f"ngram_lm_{kind}")
    torch.manual_seed(0)
    size = script.Size(**SMALL, home=home)
    model = script.LanguageModel(size)
    losses = list(script.training(model, size, steps, rule))
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("home", "rule", "steps"),
    [
        ("disk", torch.optim.Adagrad, 8),
        *(
            pytest.param(home, rule, 200, marks=pytest.mark.slow)
            for home in ("hot", "cold", "disk")
            for rule in (torch.optim.SparseAdam, torch.optim.Adagrad)
        ),
    ],
)
def test_in_each_home_the_model_is_that_of_plain_tables(home: str, rule: Any, steps: int, tmp_path: Path) -> None:
    homes: dict[str, dict[str, Any]] = {
        "hot": {"budget": "64MiB"}, "cold": {"budget": 0}, "disk": {"host_memory": "1MiB", "disk": tmp_path}
    }  # fmt: skip
    ours, theirs = trained("adaptive", steps, rule, **homes[home]), trained("plain", steps, rule)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    for name, value in theirs[1].items():
        torch.testing.assert_close(ours[1][name], value, rtol=0, atol=1e-9, msg=name)
    assert all(theirs[1][f"ngrams.{number}.weight"].any() for number in range(3)), "the tables have learned"


RANKS = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, {examples!r})
import adaptive_rec
import ngram_lm_adaptive as script
from ngrams import Batch, Size, batches

dist.init_process_group("gloo")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
size = Size(**{size!r}, home={{"budget": "256KiB"}})
model = script.LanguageModel(size)
share = size.sequences // dist.get_world_size()
own = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
tables = torch.optim.SparseAdam(model.ngrams.parameters(), lr=0.01)
rest = torch.optim.AdamW([each for name, each in model.named_parameters() if not name.startswith("ngrams")], lr=3e-3)
runtime = adaptive_rec.wrap(model, optimizer=tables, **size.home)
parallel = DistributedDataParallel(model)
for batch in batches({steps}, size):
    part = Batch(batch.tokens[own], batch.following[own], [ids[own] for ids in batch.ngrams])
    loss = script.loss_of(parallel, part)
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
def test_two_ranks_train_the_model_of_one(tmp_path: Path) -> None:
    script = RANKS.format(examples=str(training.EXAMPLES), size=SMALL, steps=200)
    states = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        (folder / "mine.py").write_text(script)
        command = [*TORCHRUN, f"--nproc-per-node={ranks}", "mine.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stderr
        states.append(torch.load(folder / "model.pt", weights_only=True))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=1e-9, msg=name)
