"""A fresh loop that loads what torch saves of a model and its optimizer goes on to the same bits: by ``torch.save``, by
`torch.distributed.checkpoint.state_dict`, and by `torch.distributed.checkpoint` itself. The source of keys is torch 2.13.0."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import adaptive_rec
from adaptive_rec.system.group import Group
from tests.matrix import always, grid

from .cases import in_turn
from .ranks import patch_ranks

RULES: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda given: optim.SGD(given, lr=0.01),
    "decay": lambda given: optim.SGD(given, lr=0.01, weight_decay=0.01),
    "momentum": lambda given: optim.SGD(given, lr=0.01, momentum=0.9),
    "dampening": lambda given: optim.SGD(given, lr=0.01, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda given: optim.SGD(given, lr=0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda given: optim.Adagrad(given, lr=0.01, lr_decay=0.01, initial_accumulator_value=0.1),
    "adagrad, decay": lambda given: optim.Adagrad(given, lr=0.01, weight_decay=0.01),
    "adam": lambda given: optim.Adam(given, lr=0.01),
    "adam, decay": lambda given: optim.Adam(given, lr=0.01, weight_decay=0.01),
    "adamw": lambda given: optim.AdamW(given, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda given: optim.RMSprop(given, lr=0.01),
    "rmsprop, momentum": lambda given: optim.RMSprop(given, lr=0.01, momentum=0.9, centered=True, weight_decay=0.01),
    "sparse adam": lambda given: optim.SparseAdam(given, lr=0.01),
}
Loop = tuple["Model", optim.Optimizer, Any]


class Model(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = nn.EmbeddingBag(101, 3, mode="sum", sparse=sparse)
        self.items = nn.Embedding(50, 2, sparse=sparse)
        self.dense = nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.bags(ids).sin()).sum() + self.items(ids % 50).cos().sum()


def make(rule: str, in_tiers: bool = True) -> Loop:
    model = Model(sparse=rule == "sparse adam")
    given = [model.bags.weight, model.items.weight] if rule == "sparse adam" else model.parameters()
    optimizer, runtime = RULES[rule](given), None
    if in_tiers:
        knobs = {"reclassify_every": 5, "sample_ratio": 1.0, "hysteresis": 0.0}
        runtime = adaptive_rec.wrap(model, budget="512B", optimizer=optimizer, knobs=knobs)
    return model, optimizer, runtime


def train(loop: Loop, first: int, count: int, rank: int = 0, ranks: int = 1) -> None:
    model, optimizer, _ = loop
    for step in range(first, first + count):
        ids = (torch.rand(6, 2, generator=torch.Generator().manual_seed(step)) ** 2 * 101).long()
        optimizer.zero_grad()
        model(ids[rank::ranks]).backward()
        optimizer.step()


def through_a_file(given: Any) -> Any:
    file = io.BytesIO()
    torch.save(given, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def by_torch_save(saver: Loop, fresh: Loop, _: Path) -> None:
    found = through_a_file({"model": saver[0].state_dict(), "rule": saver[1].state_dict()})
    fresh[0].load_state_dict(found["model"])
    fresh[1].load_state_dict(found["rule"])


def by_runtime(saver: Loop, fresh: Loop, _: Path) -> None:
    """The way of docs/howto/own-model.md, where dense layers have the same optimizer."""
    by_torch_save(saver, fresh, _)
    fresh[2].load_state_dict(through_a_file(saver[2].state_dict()))


def by_state_dict(**options: bool) -> Callable[[Loop, Loop, Path], None]:
    how = StateDictOptions(**options)

    def load(saver: Loop, fresh: Loop, _: Path) -> None:
        weights, state = (through_a_file(part) for part in get_state_dict(*saver[:2], options=how))
        set_state_dict(*fresh[:2], model_state_dict=weights, optim_state_dict=state, options=how)

    return load


def by_checkpoint(**options: bool) -> Callable[[Loop, Loop, Path], None]:
    how = StateDictOptions(**options)

    def load(saver: Loop, fresh: Loop, folder: Path) -> None:
        parts = dict(zip(("model", "rule"), get_state_dict(*saver[:2], options=how), strict=True))
        dcp.save(parts, checkpoint_id=folder, no_dist=True)
        found = dict(zip(("model", "rule"), get_state_dict(*fresh[:2], options=how), strict=True))
        dcp.load(found, checkpoint_id=folder, no_dist=True)
        set_state_dict(*fresh[:2], model_state_dict=found["model"], optim_state_dict=found["rule"], options=how)

    return load


WAYS = {
    "torch.save": by_torch_save,
    "runtime": by_runtime,
    "state dict": by_state_dict(),
    "flat": by_state_dict(flatten_optimizer_state_dict=True),
    "full": by_state_dict(full_state_dict=True, cpu_offload=True),
    "dcp": by_checkpoint(),
    "dcp, flat": by_checkpoint(flatten_optimizer_state_dict=True),
}

def served(case: Any) -> bool:
    """torch refuses the full state dict of an optimizer without a state ("Expected device to be set")."""
    return case["way"] != "full" or case["rule"] not in ("sgd", "decay")


def quick(cases: Any) -> Any:
    """Each way with momentum, whose fresh optimizer has no buffer, and each rule once through a checkpoint or the next way."""
    return [case for case in cases if case["rule"] == "momentum" or case["way"] == "dcp"]


@pytest.mark.filterwarnings("ignore")
@grid(served, quick, rule=list(RULES), way=list(WAYS))
def test_a_fresh_loop_goes_on_to_the_same_bits(rule: str, way: str, tmp_path: Path) -> None:
    """Dense layers, too: torch gives an optimizer no state to load into where it has one of a table already."""
    saver = make(rule)
    train(saver, 0, 6)
    saver[1].zero_grad()
    fresh = make(rule)
    WAYS[way](saver, fresh, tmp_path)
    for loop in (saver, fresh):
        train(loop, 6, 6)
    ours, others = fresh[0].state_dict(), saver[0].state_dict()
    assert {name: torch.equal(value, others[name]) for name, value in ours.items()} == dict.fromkeys(others, True)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "sparse adam"])
def test_a_fresh_optimizer_has_the_state_that_torch_gives_it(rule: str) -> None:
    """Which is that of a step with a learning rate and gradients of 0; what it trains after that is the same, too."""
    plain, ours = make(rule, in_tiers=False), make(rule)
    before = copy.deepcopy(ours[0].state_dict())
    theirs, mine = (get_state_dict(*loop[:2])[1]["state"] for loop in (plain, ours))
    assert {name: set(one) for name, one in mine.items()} == {name: set(one) for name, one in theirs.items()}
    for name, state in theirs.items():
        for key, part in state.items():
            torch.testing.assert_close(mine[name][key], part, rtol=1e-14, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in ours[0].state_dict().items())
    assert ours[2].step_number == 0
    for loop in (plain, ours):
        train(loop, 0, 12)
    for name, value in plain[0].state_dict().items():
        torch.testing.assert_close(ours[0].state_dict()[name], value, rtol=1e-11, atol=1e-12)


def test_a_fresh_sparse_adam_has_one_though_torch_refuses_to_make_it() -> None:
    plain, ours = make("sparse adam", in_tiers=False), make("sparse adam")
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        get_state_dict(*plain[:2])
    state = get_state_dict(*ours[:2])[1]["state"]
    assert {name: set(one) for name, one in state.items()} == dict.fromkeys(
        ("bags.weight", "items.weight"), {"step", "exp_avg", "exp_avg_sq"}
    )
    other = make("sparse adam")
    for loop in (ours, other):
        train(loop, 0, 6)
    assert all(torch.equal(value, other[0].state_dict()[name]) for name, value in ours[0].state_dict().items())


@pytest.mark.parametrize("rule", ["sgd", "decay"])
def test_saving_an_optimizer_without_a_state_is_no_step(rule: str) -> None:
    """torch steps it at each save, with a learning rate of 0."""
    loop = make(rule)
    train(loop, 0, 3)
    loop[1].zero_grad()
    steps, updates = loop[2].step_number, loop[2].store.index.traffic.row_updates
    assert get_state_dict(*loop[:2])[1]["state"] == {}
    assert (loop[2].step_number, loop[2].store.index.traffic.row_updates) == (steps, updates)
    assert loop[1].param_groups[0]["lr"] == 0.01


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_an_optimizer_that_was_not_loaded_shows_what_the_runtime_has_loaded(rule: str) -> None:
    saver, fresh = make(rule), make(rule)
    train(saver, 0, 4)
    fresh[2].load_state_dict(saver[2].state_dict())
    for found in (fresh[1].state_dict(), get_state_dict(*fresh[:2])[1]):
        state = found["state"]
        one = state.get(0) or state["bags.weight"]
        assert torch.equal(one[next(reversed(one))], next(reversed(saver[1].state[saver[0].bags.weight].values())))
        assert int(one.get("step", 4)) == 4


def test_rows_updated_in_backward_are_refused_by_torch() -> None:
    """Their state is in ``runtime.state_dict()`` alone; torch names the table that has none."""
    loops = []
    for _ in range(2):
        model = Model(sparse=False)
        rule = optim.Adagrad(model.parameters(), lr=0.01)
        runtime = adaptive_rec.wrap(model, budget="512B", optimizer=rule, update="backward")
        loops.append((model, rule, runtime))
    saver, fresh = loops
    train(saver, 0, 3)
    saver[1].zero_grad()
    weights, state = get_state_dict(*saver[:2])
    with pytest.raises(RuntimeError, match=r"Missing optimizer state for parameter '(bags|items)\.weight'"):
        set_state_dict(*fresh[:2], model_state_dict=weights, optim_state_dict=state)


@grid(always, in_turn, rule=["momentum", "adagrad", "adamw"], way=["torch.save", "state dict"])
def test_ranks_go_on_to_the_same_bits(rule: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(group: Group) -> bool:
        saver, fresh = make(rule), make(rule)
        train(saver, 0, 6, group.rank, group.ranks)
        saver[1].zero_grad()
        WAYS[way](saver, fresh, tmp_path)
        for loop in (saver, fresh):
            train(loop, 6, 6, group.rank, group.ranks)
        ours, others = fresh[0].state_dict(), saver[0].state_dict()
        return all(torch.equal(ours[name], others[name]) for name in ("bags.weight", "items.weight"))

    assert patch_ranks(monkeypatch)(2, work) == [True, True]


SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from tests.modules.test_distributed_checkpoint import RULES, make, train

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
for rule in RULES:
    loops = []
    for _ in range(2):
        model, optimizer, _ = make(rule)
        loops.append((DistributedDataParallel(model), optimizer, None))
    saver, fresh = loops
    train(saver, 0, 8, rank, ranks)
    saver[1].zero_grad()
    weights, state = get_state_dict(*saver[:2])
    dcp.save({"model": weights, "rule": state}, checkpoint_id=f"{sys.argv[1]}/{rule}")
    weights, state = get_state_dict(*fresh[:2])
    found = {"model": weights, "rule": state}
    dcp.load(found, checkpoint_id=f"{sys.argv[1]}/{rule}")
    set_state_dict(*fresh[:2], model_state_dict=found["model"], optim_state_dict=found["rule"])
    for loop in loops:
        train(loop, 8, 8, rank, ranks)
    ours, others = fresh[0].state_dict(), saver[0].state_dict()
    assert {name: torch.equal(value, others[name]) for name, value in ours.items()} == dict.fromkeys(others, True), rule
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("ranks", [1, 2])
def test_processes_go_on_from_a_distributed_checkpoint(ranks: int, tmp_path: Path) -> None:
    """Real processes, beside DistributedDataParallel."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path / "saved")], cwd=Path(__file__).parents[2], capture_output=True,
        text=True, check=False, timeout=180, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_step_of_nothing_is_a_step_once_there_is_a_state() -> None:
    """With a learning rate of 0 and gradients of zeros momentum decays, as in torch 2.13."""
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleDict({"t": nn.Embedding(3, 2, dtype=torch.float64)})
        rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if wrapped:
            adaptive_rec.wrap(model, budget=0, optimizer=rule)
        model["t"](torch.tensor([1])).sum().backward()
        rule.step()
        rule.param_groups[0]["lr"] = 0.0
        model["t"].weight.grad = torch.zeros(3, 2, dtype=torch.float64)
        rule.step()
        found.append(torch.as_tensor(rule.state[model["t"].weight]["momentum_buffer"]).clone())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-14)
