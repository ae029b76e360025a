"""Make the pages of the reference from the code when the site is built: nothing in them is written by hand.

`pages()` returns them by their path; `docs/tools/hook.py` hands them to MkDocs. The Python API is a page of its own, made by
mkdocstrings.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from adaptive_rec.config.knobs import LARGEST, Knobs
from adaptive_rec.config.reference import LIMITS, choices, key_unit, toml_value
from adaptive_rec.config.tree import Config, leaves

OPENAPI = Path(__file__).parents[1] / "openapi.json"

INDEX = """\
# Reference

The first five pages are made from the code when the site is built, the Python API from its docstrings.

| page | what it lists |
|---|---|
| [Knobs](knobs.md) | settings that may change during a run: name, unit, default, range, effect |
| [Configuration keys](config.md) | every key of a configuration file |
| [Every command](cli.md) | the `--help` of every command |
| [HTTP API](http.md) | every route with its parameters and answers |
| [Metrics](metrics.md) | every metric that `/metrics` gives to Prometheus |
| [Python API](python.md) | modules for your own training loop, and the classes of your own policy |
| [Command line](../command-line.md) | what the commands are for, presets, exit codes |
| [Policies](../policies.md), [models](../models.md) | what is built in |
| [Limits](../limits.md), [Lexicon](../lexicon.md) | what does not work yet; every term |
"""

KNOBS = """\
# Knobs

Knobs are settings that may change during a run: `adaptive-rec knobs set NAME=VALUE`, the dashboard,
`PATCH /api/v1/knobs`, or `runtime.set_knobs(NAME=VALUE)` in your own training loop. A change takes effect
between two steps. A configuration file has their starting values under `[knobs]`; `--set knobs.NAME=VALUE`
overrides one.

"""

CONFIG = """\
# Configuration keys

Later layers override earlier ones: these defaults, a preset or TOML file, environment variables such as
`ADAPTIVE_REC_RUN__STEPS`, then flags and `--set section.key=value`. Sizes in bytes may be written as `256MiB`. Unknown
keys are errors.

Keys under `[knobs]` are starting values and may change during a run; all others are fixed for it.
"""

CLI = """\
# Every command

The output of `--help`. What the commands are for, and the exit codes: [Command line](../command-line.md).
"""

HTTP = """\
# HTTP API

Every route except `/livez`, `/readyz` and `/version` requires a token: `adaptive-rec dashboard --header` prints the
header that carries it.
How to use the routes: [See and steer a run](../live.md). [openapi.json](../openapi.json) has the same in full.
"""

METRICS = """\
# Metrics

`GET /metrics` returns them in Prometheus' text format, with either token. To scrape it: [Prometheus](../howto/prometheus.md).
A number that is not known yet is left out. Every series has the label `run`, the name of the run's directory; the table lists
the other labels.

"""


def pages() -> dict[str, str]:
    """The text of every generated page, by its path in the site."""
    made = {
        "index": INDEX,
        "knobs": KNOBS + _table(("knob", "unit", "default", "range", "effect"), map(_setting, Knobs.model_fields.items())),
        "config": config_page(),
        "cli": cli_page(),
        "http": http_page(),
        "metrics": METRICS + _table(("metric", "kind", "labels", "meaning"), metrics()),
    }
    return {f"reference/{name}.md": text for name, text in made.items()}


# Settings ------------------------------------------------------------------------------------------------------------


def config_page() -> str:
    """The keys of the configuration, one table for each section."""
    text = CONFIG
    sections: dict[str, list[tuple[str, Any]]] = {}
    for key, field in leaves(Config):
        sections.setdefault(key.rpartition(".")[0], []).append((key, field))
    for section, fields in sections.items():
        text += f"\n## [{section}]\n\n" + _table(("key", "unit", "default", "range", "effect"), map(_setting, fields))
    return text


def _setting(item: tuple[str, Any]) -> tuple[str, ...]:
    name, field = item
    default = toml_value(field.default, key_unit(field)).replace("\n", " ")
    return f"`{name}`", key_unit(field), f"`{default}`", _range(field), field.description


def _range(field: Any) -> str:
    """The allowed values, in words."""
    if choices(field):
        return ", ".join(f"`{choice}`" for choice in choices(field))
    rules = [rule for rule in field.metadata if not isinstance(rule, type)]
    bounds = [(text, getattr(rule, name, None)) for rule in rules for name, text in LIMITS.items()]
    return ", ".join(text.format(bound) for text, bound in bounds if bound is not None and bound != LARGEST)


# Command line --------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with the output of --help, 100 columns wide."""
    text = CLI
    with patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}):
        for name, parser in commands(whole_parser()):
            text += f"\n## {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n"
    return text


