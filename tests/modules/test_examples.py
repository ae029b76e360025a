"""The scripts under examples/: five lines make a plain one adaptive, and it trains to the same losses."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import adaptive_rec

from . import training
from .cases import few_or_many_steps

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NAMES = ["dlrm", "two_tower", "deepfm", "sasrec", "kjt", "ngram_lm", "hstu"]
RULES = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "lazy_adam": torch.optim.SparseAdam}


def changed_lines(plain: list[str], adaptive: list[str]) -> int:
    """Lines added, taken away or replaced; empty ones do not count."""
    count = 0
    for kind, low, high, first, last in difflib.SequenceMatcher(None, plain, adaptive, autojunk=False).get_opcodes():
        if kind != "equal":
            count += max(sum(bool(line.strip()) for line in part) for part in (plain[low:high], adaptive[first:last]))
    return count


def test_changed_lines_are_counted_like_a_diff() -> None:
    assert changed_lines(["a", "b", "c"], ["a", "x", "", "c", "d"]) == 2
    assert changed_lines(["a", "b", "c"], ["c"]) == 2
    assert changed_lines(["a"], ["b", "c", "d"]) == 3


@pytest.mark.parametrize("name", NAMES)
def test_five_lines_make_a_plain_script_adaptive(name: str) -> None:
    plain, adaptive = ((EXAMPLES / f"{name}_{kind}.py").read_text().splitlines() for kind in ("plain", "adaptive"))
    assert 1 <= changed_lines(plain, adaptive) <= 5
    assert not any("adaptive_rec" in line for line in plain)


@pytest.fixture
def quick_windows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """As the scripts are, but rows move every five steps. The runtimes that they make; each step of theirs is looked at."""
    made: list[Any] = []
    knobs = training.QUICK_WINDOWS

    def wrap(*args: Any, **options: Any) -> Any:
        made.append(real_wrap(*args, knobs=knobs, **options))
        return made[-1]

    def collection(*args: Any, **options: Any) -> Any:
        module = real_collection(*args, knobs=knobs, **options)
        made.append(module.runtime)
        return module

    def look(optimizer: Any, *call: Any) -> None:
        for runtime in made:
            stats = runtime.stats()
            assert stats.device_bytes <= stats.budget_bytes == 512 << 10

    real_wrap, real_collection = adaptive_rec.wrap, adaptive_rec.AdaptiveEmbeddingBagCollection
    monkeypatch.setattr(adaptive_rec, "wrap", wrap)
    monkeypatch.setattr(adaptive_rec, "AdaptiveEmbeddingBagCollection", collection)
    handle = register_optimizer_step_post_hook(look)
    yield made  # type: ignore[misc]
    handle.remove()


@few_or_many_steps(15, 40, name=NAMES, rule=RULES)
def test_both_train_to_the_same_losses(name: str, rule: str, steps: int, quick_windows: list[Any]) -> None:
    losses = []
    for kind in ("plain", "adaptive"):
        script = training.load(f"{name}_{kind}")
        losses.append(script.train(steps, rule if name == "kjt" else RULES[rule]))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-12, atol=0)
    (runtime,) = quick_windows
    training.assert_moved(runtime)
    assert runtime.step_number == steps
    assert runtime.stats().looked_up_ahead_ratio > 0.9


def test_losses_are_printed_by_fifty_steps(capsys: pytest.CaptureFixture[str]) -> None:
    training.data.print_losses([3.0] * 50 + [1.0] * 50)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["steps", "steps"]
    assert [float(line[-1]) for line in lines] == [3.0, 1.0]


@pytest.mark.slow
def test_a_script_runs_and_prints_its_losses() -> None:
    """As a user runs it."""
    script = EXAMPLES / "dlrm_adaptive.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("steps")]
    assert len(lines) == 6
    first, last = (float(line.split()[-1]) for line in (lines[0], lines[-1]))
    assert last < 0.9 * first
    assert "rows hot" in done.stdout


def test_the_stand_in_of_a_jagged_tensor_works_where_torchrec_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    jagged = training.load("jagged")
    assert jagged.KeyedJaggedTensor.__module__ == "jagged"
    kjt = jagged.KeyedJaggedTensor(["a", "b"], torch.arange(4), lengths=torch.tensor([1, 2, 0, 1]))
    tables = [jagged.EmbeddingBagConfig("t", 2, 9, ["a", "b"]), jagged.EmbeddingBagConfig("u", 3, 9, ["b"], "mean")]
    out = jagged.EmbeddingBagCollection(tables)(kjt)
    assert out.keys() == ["a", "b@t", "b@u"]
    assert out.values().shape == (2, 7)
