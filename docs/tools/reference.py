"""The pages of the reference, made of the code when the site is built: nothing in them is written by hand.

`pages()` gives them by their path; `docs/tools/hook.py` hands them to MkDocs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from adaptive_rec.config.knobs import LARGEST, Knobs
from adaptive_rec.config.reference import LIMITS, choices, toml_value, unit_of
from adaptive_rec.config.tree import Config, leaves

INDEX = """\
# Reference

Made from the code when these pages are built: what is said here is what the code does.

| page | what it lists |
|---|---|
| [Knobs](knobs.md) | settings that may change during a run: name, unit, default, range, what turning it does |
| [Configuration keys](config.md) | every key of a configuration file |
| [Command line](cli.md) | every command's `--help` |
| [HTTP API](http.md) | every route with its parameters and answers |
| [Metrics](metrics.md) | what `/metrics` tells Prometheus |
| [Python API](python.md) | modules for your own training loop, and what a policy of your own implements |
| [Policies](../policies.md), [models](../models.md) | what is built in |
"""


def pages() -> dict[str, str]:
    """Text of every page of the reference, by its path in the site."""
    made = {
        "index": INDEX,
        "knobs": knobs_page(),
        "config": config_page(),
        "cli": cli_page(),
        "http": http_page(),
        "metrics": metrics_page(),
    }
    return {f"reference/{name}.md": text for name, text in made.items()}


# Settings ------------------------------------------------------------------------------------------------------------


def knobs_page() -> str:
    """Knobs as a table, and how to turn them."""
    return "\n".join(
        [
            "# Knobs",
            "",
            "Settings that may change while a run is under way: `adaptive-rec knobs set NAME=VALUE`, the dashboard,",
            "`PATCH /api/v1/knobs`, or `runtime.set_knobs(NAME=VALUE)` in a training loop of your own. A change takes effect",
            "between two steps. A configuration file has their starting values under `[knobs]`; `--set knobs.NAME=VALUE`",
            "overrides one.",
            "",
            *_table(
                ("knob", "unit", "default", "range", "what turning it does"), map(_setting, Knobs.model_fields.items())
            ),
        ]
    )


def config_page() -> str:
    """Keys of the configuration, a table for each section."""
    lines = [
        "# Configuration keys",
        "",
        "Layers, the later wins: these defaults, a preset or TOML file, environment variables such as `ADAPTIVE_REC_RUN__STEPS`,",
        "then flags and `--set section.key=value`. Sizes in bytes may be written as `256MiB`. Unknown keys are errors.",
        "",
        "Keys under `[knobs]` are starting values and may change during a run; all others are fixed for it.",
    ]
    sections: dict[str, list[tuple[str, Any]]] = {}
    for key, field in leaves(Config):
        sections.setdefault(key.rpartition(".")[0], []).append((key, field))
    for section, fields in sections.items():
        table = _table(("key", "unit", "default", "range", "why one would turn it"), map(_setting, fields))
        lines += ["", f"## [{section}]", "", *table]
    return "\n".join(lines)


def _setting(item: tuple[str, Any]) -> tuple[str, ...]:
    name, field = item
    default = toml_value(field.default, unit_of(field)).replace("\n", " ")
    return f"`{name}`", unit_of(field), f"`{default}`", _range(field), field.description


def _range(field: Any) -> str:
    """What values are allowed, in words."""
    if choices(field):
        return ", ".join(f"`{choice}`" for choice in choices(field))
    rules = [rule for rule in field.metadata if not isinstance(rule, type)]
    bounds = [(text, getattr(rule, name, None)) for rule in rules for name, text in LIMITS.items()]
    return ", ".join(text.format(bound) for text, bound in bounds if bound is not None and bound != LARGEST)


# Command line --------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with what --help prints, 100 columns wide."""
    lines = [
        "# Command line",
        "",
        "What `--help` prints. Exit codes: 0 done, 2 command line or configuration, 3 data, 4 memory, 5 checkpoint.",
    ]
    with patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}):
        for name, parser in commands(whole_parser()):
            lines += ["", f"## {name}", "", "```text", parser.format_help().rstrip(), "```"]
    return "\n".join(lines)