def whole_parser() -> argparse.ArgumentParser:
    """The parser of the command line, caught before it reads anything."""
    from adaptive_rec import cli

    built: list[Any] = []
    with patch.object(cli.Parser, "parse_known_args", lambda parser, *_: built.append(parser) or exit()):
        try:
            cli.parse(["--help"])
        except SystemExit:
            pass
    return built[0]


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser with its subcommands and theirs, by the words that a user types."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from commands(each)


# HTTP ----------------------------------------------------------------------------------------------------------------


def http_page() -> str:
    """Every route of docs/openapi.json, which a test compares with the running API."""
    api, text = json.loads(OPENAPI.read_text()), HTTP
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            text += f"\n## {method.upper()} {path}\n\n{route.get('description', route.get('summary', ''))}\n\n"
            parameters = [
                (f"`{each['name']}`", each["in"], _type(each.get("schema", {}), api), each.get("description", ""))
                for each in route.get("parameters", [])
            ]
            if parameters:
                text += _table(("parameter", "in", "type", ""), parameters) + "\n"
            for kind, body in route.get("requestBody", {}).get("content", {}).items():
                text += f"Body: `{kind}`, {_name(body.get('schema', {}))}.\n\n"
            answers = [f"`{code}` {_answer(found)}" for code, found in route["responses"].items()]
            text += f"Answers: {'; '.join(answers)}.\n"
    return text


def _answer(found: dict[str, Any]) -> str:
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


def metrics() -> list[tuple[str, str, str, str]]:
    """Name, kind, labels and text of every metric: they are written for an empty run, and every value counts as known. Those of
    the process, of a disk and of ranks, which only some runs have, come last."""
    from adaptive_rec.config.figures import metrics_of
    from adaptive_rec.live.rank_report import RankReport
    from adaptive_rec.service import metric_families
    from adaptive_rec.service import metrics as collected
    from adaptive_rec.service.hello import Hello
    from adaptive_rec.service.run_view import FinishedRun
    from adaptive_rec.system.process_use import ProcessMeter

    rows: list[tuple[str, str, str, str]] = []

    class Listed(metric_families.Families):
        def _written(self, name: str, kind: str, text: str, labels: Sequence[str], values: metric_families.ByLabels) -> str:
            rows.append((f"`{metric_families.PREFIX}{name}`", kind, ", ".join(f"`{label}`" for label in labels), text))
            return ""

    values = Knobs().model_dump()
    view = FinishedRun(Hello(False, "", "", 0.0, 0, "", "", "", (), (), values, values, values))
    view.meter, make = ProcessMeter(os.getpid()), Listed("")
    with patch.object(metric_families, "is_number", lambda value: True):
        ranks = {"ranks": [asdict(RankReport(0, 0, {}, 0, 0, {}, 0))]}
        disk = {"disk": metrics_of("disk", counters=False), "totals": metrics_of("disk", counters=True)}
        ranking = {"ranking": {"metrics": {}, **dict.fromkeys(("groups", "groups_with_positive", "groups_with_both"), 0)}}
        skipping = {"skipping": metrics_of("skipping", counters=False)}
        listed = [collected.about_run(make, view), collected.about_process(make, view), collected.reported_metrics(make, view)]
        listed += [collected.about_ranking(make, ranking), collected.about_skipping(make, skipping)]
        listed += [collected.about_disk(make, disk), collected.about_ranks(make, ranks)]
        for families in listed:
            list(families)
    return rows


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
