"""The version of the package, those of Python and torch that it was run with (docs/install.md), and a warning beyond them."""

# Nothing is imported here but `sys`: see adaptive_rec/__init__.py.
import sys

__version__ = "0.2.0"

TESTED_PYTHON = ((3, 11), (3, 13))
TESTED_TORCH = ((2, 11), (2, 15))
"""The first and the last."""


def warning_beyond(python: "tuple[int, int]", torch: "str | None") -> str:
    """Return what is to be said of versions that were not run; empty where both were, or torch is not installed."""
    lines = [] if TESTED_PYTHON[0] <= python <= TESTED_PYTHON[1] else [_line("Python", TESTED_PYTHON, f"{python[0]}.{python[1]}")]
    numbers = (torch or "").split(".")[:2]
    if len(numbers) == 2 and all(each.isdecimal() for each in numbers):
        if not TESTED_TORCH[0] <= (int(numbers[0]), int(numbers[1])) <= TESTED_TORCH[1]:
            lines.append(_line("torch", TESTED_TORCH, torch or ""))
    return "; ".join(lines)


def warning_here() -> str:
    """Return `warning_beyond` of this process; of several processes the first one alone has one. Takes less than a millisecond:
    where torch is not loaded, its version is read from its files."""
    import os

    if os.environ.get("RANK", "0") != "0":
        return ""
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    return warning_beyond(sys.version_info[:2], str(loaded) if loaded else _torch_on_disk())


def _torch_on_disk() -> "str | None":
    import re
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("torch")
    for folder in (spec.submodule_search_locations or () if spec else ()):
        try:
            with open(f"{folder}/version.py", encoding="utf-8") as file:
                found = re.search(r"__version__ = '([^']+)'", file.read())
        except (OSError, UnicodeDecodeError):
            return None
        return found[1] if found else None
    return None


def _line(name: str, tested: "tuple[tuple[int, int], tuple[int, int]]", got: str) -> str:
    low, high = (f"{major}.{minor}" for major, minor in tested)
    return f"{name} should be {low} to {high}, with which adaptive-rec {__version__} was tested, got {got}; install one of these"
