"""The page of errors: each address that an error prints is an anchor of docs/faq.md, and the package raises its messages."""

from __future__ import annotations

import ast
import copy
import fcntl
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import adaptive_rec
from adaptive_rec.cli import main
from adaptive_rec.errors import FAQ, AdaptiveRecError, ConfigError, with_address
from adaptive_rec.live.listen import PORTS_TRIED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / FAQ).read_text()
ENTRIES: dict[str, str] = {
    anchor: "".join(text.split("\n\n", 1)[0].split("\n")[1:-1])
    for anchor, text in re.findall(r"^### .+ \{ #([a-z-]+) \}\n\n(```text\n.+\n```)", PAGE, flags=re.M)
}
"""The message of each anchor."""
SETTINGS = ["--no-serve", "--set", "run.device=cpu"]


def raised() -> dict[str, list[str]]:
    """The constant parts of the messages that the sources raise with an address, by its anchor."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "adaptive_rec").rglob("*.py"):
        text = path.read_text()
        if "faq" not in text.lower():
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call):
                names = [word.value for word in call.keywords if word.arg == "faq"]
                if isinstance(call.func, ast.Name) and call.func.id == "see_faq" and len(call.args) == 2:
                    names.append(call.args[1])
                for name in names:
                    if isinstance(name, ast.Constant) and name.value:
                        found.setdefault(name.value, []).append(message_of(call))
        for anchor in re.findall(r"\{FAQ\}#([a-z-]+)", text):
            found.setdefault(anchor, []).append("")
    found["knobs"] = [""]  # the default of KnobError
    return found


def message_of(call: ast.Call) -> str:
    """The constant parts of a call's message."""
    parts = [node for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)] if call.args else []
    parts.sort(key=lambda node: (node.lineno, node.col_offset))
    return "\n".join(node.value for node in parts if isinstance(node.value, str))


RAISED = raised()


def test_each_address_is_an_anchor_of_the_page_and_each_anchor_the_address_of_an_error() -> None:
    assert set(RAISED) - set(ENTRIES) == set(), "an error prints an address that the page does not have"
    assert set(ENTRIES) - set(RAISED) == set(), "an entry of the page that no error leads to"
    assert len(ENTRIES) >= 30


def test_an_error_shows_its_address_in_one_line_and_in_a_traceback() -> None:
    error = ConfigError("rows must be 3, got 4", faq="ids-beyond-the-table")
    assert str(error) == "rows must be 3, got 4"
    assert with_address(error) == "rows must be 3, got 4 (see docs/faq.md#ids-beyond-the-table)"
    assert error.__notes__ == ["See docs/faq.md#ids-beyond-the-table"]
    assert with_address(ConfigError("rows must be 3, got 4")) == "rows must be 3, got 4"


def check(anchor: str, message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in ENTRIES[anchor].split("..."))
    assert re.search(pattern, message, flags=re.S), f"the page has {ENTRIES[anchor]!r}, the error is {message!r}"


# On the command line -------------------------------------------------------------------------------------------------

FILES = {
    "clicks.csv": "clicked,user,price,stars\n" + "".join(f"{n % 3 % 2},u{n % 97},{n % 50}.5,{n % 5 + 1}\n" for n in range(300)),
    "numbers.csv": "clicked,price\n" + "".join(f"{n % 2},{n * 1.37:.2f}\n" for n in range(100)),
    "empty.csv": "",
    "names.csv": "clicked,user\n",
    "rows.csv": "".join(f"{n % 2},u{n % 9}\n" for n in range(100)),
    "short.csv": "clicked,user,item\n" + "".join(f"{n % 2},u{n % 9},{n % 7}\n" for n in range(50)) + "1,2\n",
    "criteo.tsv": "".join("\t".join([str(n % 2), *["1"] * 13, *["a"] * 25]) + "\n" for n in range(50)),
    "broken.toml": "[run\n",
}

