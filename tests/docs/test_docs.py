"""The documents name what exists, everything that exists is documented, and the site builds without a warning."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from adaptive_rec.config.figures import FIGURES, metrics_of
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config, leaves, load_config, presets
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.service.metric_families import EVENT_KINDS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from reference import pages  # noqa: E402

README = (ROOT / "README.md").read_text()


RECORDS = ("log.md", "measurements.md")
"""Pages of what was done, by commands of its day."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_the_readme_stays_short_and_links_the_log() -> None:
    assert README.count("\n") <= 150
    assert "(docs/log.md)" in README


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    table = README[README.index("| measured on") :].split("\n\n")[0]
    figures = re.findall(r"\d+\.\d+|\d+ KiB|\d{4}-\d\d-\d\d", table)
    benchmarks = page("benchmarks.md")
    assert len(figures) > 20
    assert [figure for figure in figures if figure.removesuffix(" KiB") not in benchmarks] == []


def test_every_summary_field_is_described(tmp_path: Path) -> None:
    run = TrainingRun(load_config("tiny", {}, ["run.steps=3"]), tmp_path / "run")
    for _ in run.events():
        pass
    summary = run.finish()
    named = set(re.findall(r"`(\w+)`", page("run-directory.md")))
    assert [key for key in [*summary, *summary["eval"]] if key not in named] == []


def test_every_policy_and_preset_is_described() -> None:
    assert [name for name in BUILT_IN if f"`{name}`" not in page("policies.md")] == []
    assert [name for name in presets() if name != "base" and f"`{name}`" not in page("command-line.md")] == []


def test_every_kind_of_event_is_in_the_documents_and_on_the_dashboard() -> None:
    made = re.compile(r'(?:_event|\bnote|\bEvent)\(\s*(?:[\w.]+, )?"([a-z_]+)",|{"kind": "([a-z_]+)"')
    sources = [path.read_text() for path in (ROOT / "adaptive_rec").rglob("*.py")]
    kinds = {one or other for text in sources for one, other in made.findall(text)}
    assert kinds >= {"started", "reclassified", "split", "warning", "sidecar", "failed"}
    labels = re.search(r"const LABELS = {(.*?)}", (ROOT / "service/dashboard/events.js").read_text(), flags=re.S)
    assert labels is not None
    assert kinds == set(re.findall(r"(\w+): \"", labels[1]))
    assert kinds == set(EVENT_KINDS), "a kind that /metrics does not count from 0 raises no alert"
    for text in (page("run-directory.md"), page("live.md")):
        assert [kind for kind in sorted(kinds) if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_has_the_name_of_its_file(name: str) -> None:
    assert load_policy(name).name == name


def test_make_targets_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in RECORDS]
    texts = [README, *(path.read_text() for path in pages)]
    named = {target for text in texts for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, flags=re.M)}
    assert {"train", "test"} <= named
    assert [target for target in named if f"\n{target}:" not in makefile] == []


def test_files_linked_from_the_documents_exist() -> None:
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"^ *```.*?^ *```|`[^`\n]+`", "", path.read_text(), flags=re.S | re.M)
        links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", prose)
        made = [link for link in links if "reference/" in link]  # made when the site is built, which checks them
        assert [link for link in links if link not in made and not (path.parent / link).exists()] == [], path


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown makes them."""
    toc = pytest.importorskip("markdown.extensions.toc", reason="Markdown comes with mkdocs, which is not installed")
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M)
    found: set[str] = set(re.findall(r"""(?:<\w+ id="|\{ ?#)([\w-]+)""", text))
    for heading in re.findall(r"^#+ +(.+)$", text, flags=re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"[`*]", "", re.sub(r"\s*\{[^}]*\}$", "", heading)))
        toc.unique(toc.slugify(words, "-"), found)
    return found


def test_headings_linked_from_the_documents_exist() -> None:
    """Building the site, in `make check`, finds them too."""
    wrong, number = [], 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        prose = re.sub(r"^ *```.*?^ *```|`[^`\n]+`", "", path.read_text(), flags=re.S | re.M)
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", prose):
            target = path.parent / link if link else path
            if target.suffix != ".md" or not target.exists():
                continue  # a page that is made when the site is built
            number += 1
            if anchor not in anchors_of(target):
                wrong.append(f"{path.relative_to(ROOT)}: {link}#{anchor}")
    assert wrong == []
    assert number > 10


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written | set(pages()) == menu


def test_rooms_named_in_the_docs_exist_and_none_is_missing() -> None:
    text = (ROOT / "docs" / "rooms.md").read_text()
    rooms = {p.name for p in (ROOT / "adaptive_rec").iterdir() if p.suffix == ".py" and not p.name.startswith("__")}
    assert sorted(room for room in rooms if f"`{room}`" not in text) == []


def test_the_tests_that_the_page_on_security_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / "security.md").read_text())
    assert len(named) > 15
    assert [path for path in named if not (ROOT / path).is_file()] == []


