"""Some models of other libraries, trained plain and wrapped. `make check-clients` tries all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("library", CLIENTS)
def test_models_of_a_library_train_with_equal_losses(library: str) -> None:
    package, names = CLIENTS[library]
    pytest.importorskip(
        package, reason=f"{package} is not installed here; make check-clients has it", exc_type=ImportError
    )
    command = [sys.executable, "-m", "benchmarks.clients", library, *(["--only", *names] if names else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    if f"{library}: absent" in done.stdout:
        pytest.skip(done.stdout.splitlines()[0])
    assert " 0 of " not in done.stdout.splitlines()[-1], done.stdout
    assert "broken" not in done.stdout.splitlines()[-1], done.stdout
