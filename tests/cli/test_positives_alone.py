"""``--item``, ``--user`` and ``--negatives``: a log of positives alone on the command line."""

from __future__ import annotations

import csv
import json
import random
import shlex
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.tabular.schema import load_schema

ROWS = 300
SMALL = [
    word
    for one in ("run.device=cpu", "run.threads=1", "run.steps=12", "run.batch_size=50", "model.top_mlp=[8]")
    for word in ("--set", one)
]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ratings of 12 users, whose numbers are written as floats."""
    monkeypatch.chdir(tmp_path)
    dice = random.Random(1)
    rows = []
    for k in range(ROWS):
        movie = int(40 * dice.random() ** 2)
        rows.append([f"{dice.randrange(12)}.0", movie, k % 5 + 1, f"genre {movie % 6}", 1_600_000_000 + 60 * k])
    with open("ratings.csv", "w", newline="") as file:
        csv.writer(file).writerows([["userId", "movieId", "rating", "genre", "at"], *rows])
    return "ratings.csv"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command says; nothing is trained."""
    capsys.readouterr()
    assert main(["train", "--print-config", *words]) == code
    out, err = capsys.readouterr()
    Path("config.toml").write_text(out)
    return err


def test_item_and_user_are_categories_and_the_rating_is_left_out(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", log, "--item", "movieId", "--user", "userId", "--time", "at", "--negatives", "3"]
    told = said(capsys, *words)
    assert "item      movieId  every row is a positive" in told
    assert "unused    rating   known only once the item was chosen, it seems" in told
    config = load_config("config.toml", {})
    assert (config.data.implicit.negatives, config.data.order) == (3, "time")
    assert config.eval.metrics == ("recall@20", "ndcg@20", "mrr"), "the preset is that of logs of positives alone"
    schema = load_schema(Path("runs/ratings.schema.toml"))
    assert schema.implicit is not None
    assert (schema.label, schema.implicit.item, schema.implicit.user, schema.min_count) == ("", "movieId", "userId", 1)
    assert [each.column for each in schema.sparse] == ["userId", "movieId", "genre"]
    kept = load_meta(Path(config.data.source)).columns_schema
    assert kept is not None
    assert (kept.label, kept.implicit) == ("", schema.implicit)
    assert config.data.epochs == 1, "time passes once"
    assert "prepared before" in said(capsys, *words)
    monkeypatch.setenv("ADAPTIVE_REC_DATA__EPOCHS", "2")
    assert "must be 1" in said(capsys, *words, code=2), "what the environment gives is not replaced"
    monkeypatch.delenv("ADAPTIVE_REC_DATA__EPOCHS")
    said(capsys, *words[:6], "--negatives", "3")
    assert load_config("config.toml", {}).data.epochs == 5
    assert "prepared before" in said(capsys, *words, "--set", "data.implicit.negatives=9"), "how many are drawn changes no folder"
    text = Path("runs/ratings.schema.toml").read_text()
    Path("mine.toml").write_text(text)
    again = said(capsys, "--data", log, "--schema", "mine.toml", "--negatives", "3")
    assert "schema      mine.toml" in again
    other = said(capsys, "--data", log, "--schema", "mine.toml", "--item", "genre", "--negatives", "3", code=2)
    assert "--item must be the item of mine.toml, 'movieId', got 'genre'" in other


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--item", "movie", "--negatives", "3"], "--item must be a column of ratings.csv, got 'movie'; the first line names"),
        (["--item", "movieId", "--user", "movieId", "--negatives", "3"], "--user must be another column than --item"),
        (["--item", "movieId", "--label", "rating >= 4", "--negatives", "3"], "give one of them"),
        (["--user", "userId", "--negatives", "3"], "--user needs --item COLUMN"),
        (["--item", "movieId"], "beside which negatives are needed: add --negatives 4"),
        (["--label", "rating >= 4", "--negatives", "3"], "give --item COLUMN in place of --label"),
        (["--item", "movieId", "--negatives", "many"], "data.implicit.negatives"),
        (["--item", "movieId", "--negatives", "-1"], "data.implicit.negatives must be at least 0, got -1"),
        (["--item", "movieId", "--negatives", "2", "--follow"], "data.follow must be false where rows are all positives"),
        (["implicit", "--item", "movieId", "--negatives", "2", "--follow"], "data.follow must be false"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_prepared(
    log: str, words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", log, *words]) == 2
    assert fault in capsys.readouterr().err
    assert not list(Path("runs").glob("data/*"))


def test_commands_without_the_option_name_the_key_for_negatives(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["plan", "--data"], ["compare", "--data"], ["profile"], ["simulate"]):
        assert main([*words, log, "--item", "movieId"]) == 2
        assert "negatives are needed: add --set data.implicit.negatives=4" in capsys.readouterr().err


def test_a_run_is_scored_and_scores_new_rows(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", log, "--item", "movieId", "--user", "userId", "--negatives", "3"]
    assert main(["train", *words, *SMALL, "--no-serve", "--out", "run"]) == 0
    told = capsys.readouterr().out
    assert "negatives   3 for each row, drawn uniformly from 39 items; with the item: genre" in told
    assert "users ranked among all 39 items, those of their training rows left out" in told
    assert "recall@20" in told
    assert "nothing to learn" not in told
    assert main(["eval", "run", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["ranking"] == json.loads(Path("run/summary.json").read_text())["eval"]["ranking"]
    lines = Path(log).read_text().splitlines()
    Path("new.csv").write_text("\n".join([lines[0], *lines[-30:]]) + "\n")
    assert main(["eval", "run", "--data", "new.csv", "--json"]) == 0
    new = json.loads(capsys.readouterr().out)
    assert new["ranking"] == own["ranking"], "the rows are those held out"
    assert new["auc"] == own["auc"]
    assert main(["predict", "run", "--data", "new.csv", "--out", "scores.csv"]) == 0
    assert len(Path("scores.csv").read_text().splitlines()) == 31


def test_a_prepared_folder_comes_with_the_command_that_trains_it(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", log, "--item", "movieId", "--user", "userId", "--time", "at", "--out", "made of"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].split(maxsplit=1)[1]
    assert command == "adaptive-rec train --data 'made of' --time at --negatives 4"
    said(capsys, *shlex.split(command)[2:])
    data = load_config("config.toml", {}).data
    assert (data.implicit.negatives, data.order) == (4, "time")
