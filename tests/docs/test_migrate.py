"""The changes that docs/migrate.md shows: each side of a diff is a program, and both have the same losses.

A side of a library that is not installed is skipped; where the loop is torch's and TorchRec is absent, the stand-in of the
examples serves for its types. `make check-clients` has the libraries.
"""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "migrate.md"
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from blocks import blocks_of  # noqa: E402

DIFFS = {block.title: block.text for block in blocks_of(PAGE) if block.kind == "diff" and block.title}


def side(name: str, mark: str) -> str:
    """The program before a change (mark "-") or after it ("+")."""
    lines = DIFFS[name].splitlines()
    assert [line for line in lines if line and line[0] not in " +-"] == []
    return "\n".join(line[1:] for line in lines if not line or line[0] in f" {mark}")


def losses_of(name: str, mark: str, given: dict[str, Any] | None = None) -> tuple[list[float], Any]:
    """Run one side, and return its losses and its runtime."""
    space: dict[str, Any] = {"__name__": "__main__", **(given or {})}
    exec(compile(side(name, mark), f"{name} {mark}", "exec"), space)  # noqa: S102
    return space["losses"], space.get("runtime")


def test_the_page_has_a_change_for_each_library() -> None:
    assert list(DIFFS) == [
        "embedding_bag.py", "torchrec_bags.py", "fbgemm_tables.py", "dynamic_ids.py", "deepctr_model.py", "recbole_model.py",
    ]  # fmt: skip
    for name in DIFFS:
        for mark in "-+":
            compile(side(name, mark), name, "exec")
        assert "import adaptive_rec" in side(name, "+")
        assert "adaptive_rec" not in side(name, "-")


def check(name: str, given: dict[str, Any] | None = None, rel: float = 1e-5) -> None:
    theirs, _ = losses_of(name, "-", given)
    ours, runtime = losses_of(name, "+", given)
    assert len(ours) >= 2
    assert ours == pytest.approx(theirs, rel=rel)
    assert runtime.stats().hot_rows > 0, "rows are in two tiers"


def test_a_loop_of_torch() -> None:
    check("embedding_bag.py")


def test_a_loop_over_torchrec(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torchrec") is None:
        monkeypatch.syspath_prepend(str(ROOT / "examples"))
        monkeypatch.setitem(sys.modules, "torchrec", importlib.import_module("jagged"))
    check("torchrec_bags.py")


def test_ours_where_there_is_fbgemm() -> None:
    ours, runtime = losses_of("fbgemm_tables.py", "+")
    assert ours[-1] < ours[0]
    assert runtime.stats().hot_rows > 0


def test_a_loop_over_fbgemm() -> None:
    pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed", exc_type=ImportError)
    check("fbgemm_tables.py")


def test_ours_where_there_is_dynamicemb() -> None:
    """Its own side needs CUDA and a build of its own."""
    losses, _ = losses_of("dynamic_ids.py", "+")
    assert losses[-1] < losses[0]


def test_a_model_of_deepctr() -> None:
    pytest.importorskip("deepctr_torch", reason="deepctr-torch is not installed; make check-clients has it", exc_type=ImportError)
    text = re.sub(r", l2_reg_\w+=0", "", DIFFS["deepctr_model.py"])
    DIFFS["with terms"] = text
    check("with terms", rel=1e-4)
    ours, runtime = losses_of("deepctr_model.py", "+")
    assert ours[-1] < ours[0]
    assert runtime.stats().hot_rows > 0
    del DIFFS["with terms"]


def test_a_model_of_recbole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("recbole", reason="recbole is not installed; make check-clients has it", exc_type=ImportError)
    from tests.clients.old_names import restore_old_names

    restore_old_names()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    dice, folder = random.Random(1), tmp_path / "data" / "clicks"
    folder.mkdir(parents=True)
    rows = [f"{user}\t{item}" for user in range(1, 201) for item in dice.sample(range(1, 301), 20)]
    (folder / "clicks.inter").write_text("\n".join(["user_id:token\titem_id:token", *rows]) + "\n")
    settings = {
        "embedding_size": 16, "train_batch_size": 256, "use_gpu": False, "show_progress": False, "state": "ERROR", "seed": 7,
        "load_col": {"inter": ["user_id", "item_id"]},
    }  # fmt: skip
    check("recbole_model.py", {"settings": settings})
