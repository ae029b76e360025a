"""The options of the service in a run's directory: what was given is kept, and no secret is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive_rec.errors import UsageError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.run.serving import keep_options, kept_options


def test_what_was_given_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "host": "0.0.0.0",
        "port": 8500,
        "allow_hosts": ("gpu-box", "trainer"),
        "token_file": Path("a/../scrape-token"),
    }
    keep_options(tmp_path, given)
    kept = kept_options(tmp_path)
    assert kept == {**given, "token_file": tmp_path / "scrape-token"}
    ServeOptions(**kept)


def test_a_path_that_is_no_utf8_comes_back(tmp_path: Path) -> None:
    path = Path("/srv/half\udcff")
    keep_options(tmp_path, {"token_file": path})
    assert kept_options(tmp_path) == {"token_file": path}


def test_nothing_given_is_nothing_kept(tmp_path: Path) -> None:
    keep_options(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    assert kept_options(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "as JSON"),
        ("\xff\xfe", "must"),
        ("[1]", "got content="),
        ('{"port": "8470"}', "got port='8470'"),
        ('{"port": true}', "got port='True'"),
        ('{"host": 1}', "got host="),
        ('{"allow_hosts": "gpu-box"}', "got allow_hosts="),
        ('{"token_file": "a\\u0000b"}', "got token_file="),
        ('{"control_token": "x"}', "got control_token="),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "serve.json").write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match=said.replace("[", r"\[")) as caught:
        kept_options(tmp_path)
    assert "serve.json" in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        keep_options(tmp_path / "absent", {"port": 1})


def test_the_file_has_no_token(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token = ServeOptions(token_file=token_file).read_token()
    keep_options(tmp_path, {"token_file": token_file, "port": 8500})
    assert token not in (tmp_path / "serve.json").read_text()
    assert json.loads((tmp_path / "serve.json").read_text()) == {"token_file": str(token_file), "port": 8500}
