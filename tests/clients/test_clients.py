"""Some models of other libraries, trained plain and wrapped. `make check-clients` tries all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.clients.client import Client
from tests.clients.table import clients_page
from tests.clients.trial import try_client

ROOT = Path(__file__).parents[2]
CLIENTS = {
    "torchfm": ("torchfm", ["FieldAwareFactorizationMachineModel", "WideAndDeepModel", "ProductNeuralNetworkModel"]),
    "deepctr": ("deepctr_torch", ["DeepFM", "DIN", "DIEN", "MMOE"]),
    "rechub": ("torch_rechub", ["DIN", "MIND (matching)", "HSTUModel (generative)", "ESMM (tasks)"]),
    "recbole": ("recbole", ["BPR", "LightGCN", "FM", "GRU4Rec", "CKE"]),
    "trainers": ("pytorch_lightning", ["Lightning", "Hugging Face Trainer", "accelerate"]),
    "torchrec": ("torchrec", []),
    "sequences": ("torch", []),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", CLIENTS)
def test_models_of_a_library_train_with_equal_losses(library: str) -> None:
    package, names = CLIENTS[library]
    pytest.importorskip(
        package, reason=f"{package} is not installed here; make check-clients has it", exc_type=ImportError
    )
    command = [sys.executable, "-m", "tests.clients", library, *(["--only", *names] if names else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    if f"{library}: absent" in done.stdout:
        pytest.skip(done.stdout.splitlines()[0])
    assert " 0 of " not in done.stdout.splitlines()[-1], done.stdout
    assert "broken" not in done.stdout.splitlines()[-1], done.stdout


class Small(nn.Module):
    def __init__(self, rows: nn.Embedding) -> None:
        super().__init__()
        self.rows, self.top = rows, nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.rows(ids).mean(1)).square().mean()


def _client(rows: Callable[[], nn.Embedding], fault: float = 0.0) -> Client:
    def loss(model: Any, batch: Tensor) -> Tensor:
        wrapped = type(model.rows.weight) is not nn.Parameter
        return model(batch) * (1 + fault * wrapped)

    def batches(steps: int) -> list[Tensor]:
        return list(torch.arange(60).repeat(4).view(-1, 5, 4))[:steps]

    return Client("own", "small", lambda: Small(rows()).double(), batches, loss)


def test_a_trial_tells_equal_from_different_losses() -> None:
    assert try_client(_client(lambda: nn.Embedding(60, 4)), "adam", 10).verdict == "equal"
    found = try_client(_client(lambda: nn.Embedding(60, 4), fault=1e-8), "adam", 10)
    assert found.verdict == "differs"
    assert "losses differ by 1.0e-08 from step 0 on" in found.note


def test_a_trial_tells_what_wrap_refuses() -> None:
    found = try_client(_client(lambda: nn.Embedding(60, 4, max_norm=1.0)), "adagrad", 10)
    assert found.verdict == "refused"
    assert "max_norm" in found.note


def test_a_model_that_does_not_run_plain_is_broken_without_us() -> None:
    found = try_client(_client(lambda: nn.Embedding(10, 4)), "adagrad", 10)
    assert found.verdict == "broken without us"


def test_the_page_has_the_tables_that_trials_give() -> None:
    page = (ROOT / "docs" / "howto" / "clients.md").read_text()
    found = [try_client(_client(lambda: nn.Embedding(60, 4)), rule, 10).as_dict() for rule in ("adagrad", "adam")]
    changed = clients_page(page, found)
    assert "| own | 1 | 1 | 0 | 0 |" in changed
    assert "| small | 2 | equal | equal |  |" in changed
    assert changed.startswith(page[: page.index("<!-- clients: begin -->")])
