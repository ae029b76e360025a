"""Parts of kernels that are called for every row: what they are compiled with."""

from __future__ import annotations

import ast
from pathlib import Path

import adaptive_rec.kernels

FOLDER = Path(adaptive_rec.kernels.__file__).parent
FREE = ("JIT_PART", "JIT_INLINE", "inline='always'")
"""Options under which no references are counted when arrays are passed."""


def compiled() -> dict[str, dict[str, tuple[str, ast.FunctionDef]]]:
    """Functions that Numba compiles, with their options, by module."""
    found: dict[str, dict[str, tuple[str, ast.FunctionDef]]] = {}
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                options = [text for text in map(ast.unparse, node.decorator_list) if text.startswith("njit")]
                if options:
                    found.setdefault(path.stem, {})[node.name] = options[0], node
    return found


def called_in_loops(function: ast.FunctionDef) -> set[str]:
    """Names of what is called for every turn of a loop; not what a thread is given as its part of the work."""
    loops = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.While) or (isinstance(node, ast.For) and "prange" not in ast.unparse(node.iter))
    ]
    calls = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def test_what_is_called_for_every_row_counts_no_references() -> None:
    kernels = compiled()
    anywhere = {name: options for functions in kernels.values() for name, (options, _) in functions.items()}
    checked, wrong = 0, []
    for module, functions in kernels.items():
        for name, (_, node) in functions.items():
            for callee in called_in_loops(node) & anywhere.keys():
                options = functions[callee][0] if callee in functions else anywhere[callee]
                checked += 1
                if not any(free in options for free in FREE):
                    wrong.append(f"{module}.{name} calls {callee}, {options}")
    assert checked > 30
    assert not wrong, "\n".join(wrong)