COMMANDS: list[tuple[str, list[str]]] = [
    ("unknown-command", ["trian"]),
    ("unknown-key", ["train", "tiny", "--set", "run.stepz=4"]),
    ("value-of-a-setting", ["train", "tiny", "--set", "run.steps=-1"]),
    ("unknown-preset", ["train", "tinny"]),
    ("configuration-file", ["train", "broken.toml"]),
    ("policy-name", ["train", "tiny", "--policy", "hotlin"]),
    ("own-class", ["train", "tiny", "--policy", "not_there:Class"]),
    ("not-together", ["train", "tiny", "--set", "run.precision=tf32", *SETTINGS]),
    ("out-exists", ["train", "tiny", "--out", "clicks.csv"]),
    ("no-such-data", ["train", "--data", "missing.csv"]),
    ("no-label", ["train", "--data", "clicks.csv"]),
    ("label-column", ["train", "--data", "clicks.csv", "--label", "clik"]),
    ("label-values", ["train", "--data", "clicks.csv", "--label", "stars"]),
    ("no-categories", ["train", "--data", "numbers.csv", "--label", "clicked"]),
    ("first-line", ["train", "--data", "rows.csv", "--label", "clicked"]),
    ("fields-of-a-row", ["train", "--data", "short.csv", "--label", "clicked"]),
    ("criteo-columns", ["train", "--data", "criteo.tsv", *SETTINGS]),
    ("empty-file", ["train", "--data", "empty.csv", "--label", "clicked"]),
    ("empty-file", ["train", "--data", "names.csv", "--label", "clicked"]),
    ("host-memory", ["train", "tiny", "--set", "run.batch_size=10000000000", *SETTINGS]),
    ("nothing-to-resume", ["train", "--resume", "--out", "fresh"]),
    ("not-a-run", ["eval", "."]),
    ("hot-rows-and-host-memory", ["train", "tiny", "--policy", "device_only", "--set", "run.host_memory=1KiB", *SETTINGS]),
    ("no-run-under-way", ["status"]),
    ("token", ["status", "--url", "http://127.0.0.1:1"]),
    ("open-to-the-network", ["train", "tiny", "--host", "0.0.0.0"]),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faq")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("anchor", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_a_command_prints_the_message_and_its_address(
    anchor: str, words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.delenv("ADAPTIVE_REC_TOKEN", raising=False)
    if anchor != "no-label" and any(word.endswith(".csv") for word in words):
        pytest.importorskip("pyarrow", reason="pyarrow reads CSV files")
    assert main(list(words)) in (2, 3, 4)
    printed = capsys.readouterr().err
    check(anchor, printed)
    assert printed.endswith(f"(see docs/faq.md#{anchor})\n")


def test_messages_of_a_run_that_was_trained(
    finished_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("plain", links=False)
    resume = ["train", "--resume", "--no-serve", "--out", str(run)]
    commands = [
        ("steps-already-made", [*resume, "--steps", "10"]),
        ("other-settings", [*resume, "--steps", "60", "--set", "run.seed=3"]),
        ("no-names-of-columns", ["predict", str(run), "--data", "x.csv", "--out", str(tmp_path / "s.csv")]),
    ]
    for anchor, words in commands:
        assert main(words) in (2, 5), words
        check(anchor, capsys.readouterr().err)
    for path in run.glob("checkpoints/step*/rows*"):
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert main(["eval", str(run)]) == 5
    check("damaged-checkpoint", capsys.readouterr().err)


@pytest.mark.slow
def test_a_loss_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.finished_runs import settings

    words = [word for one in [*settings("plain"), "optimizer.dense_lr=1e30"] for word in ("--set", one)]
    assert main(["train", "tiny", "--no-serve", "--out", str(tmp_path / "run"), *words]) == 1
    check("not-finite", printed := capsys.readouterr().err)
    assert printed.endswith("(see docs/faq.md#not-finite)\n")


def test_memory_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: object) -> None:
        raise MemoryError("Unable to allocate 97.4 GiB")

    monkeypatch.setattr("adaptive_rec.cli.train_settings.resolve_run", refuse)
    assert main(["train", "tiny"]) == 4
    check("out-of-memory", printed := capsys.readouterr().err)
    assert "(see docs/faq.md#out-of-memory)\n" in printed


def test_what_stands_in_the_way_at_the_start(
    finished_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(anchor: str, *words: str) -> None:
        assert main(list(words)) in (1, 2, 5)
        check(anchor, capsys.readouterr().err)

    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "x" * 40)
    refused("unreachable", "status", "--url", "http://127.0.0.1:1")
    monkeypatch.setattr("adaptive_rec.system.cuda_driver.may_have_cuda", lambda: False)
    refused("no-gpu", "train", "tiny", "--device", "cuda", "--out", str(tmp_path / "new"))
    monkeypatch.setattr("adaptive_rec.memory.disk.free_bytes", lambda folder: 1)
    refused("disk-full", "train", "tiny", "--out", str(tmp_path / "new"), *SETTINGS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "clicks.csv").write_text(FILES["clicks.csv"])
    refused("pyarrow", "train", "--data", str(tmp_path / "clicks.csv"), "--label", "clicked")
    run, busy = finished_run("plain"), BlockingIOError()
    monkeypatch.setattr(fcntl, "lockf", lambda *_: (_ for _ in ()).throw(busy))
    refused("out-in-use", "train", "--resume", "--no-serve", "--out", str(run), "--steps", "60")


# In a loop of the user's own -----------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(100, 8, mode="sum")
        self.net = nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.net(self.items(ids)).squeeze(1)  # type: ignore[no-any-return]


class Loop:
    """A wrapped model that has made a step."""

    def __init__(self, make: type[torch.optim.Optimizer] = torch.optim.Adagrad) -> None:
        self.model = Model()
        self.optimizer = make(self.model.parameters(), lr=0.1)  # type: ignore[call-arg]
        self.runtime = adaptive_rec.wrap(self.model, budget="1KiB", optimizer=self.optimizer)
        self.step()

    def step(self, optimizer: torch.optim.Optimizer | None = None, id_: int = 3) -> None:
        self.model.zero_grad()
        self.model(torch.tensor([[id_]])).sum().backward()
        (optimizer or self.optimizer).step()


def wrap_without_rule() -> None:
    model = Model()
    adaptive_rec.wrap(model, budget="1KiB", optimizer=torch.optim.RAdam(model.parameters()))


def wrap_by_the_dense_optimizer() -> None:
    model = Model()
    adaptive_rec.wrap(model, budget="1KiB", optimizer=torch.optim.Adagrad(model.net.parameters()))


def load_a_kept_state() -> None:
    loop = Loop()
    kept = loop.model.state_dict()
    loop.step()
    loop.model.load_state_dict(kept)


def step_by_another_optimizer() -> None:
    loop = Loop()
    loop.step(torch.optim.SGD(loop.model.parameters(), lr=0.1))


def step_after_close() -> None:
    loop = Loop()
    loop.runtime.close()
    loop.step()


def read_what_was_not_announced() -> None:
    items = adaptive_rec.AdaptiveEmbedding(100, 8, ids="raw", budget="1KiB", optimizer=torch.optim.Adagrad)
    for _ in items.runtime.prefetch([torch.tensor([5])] * 3, sparse=lambda batch: {"weight": batch}):
        items(torch.tensor([6])).sum().backward()


LOOPS: dict[str, Callable[[], object]] = {
    "no-optimizer": lambda: adaptive_rec.wrap(Model(), budget="1KiB"),
    "optimizer-without-a-rule": wrap_without_rule,
    "tables-of-an-optimizer": wrap_by_the_dense_optimizer,
    "other-options-than-wrap": step_by_another_optimizer,
    "nothing-to-wrap": lambda: adaptive_rec.wrap(nn.Linear(2, 2), budget="1KiB", optimizer="adagrad", lr=0.1),
    "wrapped-twice": lambda: adaptive_rec.wrap(Loop().model, budget="1KiB", optimizer="adagrad", lr=0.1),
    "budget-too-small": lambda: adaptive_rec.wrap(Model(), budget="10", optimizer="adagrad", lr=0.1),
    "ids-beyond-the-table": lambda: Loop().step(id_=100),
    "moved-after-wrap": lambda: Loop().model.half(),
    "memory-of-a-weight": lambda: Loop().model.items.weight.data_ptr(),
    "live-state-dict": load_a_kept_state,
    "pickled": lambda: copy.deepcopy(Loop().runtime),
    "knobs": lambda: Loop().runtime.set_knobs(alfa=0.5),
    "not-announced": read_what_was_not_announced,
    "closed": step_after_close,
}


@pytest.mark.parametrize("anchor", LOOPS)
def test_an_exception_has_the_message_and_its_address(anchor: str) -> None:
    with pytest.raises((AdaptiveRecError, TypeError)) as found:
        LOOPS[anchor]()
    check(anchor, str(found.value))
    assert found.value.__notes__ == [f"See docs/faq.md#{anchor}"]


# What no test of a second can provoke ---------------------------------------------------------------------------------

ELSEWHERE = {
    "not-finite", "damaged-checkpoint", "other-settings", "steps-already-made", "no-names-of-columns", "out-of-memory",
    "unreachable", "no-gpu", "disk-full", "pyarrow", "out-in-use",
}  # fmt: skip


def test_the_other_messages_stand_in_the_sources() -> None:
    others = set(ENTRIES) - {anchor for anchor, _ in COMMANDS} - set(LOOPS) - ELSEWHERE
    assert others == {"nothing-held-out", "other-columns", "port-taken", "rank-ended", "several-runs"}
    for anchor in others:
        parts = [part.strip() for part in ENTRIES[anchor].replace(f"next {PORTS_TRIED - 1}", "next ...").split("...")]
        assert any(all(part in text.replace("\n", "") for part in parts) for text in RAISED[anchor]), (anchor, parts)
