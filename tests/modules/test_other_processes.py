"""Wrapped models and other processes: rows are in the memory of one, so what would train them in another is refused by name. In
torch (2.13.0) parameters that are sent, or shared before a fork, are trained by all."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import select
import signal
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import adaptive_rec
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import ConfigError
from adaptive_rec.run.training_run import TrainingRun

from .training import wrapped

NOT_FORKED = "ConflictError: tables in two tiers must be used in the process that has them"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.top = nn.Embedding(50, 4), nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.items(ids)).square().mean()


def saved_whole(thing: Any) -> None:
    torch.save(thing, io.BytesIO())


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy, saved_whole])
def test_a_runtime_that_is_pickled_or_copied_says_what_to_keep(way: Callable[[Any], object], tmp_path: Any) -> None:
    _, _, runtime = trained()
    keep = r"keep model.state_dict\(\) and runtime.state_dict\(\), or copy.deepcopy\(model\)"
    with pytest.raises(TypeError, match=f"WrappedRuntime must not be pickled or copied, as its rows are in this process; {keep}"):
        way(runtime)
    run = TrainingRun(load_config("tiny", {}, ["run.device=cpu", "run.steps=1"]), tmp_path / "run")
    with pytest.raises(TypeError, match="TrainingRun must not be pickled or copied.*resume=True goes on with"):
        way(run)
    with pytest.raises(TypeError, match="Runtime must not be pickled or copied.*its checkpoints keep a run"):
        way(run.runtime)


def trained(**options: Any) -> tuple[Any, torch.optim.Optimizer, Any]:
    """Return a wrapped model that has made a step, and has a gradient for the next one."""
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    runtime = wrapped(model, optimizer, budget="1KiB", **options)
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad()
        model(torch.arange(5)).backward()
    return model, optimizer, runtime


def in_fork(work: Callable[[], object]) -> str:
    """Carry out a function in a forked process. Returns "" or its error."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        text = ""
        try:
            work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writable, text.encode() + b"\n")
        os._exit(0)
    os.close(writable)
    try:
        if not select.select([readable], [], [], 60)[0]:
            os.kill(child, signal.SIGKILL)
            return "no answer"
        return os.read(readable, 1 << 16).decode().rstrip("\n")
    finally:
        os.waitpid(child, 0)
        os.close(readable)


# Shared memory and other processes' copies ---------------------------------------------------------------------------


def test_share_memory_is_refused_by_name() -> None:
    model, _, _ = trained()
    with pytest.raises(ConfigError, match=r"share_memory must not be called on AdaptiveEmbedding .* copy\.deepcopy"):
        model.share_memory()
    assert not model.items.weight.is_shared()
    assert copy.deepcopy(model).share_memory().items.weight.is_shared()
    adaptive_rec.unwrap(model)
    assert model.share_memory().items.weight.is_shared()


def test_weights_are_not_sent_and_copies_are() -> None:
    model, optimizer, _ = trained()
    weight = model.items.weight
    for given in (model, [model.items], weight, weight.detach(), weight.data[3:5], optimizer, {"all": list(model.parameters())}):
        with pytest.raises(ConfigError, match="weight of table items must not be sent to another process"):
            ForkingPickler.dumps(given)
    for given in (copy.deepcopy(model), weight.detach().clone(), model.state_dict(), optimizer.state_dict()):
        ForkingPickler.dumps(given)


def test_a_pipe_refuses_a_weight_where_it_is_sent() -> None:
    model, _, _ = trained()
    _, end = multiprocessing.get_context("spawn").Pipe()
    with pytest.raises(ConfigError, match="must not be sent"):
        end.send(model)


def test_copies_and_pickles_are_ordinary() -> None:
    model, optimizer, _ = trained()
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    pickled = pickle.loads(pickle.dumps(model))  # noqa: S301 - made here
    for made in (copy.deepcopy(model), pickled, torch.load(saved, weights_only=False)):
        assert type(made.items) is nn.Embedding
        assert type(made.items.weight) is nn.Parameter
        torch.testing.assert_close(made.state_dict(), model.state_dict(), rtol=0, atol=0)
    state = copy.deepcopy(optimizer.state_dict())["state"][0]
    assert torch.equal(state["exp_avg"], optimizer.state[model.items.weight]["exp_avg"])


