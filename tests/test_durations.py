"""The table of seconds that `make test` writes, and the budget of a file in it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from numba import njit
from numba.core import event

from tests.durations import BUDGET_SECONDS, SESSION, Compiling, by_file, recorded
from tests.parts import RESULTS, files_of, shared_out


@pytest.mark.slow
def test_every_file_keeps_its_budget_of_processor_seconds() -> None:
    """What takes longer is marked slow, and runs in `make check`."""
    if not (tests := recorded(RESULTS)):
        pytest.skip("no seconds are recorded here: make test writes them")
    beyond = {
        name: round(took[0], 2) for name, took in by_file(tests).items() if took[0] > BUDGET_SECONDS and name != SESSION
    }
    assert not beyond, f"at most {BUDGET_SECONDS} processor seconds a file in make test"


def test_seconds_are_added_up_by_file_the_heaviest_first(tmp_path: Path) -> None:
    took = {"wall": 1.0, "slow": False}
    one = {"tests": {"a.py::x": {"processor": 0.5, **took}, "b.py::x": {"processor": 2.0, **took}}}
    other = {"tests": {"a.py::y[1]": {"processor": 3.0, **took}}}
    for number, table in enumerate((one, other)):
        (tmp_path / f"test-{number}.json").write_text(json.dumps(table))
    (tmp_path / "check-0.json").write_text(json.dumps({"tests": {"a.py::z": {"processor": 9.0, **took}}}))
    assert list(by_file(recorded(tmp_path)).items()) == [("a.py", (3.5, 2.0, 2)), ("b.py", (2.0, 1.0, 1))]


def test_compiling_is_counted_once_however_kernels_call_each_other() -> None:
    @njit
    def inner(number: int) -> int:
        return number + 1

    @njit
    def outer(number: int) -> int:
        return inner(number) * 2

    compiling, began = Compiling(), time.thread_time()
    with event.install_listener("numba:compile", compiling):
        assert outer(1) == 4
    assert 0.5 * (taken := time.thread_time() - began) < compiling.seconds <= taken


def test_parts_have_every_file_once_and_about_the_same_seconds() -> None:
    files = files_of([])
    names = [str(path.relative_to(Path(__file__).parents[1])) for path in files]
    known = {name: float(number % 5) for number, name in enumerate(names)}
    parts = shared_out(files, 3, known)
    assert sorted(name for part in parts for name in part) == sorted(names)
    loads = [sum(known[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= 4.0