def whole_parser() -> argparse.ArgumentParser:
    """The parser that the command line builds, before it has read anything."""
    from adaptive_rec import cli

    built = []

    def keep(parser: Any, *_: Any) -> Any:
        built.append(parser)
        raise StopIteration

    with patch.object(cli.Parser, "parse_known_args", keep):
        try:
            cli.parse(["train"])
        except StopIteration:
            pass
    return built[0]


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser with its commands and theirs, by what one types."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from commands(each)


# HTTP ----------------------------------------------------------------------------------------------------------------


def http_page() -> str:
    """Every route of the API's description."""
    from adaptive_rec.service.openapi import openapi_text

    api = json.loads(openapi_text())
    lines = [
        "# HTTP API",
        "",
        "Every route but `/livez`, `/readyz` and `/version` asks for a token: `adaptive-rec dashboard --header` prints the",
        "header that carries it.",
        "How to use them: [See and steer a run](../live.md). [openapi.json](../openapi.json) has the same in full.",
    ]
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            lines += ["", f"## {method.upper()} {path}", "", route.get("description", route.get("summary", "")), ""]
            lines += _parameters(route.get("parameters", []), api)
            lines += _body(route)
            lines += [
                "Answers: "
                + "; ".join(f"`{code}` {_answer(code, found)}" for code, found in route["responses"].items())
                + "."
            ]
    return "\n".join(lines)


def _parameters(parameters: list[dict[str, Any]], api: dict[str, Any]) -> list[str]:
    if not parameters:
        return []
    rows = [
        (f"`{each['name']}`", each["in"], _type(each.get("schema", {}), api), each.get("description", ""))
        for each in parameters
    ]
    return [*_table(("parameter", "in", "type", ""), rows), ""]


def _body(route: dict[str, Any]) -> list[str]:
    content = route.get("requestBody", {}).get("content", {})
    return [f"Body: `{kind}`, {_name(found.get('schema', {}))}.\n" for kind, found in content.items()]


def _answer(code: str, found: dict[str, Any]) -> str:
    schemas = [_name(each.get("schema", {})) for each in found.get("content", {}).values()]
    named = [name for name in schemas if name and name != "Problem"]
    return found.get("description", "") + (f" ({', '.join(named)})" if named else "")


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", schema.get("title", schema.get("type", "")))).rpartition("/")[2]


def _type(schema: dict[str, Any], api: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _type(api["components"]["schemas"][_name(schema)], api)
    if "anyOf" in schema:
        return " or ".join(_type(each, api) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    limits = [f"{text} {schema[key]}" for key, text in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([str(schema.get("type", "")), *limits])


# Metrics -------------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    """Every metric that /metrics can have."""
    rows = [
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text) for name, kind, labels, text in metrics()
    ]
    return "\n".join(
        [
            "# Metrics",
            "",
            "`GET /metrics`, in Prometheus' text format, with either token. To scrape it: [Prometheus](../howto/prometheus.md).",
            "A number that is not known yet is left out.",
            "",
            *_table(("metric", "kind", "labels", "what it says"), rows),
        ]
    )


def metrics() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, kind, labels and text of every metric, known or not: asked of the collector over a run of which nothing is known."""
    from adaptive_rec.service import metrics as collected
    from adaptive_rec.service.hello import Hello
    from adaptive_rec.service.run_view import FinishedRun

    values = Knobs().model_dump()
    view = FinishedRun(Hello(False, "", "", 0.0, 0, "", "", "", (), (), values, values, values))
    with patch.object(collected, "is_number", lambda value: True):
        families = list(collected.RunCollector(view).collect())
    found = []
    for family in families:
        total = "_total" if family.type == "counter" else ""
        found.append((family.name + total, family.type, tuple(family._labelnames), family.documentation))
    return found


def _table(head: tuple[str, ...], rows: Any) -> list[str]:
    """A table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
