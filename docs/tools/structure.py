"""Measures the structure of the package: rooms, import levels, circles, attributes set from outside, lines.

``python docs/tools/structure.py [FOLDER]`` prints the table of docs/rooms.md for a checkout, this one by default. Imports
in functions and under ``TYPE_CHECKING`` count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "adaptive_rec"
ROOT = Path(__file__).parents[2]
Graph = Mapping[str, set[str]]

LIBRARY_OBJECTS = {"ctx", "self._spinner"}
"""Objects of other libraries that have an attribute named as one of ours."""


@dataclass(frozen=True)
class Tree:
    """The modules of a checkout's package, with the folders that are linked into it."""

    package: Path

    @property
    def files(self) -> dict[str, Path]:
        """Source files by dotted name within the package; the package itself is ''."""
        folders = [path for path in sorted(self.package.iterdir()) if path.is_dir() and path.name != "__pycache__"]
        paths = [*sorted(self.package.glob("*.py")), *(path for folder in folders for path in sorted(folder.rglob("*.py")))]
        return {_dotted(path.relative_to(self.package)): path for path in paths}

    def sources(self) -> dict[str, ast.Module]:
        return {name: ast.parse(path.read_text(encoding="utf-8"), str(path)) for name, path in self.files.items()}

    @property
    def entries(self) -> list[str]:
        """Files and folders at the top of the package."""
        return sorted(path.name for path in self.package.iterdir() if path.name != "__pycache__")


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, in_functions: bool = True, for_types: bool = True) -> Iterator[str]:
    """Every imported name: those in functions unless told otherwise, and those under `if TYPE_CHECKING:` likewise."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr) or (isinstance(child, ast.FunctionDef) and not in_functions):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test) and not for_types:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imports(child, in_functions, for_types)


def module_graph(sources: Mapping[str, ast.Module], in_functions: bool = True, for_types: bool = True) -> Graph:
    """Module -> modules of the package that it imports."""
    graph: dict[str, set[str]] = {}
    for name, tree in sources.items():
        found = set()
        for imported in imports(tree, in_functions, for_types):
            if imported == NAME or imported.startswith(f"{NAME}."):
                inner = imported.removeprefix(NAME).lstrip(".")
                found.add(inner if inner in sources else inner.rpartition(".")[0])
        graph[name] = found - {name}
    return graph


def room(module: str) -> str:
    """The file or folder at the top of the package that a module stands in."""
    return module.split(".")[0]


def room_graph(modules: Graph) -> Graph:
    graph: dict[str, set[str]] = {}
    for name, others in modules.items():
        graph.setdefault(room(name), set()).update(room(other) for other in others if room(other) != room(name))
    return graph


def components(graph: Graph) -> list[set[str]]:
    """Strongly connected components, those that are imported first (Tarjan, 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            place = stack.index(node)
            found.append(set(stack[place:]))
            del stack[place:]

    for node in graph:
        if node not in number:
            visit(node)
    return found


def circles(graph: Graph) -> list[list[str]]:
    return [sorted(part) for part in components(graph) if len(part) > 1]


def levels(graph: Graph) -> dict[str, int]:
    """The level of each node, from 1 for those that import nothing; the nodes of a circle share one."""
    level: dict[str, int] = {}
    for part in components(graph):
        below = [level[other] for node in part for other in graph[node] if other not in part]
        level |= dict.fromkeys(part, 1 + max(below, default=0))
    return level


def _attributes(tree: ast.Module) -> set[str]:
    """Names of the attributes that the classes of a module have."""
    found = set()
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(owner):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                found.add(node.attr)
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def set_from_outside(sources: Mapping[str, ast.Module]) -> Iterator[str]:
    """Place and target of each attribute that a module sets on an object of another module's class.

    An object's class is not known to a reader of the text, so the attribute's name decides: classes of the package have it,
    and none of them stands in this module. Attributes of other libraries' objects do not count.
    """
    attributes = {name: _attributes(tree) for name, tree in sources.items()}
    known = set().union(*attributes.values())
    for name, tree in sources.items():
        others = known - attributes[name]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not _is_self(node.value):
                if node.attr in others and ast.unparse(node.value) not in LIBRARY_OBJECTS:
                    yield f"{name}:{node.lineno} {ast.unparse(node)}"


def lines_of(*folders: Path) -> int:
    """Lines of Python in some folders, links not followed."""
    paths = (path for folder in folders for path in folder.rglob("*.py") if not path.is_symlink())
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def figures(root: Path) -> dict[str, int]:
    """The figures of a checkout."""
    tree = Tree(root / NAME)
    sources = tree.sources()
    modules = module_graph(sources)
    rooms = room_graph(modules)
    return {
        f"entries at the top of {NAME}": len(tree.entries),
        "import levels of rooms": max(levels(rooms).values()),
        "circles of modules": len(circles(modules)),
        "circles of rooms": len(circles(rooms)),
        "attributes set from outside": len(list(set_from_outside(sources))),
        "lines of the package": lines_of(root / NAME, root / "service", root / "policies", root / "recipes"),
        "lines of tests": lines_of(root / "tests"),
        "lines of benchmarks": lines_of(root / "benchmarks"),
        "lines of README.md": len((root / "README.md").read_text(encoding="utf-8").splitlines()),
    }


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for name, value in figures(root).items():
        print(f"{name:<40}{value:>8,}")
    sources = Tree(root / NAME).sources()
    modules = module_graph(sources)
    for circle in (*circles(modules), *circles(room_graph(modules))):
        print("circle:", " ".join(circle))
    for place in set_from_outside(sources):
        print("set from outside:", place)


if __name__ == "__main__":
    main()
