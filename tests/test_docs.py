"""What the documents say is there, and what is there is in the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adaptive_rec.config import load_config, presets
from adaptive_rec.known_policies import BUILT_IN, load_policy
from adaptive_rec.run import TrainingRun

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_summary_field_is_in_the_readme(tmp_path: Path) -> None:
    run = TrainingRun(load_config("tiny", {}, ["run.steps=3"]), tmp_path / "run")
    for _ in run.events():
        pass
    summary = run.finish()
    named = set(re.findall(r"`(\w+)`", README))
    assert [key for key in [*summary, *summary["eval"]] if key not in named] == []


def test_every_policy_and_preset_is_in_the_readme() -> None:
    assert [name for name in BUILT_IN if f"`{name}`" not in README] == []
    assert [name for name in presets() if name != "base" and f"`{name}`" not in README] == []


def test_every_kind_of_event_is_in_the_documents_and_on_the_dashboard() -> None:
    made = re.compile(
        r'(?:_event|\bnote|\bEvent)\(\s*(?:(?:(?:self|run)\.step_number|step), )?"([a-z_]+)",|{"kind": "([a-z_]+)"'
    )
    sources = [path.read_text() for path in (ROOT / "adaptive_rec").rglob("*.py")]
    kinds = {one or other for text in sources for one, other in made.findall(text)}
    assert kinds >= {"started", "reclassified", "split", "warning", "sidecar", "failed"}
    labels = re.search(r"const LABELS = {(.*?)}", (ROOT / "service/dashboard/events.js").read_text(), flags=re.S)
    assert labels is not None
    assert kinds == set(re.findall(r"(\w+): \"", labels[1]))
    for text in (README, (ROOT / "docs" / "live.md").read_text()):
        assert [kind for kind in sorted(kinds) if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policys_name_is_that_of_its_file(name: str) -> None:
    assert load_policy(name).name == name


def test_make_targets_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    texts = [README, *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    named = {target for text in texts for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, flags=re.M)}
    assert {"train", "test"} <= named
    assert [target for target in named if f"\n{target}:" not in makefile] == []


def test_files_linked_from_the_documents_exist() -> None:
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text())
        assert [link for link in links if not (path.parent / link).exists()] == [], path
    assert "(docs/log.md)" in README


def test_rooms_named_in_the_architecture_exist_and_none_is_missing() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {p.name for p in (ROOT / "adaptive_rec").iterdir() if p.suffix == ".py" and not p.name.startswith("__")}
    assert sorted(room for room in rooms if f"`{room}`" not in text) == []