def _run(model: nn.Module, state: dict[str, Any], out: Any) -> None:
    parts = {name: float(part.sum()) for name, part in state["state"][0].items()}
    out.put((model(torch.arange(5)).item(), [type(one).__name__ for one in model.parameters()], parts))


def test_a_process_that_is_spawned_gets_a_copy_and_not_the_model() -> None:
    model, optimizer, _ = trained()
    context = multiprocessing.get_context("spawn")
    with pytest.raises(ConfigError, match=r"must not be sent to another process \(started with it"):
        context.Process(target=_run, args=(model, {}, None)).start()
    out = context.Queue()
    child = context.Process(target=_run, args=(copy.deepcopy(model), optimizer.state_dict(), out))
    child.start()
    loss, kinds, parts = out.get(timeout=600)
    child.join(60)
    assert loss == model(torch.arange(5)).item()
    assert kinds == ["Parameter"] * 3
    assert parts == {name: float(part.sum()) for name, part in optimizer.state[model.items.weight].items()}


# Forks ---------------------------------------------------------------------------------------------------------------


def test_a_forked_process_is_refused_by_name_whatever_it_asks_of_the_rows() -> None:
    model, optimizer, runtime = trained()
    weight = model.items.weight
    state = copy.deepcopy(optimizer.state_dict())
    asked: dict[str, Callable[[], object]] = {
        "lookup": lambda: model(torch.arange(5)),
        "step": optimizer.step,
        "rows": lambda: weight[[1, 2]],
        "all rows": model.state_dict,
        "a write": lambda: weight.data.zero_(),
        "a row": lambda: weight.data[1].zero_(),
        "a load": lambda: model.load_state_dict(copy.deepcopy(model.state_dict())),
        "a copy": lambda: copy.deepcopy(model),
        "state": lambda: dict(optimizer.state[weight]),
        "state of all": lambda: copy.deepcopy(optimizer.state_dict()),
        "loaded state": lambda: [optimizer.load_state_dict(state), optimizer.step()],
        "runtime": runtime.state_dict,
        "look-ahead": lambda: next(runtime.prefetch([1], sparse=lambda _: {})),
        "knobs": lambda: runtime.set_knobs(reclassify_every=3),
        "unwrap": lambda: adaptive_rec.unwrap(model, optimizer),
    }
    before = {name: one.clone() for name, one in model.state_dict().items()}
    found = {name: in_fork(ask) for name, ask in asked.items()}
    assert {name: text for name, text in found.items() if not text.startswith(NOT_FORKED)} == {}
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    optimizer.step()


def test_a_rule_by_name_is_refused_in_a_fork_too() -> None:
    model = Model()
    adaptive_rec.wrap(model, budget="1KiB", optimizer="sgd", lr=0.1)
    model(torch.arange(5)).backward()
    assert in_fork(lambda: model(torch.arange(5)).backward()).startswith(NOT_FORKED)


def test_a_fork_that_leaves_the_rows_alone_goes_on() -> None:
    model, _, runtime = trained()
    plain = copy.deepcopy(model)

    def work() -> None:
        assert [name for name, _ in model.named_parameters()] == ["items.weight", "top.weight", "top.bias"]
        assert runtime.stats().steps == 1
        runtime.close()  # as at the end of a process
        plain.items(torch.arange(2))
        made = Model()
        adaptive_rec.wrap(made, budget="1KiB", optimizer="sgd", lr=0.1)
        made.items(torch.arange(2))

    assert in_fork(work) == ""
    assert not runtime.closed


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> int:
        return place


def test_workers_of_a_loader_are_forked_beside_a_wrapped_model() -> None:
    model, optimizer, runtime = trained()
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for ids in runtime.prefetch(loader, sparse=lambda ids: {"items": ids}):
        optimizer.zero_grad()
        model(ids).backward()
        optimizer.step()
    assert runtime.stats().steps == 3