# The site ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a warning is an error."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (pip install 'adaptive-rec[docs]')")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "site"
    with FileLock(folder.with_suffix(".lock")):  # one of several workers builds it
        if not (folder / "sitemap.xml").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
            assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site_and_linked_from_its_menu(site: Path) -> None:
    menu = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        path = str(page.relative_to(ROOT / "docs").with_suffix(".html"))
        assert (site / path).exists()
        assert f'href="{path}"' in menu, f"{page} is not in mkdocs.yml"


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """Pages are read from a disk, without a network: only links that a reader clicks may lead elsewhere."""
    loaded = re.compile(r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""")
    assert [path.name for path in site.rglob("*.html") if loaded.search(path.read_text())] == []
    imported = re.compile(r"""@import\s|url\(\s*["']?(?:https?:)?//""")
    assert [path.name for path in site.rglob("*.css") if imported.search(path.read_text())] == []
    assert "search/search_index.js" in {str(path.relative_to(site)) for path in site.rglob("*.js")}
    assert "iframe-worker.js" in (site / "index.html").read_text()


def page_text(site: Path, name: str) -> str:
    """The text of a page of the reference, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", (site / "reference" / f"{name}.html").read_text()))


@pytest.fixture(params=["made", pytest.param("built", marks=pytest.mark.slow)])
def reference(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The text of a generated page of the reference: as it is handed to MkDocs, or as it is in the site."""
    if request.param == "built":
        site = request.getfixturevalue("site")
        return lambda name: page_text(site, name)
    made = pages()
    return lambda name: re.sub(r"(?<!\\)\|", " ", made[f"reference/{name}.md"].replace("`", "")).replace("\\|", "|")


def test_the_reference_has_every_knob_and_key_with_default_and_range(reference: Callable[[str], str]) -> None:
    knobs, keys = reference("knobs"), reference("config")
    assert [
        name for name, field in Knobs.model_fields.items() if name not in knobs or field.description not in knobs
    ] == []
    assert [key for key, field in leaves(Config) if key not in keys or field.description not in keys] == []
    assert re.search(r'hot_budget_bytes\s+bytes\s+"8MiB"\s+at least 0', knobs)
    assert re.search(r"run.precision\s+name\s+\"float32\"\s+float32, tf32, bf16, float64", keys)


def test_the_reference_has_every_command_and_option(reference: Callable[[str], str]) -> None:
    from adaptive_rec.cli import parse
    from adaptive_rec.errors import UsageError

    text = reference("cli")
    listed = re.search(r"commands: (.*)\)", str(pytest.raises(UsageError, parse, ["no-such-command"]).value))
    assert listed is not None
    names = listed[1].split(", ")
    assert {"train", "compare", "doctor"} <= set(names)
    assert [name for name in names if f"usage: adaptive-rec {name} " not in text] == []
    made = re.compile(r'"(--[a-z][a-z-]+)"')
    sources = [path.read_text() for path in (ROOT / "adaptive_rec" / "cli").glob("*.py")]
    options = {
        option
        for source in sources
        for call in re.findall(r"add(?:_argument)?\([^)]*\)", source)
        for option in made.findall(call)
    }
    assert len(options) > 30
    assert sorted(option for option in options if option not in text) == []


def test_the_reference_has_every_route_and_metric(reference: Callable[[str], str]) -> None:
    routes, described = reference("http"), json.loads((ROOT / "docs" / "openapi.json").read_text())
    named = [f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods]
    assert len(named) > 15
    assert [route for route in named if route not in routes] == []
    metrics = reference("metrics")
    source = (ROOT / "service" / "metrics.py").read_text()
    names = set(re.findall(r'(?:gauges?|counters?|per_table)\("(\w+)"', source))
    of_parts = ("disk", "skipping")
    names |= {each.total if each.kind == "counter" else each.name for each in FIGURES if each.help and each.part not in of_parts}
    names |= {f"skipping_{name}" for name in metrics_of("skipping", counters=False)}
    names |= metrics_of("disk", counters=True).keys() | {f"disk_{name}" for name in metrics_of("disk", counters=False)}
    assert names >= {"steps", "build_info", "lookups", "phase", "hot_rows", "loss", "samples_seen", "knob"}
    assert sorted(name for name in names if not re.search(rf"adaptive_rec_{name}(_total)?\s", metrics)) == []


def test_the_python_reference_lists_every_public_name() -> None:
    import adaptive_rec
    from adaptive_rec import errors, policy

    listed = set(re.findall(r"^::: ([\w.]+)$", page("reference/python.md"), flags=re.M))
    names = [name for name in adaptive_rec.__all__ if not name.startswith("_")]
    assert {"wrap", "AdaptiveEmbeddingBag", "EmbeddingRuntime"} <= set(names)
    wanted = {f"adaptive_rec.{name}": getattr(adaptive_rec, name) for name in names}
    wanted |= {f"adaptive_rec.policy.{name}": getattr(policy, name) for name in policy.__all__ if name != "HOLD"}
    wanted["adaptive_rec.errors"] = errors  # with all that is in it
    assert sorted(wanted.keys() - listed) == []
    assert [name for name, found in wanted.items() if callable(found) and not found.__doc__] == []


@pytest.mark.slow
def test_the_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    import adaptive_rec
    from adaptive_rec import errors, policy

    text, source = page_text(site, "python"), (site / "reference" / "python.html").read_text()
    names = [name for name in adaptive_rec.__all__ if not name.startswith("_")]
    assert {"wrap", "AdaptiveEmbeddingBag", "EmbeddingRuntime"} <= set(names)
    for found in [*(getattr(adaptive_rec, name) for name in names), policy.Policy, policy.AccessView, policy.StepPlan]:
        first = " ".join(re.sub("[`*]", "", (found.__doc__ or "").split("\n\n")[0]).split())
        assert first, f"{found.__name__} has no docstring"
        assert first in " ".join(text.split()), found.__name__
    methods = ("prefetch", "stats", "serve", "set_knobs", "record_loss", "state_dict", "load_state_dict", "close")
    expected = [
        *(f"adaptive_rec.{name}" for name in names),
        *(f"adaptive_rec.EmbeddingRuntime.{method}" for method in methods),
        *(f"adaptive_rec.policy.{name}" for name in policy.__all__ if name != "HOLD"),
        *(f"adaptive_rec.errors.{name}" for name in vars(errors) if name.endswith("Error")),
    ]
    assert [name for name in expected if f'id="{name}"' not in source] == []
