"""The Python API as a page: signatures and docstrings of what is public, read from the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
from typing import Any

HEAD = """\
# Python API

```python
import adaptive_rec
```

Importing loads neither torch nor Numba; a name does when it is first used. How to use the modules in a training loop of your own:
[Your own model](../howto/own-model.md); how to write a policy: [Your own policy](../howto/own-policy.md)."""

PARTS = {
    "Modules for your own training loop": ("adaptive_rec", "Import them from `adaptive_rec`."),
    "Keyword arguments that they share": ("adaptive_rec.modules.options:Options", "`**options` above."),
    "A policy of your own": (
        "adaptive_rec.policy",
        "`adaptive_rec.policy`: subclass `Policy`; the other classes are what it sees and what it answers.",
    ),
    "Errors": ("adaptive_rec.errors", "`adaptive_rec.errors`: each names the rule, the name and the value."),
}

USED = {
    "EmbeddingRuntime": (
        "prefetch",
        "stats",
        "serve",
        "set_knobs",
        "record_loss",
        "track",
        "lr",
        "table",
        "set_table",
        "state_dict",
        "load_state_dict",
        "close",
    ),
    "AdaptiveEmbeddingBag": ("forward",),
    "AdaptiveEmbeddingBagCollection": ("forward", "embedding_bag_configs", "is_weighted"),
}
"""Of classes that are mostly machinery: what is for users."""

MADE_ELSEWHERE = ("EmbeddingRuntime", "Options")
"""Classes that nobody calls: what makes them is said in their docstring."""


def python_page() -> str:
    """All public names of the parts above."""
    lines = [HEAD]
    for title, (module, about) in PARTS.items():
        lines += ["", f"## {title}", "", about]
        for name, found in public(module).items():
            lines += ["", *_described(name, found)]
    return "\n".join(lines) + "\n"


def public(where: str) -> dict[str, Any]:
    """Classes and functions of a module, or the one named after a colon: those in __all__, else those defined there."""
    module_name, _, only = where.partition(":")
    module = importlib.import_module(module_name)
    names = [only] if only else getattr(module, "__all__", None)
    if names is None:
        own = [name for name, found in vars(module).items() if getattr(found, "__module__", "") == module_name]
        errors = [
            name for name in own if inspect.isclass(vars(module)[name]) and issubclass(vars(module)[name], Exception)
        ]
        names = sorted(errors or own, key=lambda name: (name != "Policy", own.index(name)))
    names = sorted(names, key=lambda name: name != "wrap")
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {name: each for name, each in found.items() if inspect.isclass(each) or inspect.isfunction(each)}


def _described(name: str, found: Any) -> list[str]:
    """Heading, signature, docstring, then fields and methods of a class."""
    lines = [f"### {name}", "", *_code(_signature(name, found)), "", *_text(found)]
    if not inspect.isclass(found):
        return lines
    fields = _fields(found)
    if fields:
        lines += ["", *(f"- `{field}`{': ' + text if text else ''}" for field, text in fields)]
    for method, member in _members(found).items():
        target = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        shown = method if isinstance(member, property) else _signature(method, target)
        lines += ["", f"#### {name}.{method}", "", *_code(shown), "", *_text(target)]
    return lines


def _members(found: type) -> dict[str, Any]:
    """Documented methods and properties of a class; of a runtime those that a training loop of one's own uses."""
    if issubclass(found, tuple | dict):
        return {}
    members: dict[str, Any] = {}
    for each in reversed([base for base in found.__mro__ if base.__module__.startswith("adaptive_rec.")]):
        members.update(vars(each))
    known = {}
    for name in [name for name in USED.get(found.__name__, members) if name in members]:
        target = getattr(members[name], "fget", None) or getattr(members[name], "__func__", members[name])
        if not name.startswith("_") and inspect.isfunction(target) and target.__doc__:
            known[name] = members[name]
    return known


def _signature(name: str, found: Any) -> str:
    """A call as one would write it, wrapped where it is long; errors are told by name alone."""
    if inspect.isclass(found) and issubclass(found, BaseException):
        return f"class {name}({found.__bases__[0].__name__})"
    if name in MADE_ELSEWHERE:
        return f"class {name}"
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return name
    arguments = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(argument.startswith("*") for argument in arguments):
            arguments.append("*")
        if each.name != "self":
            arguments.append(_argument(each))
    answer = _annotation(signature.return_annotation)
    after = f" -> {answer}" if answer not in ("", "None") else ""
    line = f"{name}({', '.join(arguments)}){after}"
    return line if len(line) <= 90 else f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){after}"


def _argument(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = _annotation(each.annotation)
    named = stars + each.name + (f": {kind}" if kind else "")
    if each.default is each.empty:
        return named
    return named + (f" = {each.default!r}" if kind else f"={each.default!r}")


def _annotation(given: Any) -> str:
    """A type as it stands in the source: annotations are texts there."""
    if given is inspect.Signature.empty:
        return ""
    return given if isinstance(given, str) else inspect.formatannotation(given)


def _code(text: str) -> list[str]:
    return ["```text", text, "```"]


def _text(found: Any) -> list[str]:
    doc = inspect.getdoc(found) if "__doc__" in vars(found) or not inspect.isclass(found) else None
    return _paragraphs(doc or "")


def _paragraphs(doc: str) -> list[str]:
    """A docstring as Markdown: indented parts are code, ``x`` is `x`."""
    lines, code = [], False
    for line in doc.replace("``", "`").splitlines():
        indented = line.startswith("    ")
        if indented != code and (line.strip() or not code):
            lines += ["```text"] if indented else ["```", ""]
            code = indented
        lines.append(line[4:] if code else line)
    return [*lines, "```"] if code else lines


def _fields(found: type) -> list[tuple[str, str]]:
    """Attributes that a class declares, with the docstring below each."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    except (OSError, TypeError, SyntaxError):
        return []
    fields: list[tuple[str, str]] = []
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            shown = f"{node.target.id}: {ast.unparse(node.annotation)}"
            value = (
                ""
                if node.value is None or dataclasses.is_dataclass(found) and "field(" in ast.unparse(node.value)
                else f" = {ast.unparse(node.value)}"
            )
            fields.append((shown + value, ""))
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and fields
        ):
            fields[-1] = (fields[-1][0], " ".join(node.value.value.split()))
    return fields
