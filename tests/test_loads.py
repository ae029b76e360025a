"""What an import and a training run load, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=600)


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = python(
        "import sys, adaptive_rec\n"
        "print([m for m in ('torch', 'numba', 'fastapi', 'uvicorn', 'numpy', 'pydantic') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


TRAIN = """
import ast, contextlib, io, sys
from pathlib import Path

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('fastapi', 'uvicorn', 'starlette') or name.startswith('adaptive_rec.service'):
            raise ImportError('not installed: ' + name)

sys.meta_path.insert(0, Refuse())
from adaptive_rec.cli import main

def has_code(file):
    body = ast.parse(Path(file).read_text(encoding='utf-8')).body
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body)

def ours():
    files = {name: module.__file__ for name, module in sys.modules.items() if name.split('.')[0] == 'adaptive_rec'}
    return [name for name, file in files.items() if has_code(file)]

settings = ['run.device=cpu', 'run.threads=1', 'run.batch_size=8', 'data.table_rows=[9, 5]', 'model.bottom_mlp=[2]',
            'model.top_mlp=[2]', 'model.embedding_dim=2', 'data.synthetic.samples=100']
words = ['train', 'tiny', '--policy', 'slipstream', '--steps=4', '--no-serve', '--json', '--out', sys.argv[1]]
with contextlib.redirect_stdout(io.StringIO()):
    code = main([*words, *(word for setting in settings for word in ('--set', setting))])
print(code, [m for m in sys.modules if m.split('.')[0] in ('fastapi', 'uvicorn', 'starlette')])
try:
    import fastapi
except ImportError:
    print('refused')
loaded = ours()
print(*(name for name in loaded if not name.startswith('adaptive_rec.offline.')))
"""

MOST_LOADED = 220
"""Files of ours that `train --policy slipstream` loads on a CPU, with rows in memory, in one process that is not served, but for
the report at its end. The files of packages count where they have code. What such a run does not use, it does not
load."""


def test_training_needs_no_web_library_and_loads_what_it_uses(tmp_path: Path) -> None:
    done = python(TRAIN, str(tmp_path / "run"))
    lines = done.stdout.split("\n")
    assert lines[:2] == ["0 []", "refused"], done.stdout + done.stderr
    assert len(lines[2].split()) <= MOST_LOADED, lines[2]
