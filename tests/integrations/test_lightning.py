"""The Lightning callback trains, logs, saves and resumes exactly, and refuses what it cannot do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import CheckpointError, UsageError

pl = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed: pip install pytorch-lightning")

from adaptive_rec.integrations.lightning import AdaptiveRecCallback, LookAhead, runtimes_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("closed_runtimes")

STEPS = 30
"""Of an epoch."""
ROWS = (400, 60)
KNOBS = {"reclassify_every": 7, "sample_ratio": 1.0, "hysteresis": 0.0}
OPTIONS: dict[str, Any] = {"budget": "8KiB", "knobs": KNOBS}


@pytest.fixture(autouse=True)
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In float64 equal is equal. Lightning writes where it is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    torch.set_default_dtype(torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_utilities")
        yield
    torch.set_default_dtype(torch.float32)


class Clicks(torch.utils.data.Dataset[Any]):
    """Two ids and a label, the same for an index every time."""

    def __len__(self) -> int:
        return STEPS * 16

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draws = torch.rand(2, generator=torch.Generator().manual_seed(index))
        return (draws**4 * torch.tensor(ROWS)).long(), (draws.sum() > 0.5).double()


class Model(pl.LightningModule):
    """A user's module: two tables and a tower. Where it is wrapped is up to `where`."""

    def __init__(self, where: str = "init", ahead: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.users, self.items = (nn.EmbeddingBag(rows, 4, mode="sum", sparse=True) for rows in ROWS)
        self.over = nn.Linear(8, 1)
        self.where, self.ahead, self.losses = where, ahead, []  # type: ignore[var-annotated]
        if where == "init":
            self.rows = adaptive_rec.wrap(self, optimizer="adagrad", lr=0.1, **OPTIONS)

    def training_step(self, batch: Any, number: int) -> Tensor:
        ids, labels = batch
        pooled = torch.cat([self.users(ids[:, :1]), self.items(ids[:, 1:])], dim=1)
        loss = nn.functional.binary_cross_entropy_with_logits(self.over(pooled).squeeze(1), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        dense = torch.optim.Adam(self.over.parameters(), lr=0.01)
        if self.where == "init":
            return dense
        sparse = torch.optim.SGD([self.users.weight, self.items.weight], lr=0.1)
        if self.where == "optimizers":
            self.rows = adaptive_rec.wrap(self, optimizer=sparse, **OPTIONS)
        self.automatic_optimization = False
        return [dense, sparse], [torch.optim.lr_scheduler.ExponentialLR(sparse, 0.9)]

    def train_dataloader(self) -> Any:
        loader = torch.utils.data.DataLoader(Clicks(), batch_size=16)
        if not self.ahead:
            return loader
        return LookAhead(self.rows, loader, lambda batch: {"users": batch[0][:, :1], "items": batch[0][:, 1:]})


class ByHand(Model):
    """The same with two optimizers and a schedule, stepped by hand as Lightning wants it then."""

    def training_step(self, batch: Any, number: int) -> Tensor:
        loss = super().training_step(batch, number)
        optimizers, scheduler = self.optimizers(), self.lr_schedulers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        if number % 5 == 4:
            scheduler.step()
        return loss


class Kept(pl.loggers.logger.DummyLogger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.lines.append((step, metrics))


def trainer(epochs: int, *callbacks: Any, **options: Any) -> Any:
    chosen = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    return pl.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=list(callbacks), **{**chosen, **options})


def rows_of(model: Model) -> list[Tensor]:
    return [value for name, value in model.state_dict().items() if name.split(".")[0] in ("users", "items")]


@pytest.mark.parametrize("kind", [(Model, "init"), (ByHand, "optimizers")])
def test_resuming_from_a_checkpoint_equals_an_uninterrupted_run(tmp_path: Path, kind: Any) -> None:
    """Losses, rows, tower, optimizer state, learning rate, hot rows: bit by bit."""
    make, where = kind
    whole = make(where)
    trainer(3, AdaptiveRecCallback()).fit(whole)
    first = make(where)
    before = trainer(1, AdaptiveRecCallback())
    before.fit(first)
    before.save_checkpoint(tmp_path / "one.ckpt")
    second = make(where)
    torch.nn.init.ones_(second.over.weight)  # all of it has to come from the checkpoint
    trainer(3, AdaptiveRecCallback()).fit(second, ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert len(first.losses) == STEPS
    assert first.losses + second.losses == whole.losses
    for found, wanted in zip(second.state_dict().values(), whole.state_dict().values(), strict=True):
        assert torch.equal(found, wanted)
    assert second.rows.lr == whole.rows.lr
    assert second.rows.step_number == whole.rows.step_number == 3 * STEPS
    assert second.rows.stats().hot_rows == whole.rows.stats().hot_rows > 0
    one, other = (model.rows.state_dict()["optimizer"] for model in (second, whole))
    assert [*one] == [*other] == ["0", "1"]
    assert all(torch.equal(one[table], other[table]) for table in other)


def test_it_trains_as_plain_modules_do() -> None:
    plain, adaptive = ByHand("nowhere"), ByHand("optimizers")
    trainer(2).fit(plain)
    trainer(2, AdaptiveRecCallback()).fit(adaptive)
    torch.testing.assert_close(adaptive.losses, plain.losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(rows_of(adaptive), rows_of(plain), rtol=0, atol=1e-11)
    assert adaptive.rows.lr == pytest.approx(0.1 * 0.9**12)


def test_a_checkpoint_of_the_model_loads_into_plain_modules(tmp_path: Path) -> None:
    model = Model()
    fitted = trainer(1, AdaptiveRecCallback())
    fitted.fit(model)
    fitted.save_checkpoint(tmp_path / "one.ckpt")
    plain = Model.load_from_checkpoint(tmp_path / "one.ckpt", where="nowhere")
    assert type(plain.users) is nn.EmbeddingBag
    assert torch.equal(plain.users.weight, model.users.weight)


def test_figures_go_to_the_loggers() -> None:
    model, kept = Model(), Kept()
    trainer(1, AdaptiveRecCallback(every_n_steps=10), logger=kept).fit(model)
    assert [step for step, values in kept.lines if "adaptive_rec/hot/lookup_ratio" in values] == [10, 20, 30]
    _, last = kept.lines[-1]
    assert last["adaptive_rec/rows/hot"] == model.rows.stats().hot_rows > 0
    assert 0 < last["adaptive_rec/hot_lookup_ratio/users"] < 1
    ratios = [values["adaptive_rec/hot/lookup_ratio"] for _, values in kept.lines]
    assert sum(ratios) / 3 == pytest.approx(model.rows.stats().hot_lookup_ratio)  # each is of its own ten steps
    assert len(set(ratios)) == 3


@pytest.mark.parametrize("limit", [1.0, 0.5])
def test_batches_are_looked_up_ahead(limit: float) -> None:
    """To the end of the loader, and where Lightning leaves it in the middle of each epoch."""
    plain, ahead = Model(), Model(ahead=True)
    trainer(2, AdaptiveRecCallback(), limit_train_batches=limit).fit(plain)
    trainer(2, AdaptiveRecCallback(), limit_train_batches=limit).fit(ahead)
    assert ahead.rows.step_number == 2 * limit * STEPS
    assert ahead.losses == plain.losses
    assert plain.rows.stats().looked_up_ahead_ratio == 0
    assert ahead.rows.stats().looked_up_ahead_ratio > 0.9


def test_it_serves_while_it_trains_and_closes_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []

    class Asks(pl.Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("dashboard"))
            answers.append(said.split()[1])
            answers.append(httpx2.get(f"{answers[0]}/livez", trust_env=False).status_code)

    model = Model()
    trainer(1, AdaptiveRecCallback(serve=True), Asks()).fit(model)
    url, status = answers
    assert status == 200
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{url}/livez", trust_env=False)
    assert model.rows.closed


def test_it_closes_when_training_fails() -> None:
    class Fails(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            raise OSError("no more data")

    model = Model()
    with pytest.raises(OSError, match="no more data"):
        trainer(1, AdaptiveRecCallback(), Fails()).fit(model)
    assert model.rows.closed


def test_runtimes_are_found_once_each() -> None:
    model = Model()
    assert runtimes_of(model) == [model.rows]
    bag = adaptive_rec.AdaptiveEmbeddingBag(10, 4, optimizer="sgd", lr=0.1, budget="4KiB")
    plain = adaptive_rec.AdaptiveEmbeddingBag(10, 4)
    assert runtimes_of(nn.ModuleList([model, plain, bag, nn.Sequential(bag)])) == [model.rows, bag.runtime]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "16-mixed"}, "Trainer must not scale gradients"),
        ({"devices": 2, "strategy": "ddp_notebook"}, "Trainer must have one process"),
    ],
)
def test_trainers_that_would_update_rows_wrongly_are_refused(options: Any, said: str, monkeypatch) -> None:
    fitted = trainer(1, AdaptiveRecCallback())
    if "precision" in options:
        fitted.strategy.precision_plugin.scaler = object()  # Lightning makes one on CUDA only
    else:
        monkeypatch.setattr(type(fitted), "world_size", 2)
    with pytest.raises(UsageError, match=said):
        fitted.fit(Model())


def test_trainer_options_that_do_not_apply_to_rows_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="gradient_clip_val leaves rows"):
        trainer(1, AdaptiveRecCallback(), gradient_clip_val=1.0, limit_train_batches=1).fit(Model())
    with pytest.warns(UserWarning, match="accumulate_grad_batches leaves rows"):
        trainer(1, AdaptiveRecCallback(), accumulate_grad_batches=2, limit_train_batches=2).fit(Model())


def test_a_module_without_adaptive_parts_is_an_error() -> None:
    with pytest.raises(UsageError, match="ByHand has none"):
        trainer(1, AdaptiveRecCallback()).fit(ByHand("nowhere"))
    with pytest.raises(UsageError, match="every_n_steps must be at least 1, got 0"):
        AdaptiveRecCallback(every_n_steps=0)
    with pytest.raises(UsageError, match="loader must have a length, generator has none"):
        LookAhead(Model().rows, (each for each in ()), lambda batch: {})


def test_a_checkpoint_without_rows_is_an_error(tmp_path: Path) -> None:
    fitted = trainer(1)
    fitted.fit(Model())
    fitted.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(CheckpointError, match="written without AdaptiveRecCallback"):
        trainer(2, AdaptiveRecCallback()).fit(Model(), ckpt_path=tmp_path / "one.ckpt")
