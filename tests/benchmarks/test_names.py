"""What the benchmarks take from the package by name is there: their rehearsals, which would notice, run in `make check`."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_names_that_benchmarks_import_from_the_package_exist() -> None:
    wrong, found = [], 0
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "adaptive_rec":
                continue
            module = importlib.import_module(str(node.module))
            for each in node.names:
                found += 1
                if not hasattr(module, each.name) and importlib.util.find_spec(f"{node.module}.{each.name}") is None:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{each.name}")
    assert wrong == []
    assert found > 100
