"""What a command does not use of Numba is not loaded, and is there where it is used."""

import subprocess
import sys

NUMBA = """
import os, sys
import numpy as np
from adaptive_rec.system.libraries import import_quickly
import_quickly()
from adaptive_rec.kernels.rows16 import *
from adaptive_rec.kernels.row_sets import *
from adaptive_rec.kernels.jit import JIT
import numba
sys.path.insert(0, sys.argv[1])
import functions
print(functions.total(np.ones(3)), *functions.halves(np.arange(4.0)), functions.over_threads(np.ones(100)))
print("numba.np.arraymath" in sys.modules)
print(numba.njit(lambda a: np.dot(a, a))(np.ones(3)))  # compiles, so all is loaded
"""

FUNCTIONS = """
import numba
import numpy as np
@numba.njit(cache=True)
def total(a):
    return 3 + np.sqrt(a[0]) + np.exp(a[0] - 1)
@numba.njit(cache=True, nogil=True)
def halves(a):
    made = np.empty(len(a))
    for i in range(len(a)):
        made[i] = a[i] / 2
    return made
@numba.njit(cache=True, parallel=True)
def over_threads(a):
    found = 0.0
    for i in numba.prange(len(a)):
        found += a[i]
    return found
"""

UFUNCS = """
import sys
import numpy as np
from adaptive_rec.system.libraries import import_quickly
import_quickly()
sys.path.insert(0, sys.argv[1])
import ufuncs
given = np.arange(1.0, 3.0)
print(*ufuncs.doubled(given), *ufuncs.one_more(given), *ufuncs.tripled(given))
"""

UFUNCS_FILE = """
import numba
@numba.vectorize(["f8(f8)"], cache=True)
def doubled(x):
    return x * 2
@numba.vectorize(cache=True)
def tripled(x):
    return x * 3
@numba.guvectorize(["void(f8[:], f8[:])"], "(n)->(n)", cache=True)
def one_more(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] + 1
"""


END = """
import atexit, gc, sys
from adaptive_rec.system.libraries import end_without_collection
kept = [object() for _ in range(100)]
if "triton" in sys.argv:
    sys.modules["triton"] = None
atexit.register(lambda: print(gc.get_freeze_count() > 0))
atexit.register(end_without_collection)
"""


def output(code: str, *words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_compiled_functions_load_without_what_compiles_them(tmp_path, monkeypatch) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    first, second = output(NUMBA, str(tmp_path)), output(NUMBA, str(tmp_path))
    assert first == ["5.0 0.0 0.5 1.0 1.5 100.0", "True", "3.0"]
    assert second == [first[0], "False", first[2]]


def test_ufuncs_of_a_cache_load_with_what_compiles_their_wrappers(tmp_path, monkeypatch) -> None:
    (tmp_path / "ufuncs.py").write_text(UFUNCS_FILE, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        assert output(UFUNCS, str(tmp_path)) == ["2.0 4.0 2.0 3.0 3.0 6.0"]


def test_the_end_of_a_process_looks_through_what_is_loaded_only_for_triton() -> None:
    assert output(END) == ["True"]
    assert output(END, "triton") == ["False"]
