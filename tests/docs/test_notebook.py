"""The notebook of the examples is that of its page, and runs from the first cell to the last."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE, NOTEBOOK = ROOT / "docs" / "tutorial" / "00-films.md", ROOT / "examples" / "films.ipynb"
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from notebook import execute, notebook_of  # noqa: E402

from tests.docs.page_files import write_ratings  # noqa: E402


def test_the_notebook_is_that_of_its_page() -> None:
    found, made = json.loads(NOTEBOOK.read_text()), notebook_of(PAGE, NOTEBOOK.parent)
    again = "python docs/tools/notebook.py docs/tutorial/00-films.md examples/films.ipynb --execute --file ratings.dat"
    for there, here in zip(found["cells"], made["cells"], strict=True):
        assert "".join(there["source"]) == here["source"], f"make it again: {again}"


def test_links_of_the_notebook_lead_to_files() -> None:
    for cell in notebook_of(PAGE, NOTEBOOK.parent)["cells"]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", cell["source"]) if cell["cell_type"] == "markdown" else ():
            assert (NOTEBOOK.parent / link).exists(), link


def test_the_notebook_has_its_outputs_and_no_path_of_the_machine_that_made_them() -> None:
    text = NOTEBOOK.read_text()
    assert "AUC 0.7852" in text
    assert re.findall(r"/tmp/|/home/|/root/|Traceback", text) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed (pip install 'adaptive-rec[dev]')")
    for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "runtime"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    (tmp_path / "runtime").mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_ratings(tmp_path / "ratings.dat")
    cells = execute(notebook_of(PAGE, NOTEBOOK.parent), tmp_path)["cells"]
    printed = ["".join("".join(output.get("text", "")) for output in cell.get("outputs", ())) for cell in cells]
    (trained,) = [re.search(r"AUC (0\.\d+)", text) for text in printed if "held out)" in text]
    assert trained is not None
    assert float(trained[1]) > 0.77
    assert any("Iron Man 3" in text for text in printed), "it is among the rows that are hot"
    scores = dict(re.findall(r"^user 4191  (0\.\d+)  (.+)$", "\n".join(printed), flags=re.M))
    best, worst = max(scores), min(scores)
    assert scores[best] == "The Shawshank Redemption"
    assert printed[-2].strip() == f"{{'111161': {float(best)}, '1606378': {float(worst)}}}", "as predict wrote"
