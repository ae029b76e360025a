"""What a command does not use of Numba is not loaded, and is there where it is used."""

import subprocess
import sys

NUMBA = """
import sys
import numpy as np
from adaptive_rec.system.libraries import import_quickly
import_quickly()
from adaptive_rec.kernels.rows16 import *
from adaptive_rec.kernels.row_sets import distinct_rows
print(*distinct_rows(np.array([3, 1, 3])), "numba.np.arraymath" in sys.modules)
import numba
sys.path.insert(0, sys.argv[1])
import functions
print(functions.total(np.ones(3)), numba.njit(lambda a: np.dot(a, a))(np.ones(3)))  # all is loaded for them
"""

FUNCTIONS = """
import numba
import numpy as np
@numba.njit(cache=True)
def total(a):
    return 3 + np.sqrt(a[0]) + np.exp(a[0] - 1)
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


def test_kernels_load_without_what_compiles_them(tmp_path, monkeypatch) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert output(NUMBA, str(tmp_path)) == ["1 3 True", "5.0 3.0"]
    assert output(NUMBA, str(tmp_path)) == ["1 3 False", "5.0 3.0"]


def test_ufuncs_of_a_cache_load_with_what_compiles_their_wrappers(tmp_path, monkeypatch) -> None:
    (tmp_path / "ufuncs.py").write_text(UFUNCS_FILE, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        assert output(UFUNCS, str(tmp_path)) == ["2.0 4.0 2.0 3.0 3.0 6.0"]


def test_the_end_of_a_process_looks_through_what_is_loaded_only_for_triton() -> None:
    assert output(END) == ["True"]
    assert output(END, "triton") == ["False"]
