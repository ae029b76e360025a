"""Files that grow and folders into which files come, as a source that is followed."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data import lines, packed
from adaptive_rec.data.open import open_source
from adaptive_rec.data.tabular import follow
from adaptive_rec.data.tabular.follow import FollowedSource, Pause
from adaptive_rec.data.tabular.stream import TabularSource
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.saved import Saved

HEAD = "clicked,user,price\n"


def line(k: int) -> str:
    return f'{k % 2},"user, {k % 13}",{k}\n'


def config_of(folder: Path, source: Path, *settings: str) -> Config:
    (folder / "schema.toml").write_text('label = "clicked"\ndense = ["price"]\nsparse = ["user"]\n')
    own = [f"data.source={source}", "data.ids=raw", f"data.schema_file={folder / 'schema.toml'}"]
    return load_config("tiny", {}, [*own, *settings])


def followed(folder: Path, source: Path, idle: float = 0.3) -> FollowedSource:
    return FollowedSource(config_of(folder, source, "data.follow=true", f"data.follow_idle_seconds={idle}"))


def prices(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.dense_BX[:, 0].astype(int).tolist() for batch in batches]


def chunked(values: range, size: int = 4) -> list[list[int]]:
    return [list(values[k : k + size]) for k in range(0, len(values), size)]


def in_pauses(source: FollowedSource, *acts: Callable[[], object]) -> None:
    """Do one thing after another while the stream waits for rows, each in a pause of its own, whatever the clock says."""
    left = list(acts)

    def wrap(pause: Pause) -> Pause:
        def act_and_wait(seconds: float) -> bool:
            if left:
                left.pop(0)()
            return pause(seconds)

        return act_and_wait

    source.wrap_pauses(wrap)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)


def test_lines_are_read_when_their_end_is_there(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(7))) + "1,user")
    source = followed(tmp_path, path, idle=20.0)
    batches = source.train_batches(Position(), 4)
    assert prices(iter([next(batches)])) == [[0, 1, 2, 3]]
    found: list[list[int]] = []
    reader = threading.Thread(target=lambda: [found.extend(prices(iter([batch]))) for batch in batches])
    reader.start()
    time.sleep(0.1)
    assert found == []  # of the next four lines the last one is half there
    with path.open("a") as file:
        file.write(" 7,7\n" + "".join(map(line, range(8, 10))))
        file.flush()
        while not found:
            time.sleep(0.01)
        assert found == [[4, 5, 6, 7]]
    source.stop()
    reader.join(60)
    assert found == [[4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_come_in_natural_order_and_batches_go_on_over_their_ends(tmp_path: Path, form: str) -> None:
    def add(name: str, rows: range) -> None:
        draft = tmp_path / f"{name}.part"
        if form == "csv":
            draft.write_text((HEAD + "".join(map(line, rows))).removesuffix("\n" * (name == "9")))
        else:
            columns = {"clicked": [k % 2 for k in rows], "user": [f"user, {k % 13}" for k in rows], "price": list(rows)}
            pyarrow.parquet.write_table(pa.table(columns), draft, row_group_size=3)
        draft.rename(tmp_path / "parts" / f"{name}.{form}")

    (tmp_path / "parts").mkdir()
    add("9", range(10))
    source = followed(tmp_path, tmp_path / "parts", idle=20.0)
    batches = source.train_batches(Position(), 4)
    assert prices(iter([next(batches), next(batches)])) == chunked(range(8))
    add("10", range(10, 13))
    add("11", range(13, 20))
    assert prices(iter([next(batches) for _ in range(3)])) == chunked(range(8, 20))
    add("2", range(3))
    with pytest.raises(DataError, match=rf"must sort after 11\.{form}, which was read, got 2\.{form}"):
        next(batches)


@pytest.mark.parametrize("gone", [False, True])
def test_reading_goes_on_at_a_saved_place(tmp_path: Path, gone: bool) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in range(3):
        (parts / f"{number}.csv").write_text(HEAD + "".join(map(line, range(10 * number, 10 * number + 10))))
    source = followed(tmp_path, parts)
    whole = list(source.train_batches(Position(), 4))
    assert prices(iter(whole)) == chunked(range(30))
    for batch in whole[3:]:
        first = followed(tmp_path, parts)
        list(first.train_batches(Position(), 4))
        saved = first.state(batch.position)
        if gone:
            (parts / "0.csv").unlink(missing_ok=True)  # trained on and removed
        second = followed(tmp_path, parts)
        second.set_state(Saved({name: value for name, value in saved.items()}, "followed"))
        rest = list(second.train_batches(batch.position, 4))
        assert prices(iter(rest)) == chunked(range(batch.position.offset, 30))
        if gone:
            break


def test_batches_are_those_of_the_file_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(45))))
    whole = TabularSource(config_of(tmp_path, path, "data.train_range=[0.0,0.9]"))
    for ours, theirs in zip(
        followed(tmp_path, path).train_batches(Position(), 8), whole.train_batches(Position(), 8), strict=False
    ):
        np.testing.assert_array_equal(ours.ids_N, theirs.ids_N)
        np.testing.assert_array_equal(ours.dense_BX, theirs.dense_BX)


def test_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(8))))
    batches = followed(tmp_path, path).train_batches(Position(), 8)
    next(batches)
    path.write_text(HEAD)
    with pytest.raises(DataError, match=r"clicks\.csv must only grow while it is followed"):
        next(batches)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "1.parquet").write_bytes(b"PAR1half")
    with pytest.raises(
        DataError, match=r"must be a plain CSV or TSV file, or in a folder that is followed, got .*1\.parquet"
    ):
        followed(tmp_path, tmp_path / "parts" / "1.parquet")
    with pytest.raises(DataError, match="a file must be complete when its name appears: write it under another name"):
        followed(tmp_path, tmp_path / "parts")
    with pytest.raises(ConfigError, match=r"data\.follow must be false but for a run that trains"):
        open_source(config_of(tmp_path, path, "data.follow=true"))
    for settings, rule in (
        (["data.follow=true", "data.epochs=2"], "epochs must be 1 where data is followed, got 2"),
        (["data.follow=true", "eval.count=3"], "eval.count must be 0 where data is followed, which has no end, got 3"),
        (["data.follow_idle_seconds=3"], "follow_idle_seconds must be 0 unless follow = true, got 3"),
        (
            ["data.follow=true", "data.ids=auto", 'data.schema_file=""'],
            "ids must be \"raw\" where data is followed, got 'auto'",
        ),
    ):
        with pytest.raises(ConfigError, match=rule):
            config_of(tmp_path, path, *settings)


def test_a_file_that_is_removed_or_replaced_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(8))))
    batches = followed(tmp_path, path, idle=20.0).train_batches(Position(), 8)
    next(batches)
    path.unlink()
    with pytest.raises(DataError, match=r"clicks\.csv must stay where it is while it is followed"):
        next(batches)
    path.write_text(HEAD + "".join(map(line, range(8))))
    source = followed(tmp_path, path, idle=20.0)
    batches = source.train_batches(Position(), 4)
    assert prices(iter([next(batches), next(batches)])) == chunked(range(8))
    in_pauses(source, lambda: path.write_text(HEAD + "".join(map(line, range(100, 140)))))
    with pytest.raises(DataError, match=r"what was read before byte \d+ has changed"):
        next(batches)


def saved_after(source: FollowedSource, batch_size: int) -> tuple[Saved, Position]:
    position = list(source.train_batches(Position(), batch_size))[-1].position
    return Saved(source.state(position), "followed"), position


@pytest.mark.parametrize("rows", [range(3), range(100, 140)])
def test_reading_does_not_go_on_in_a_file_that_lost_its_rows(tmp_path: Path, rows: range) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(8))))
    saved, position = saved_after(followed(tmp_path, path), 4)
    path.write_text(HEAD + "".join(map(line, rows)))
    source = followed(tmp_path, path)
    source.set_state(saved)
    with pytest.raises(DataError, match="what was read before byte"):
        next(source.train_batches(position, 4))


def test_rows_that_were_trained_on_must_be_there_behind_a_mark_too(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(8))))
    source = followed(tmp_path, path)
    batch = next(source.train_batches(Position(), 4))
    saved = Saved(source.state(batch.position), "followed")
    path.write_text(HEAD + "".join(map(line, range(3))))
    source = followed(tmp_path, path)
    source.set_state(saved)
    with pytest.raises(DataError, match="must still have all rows that were trained on, 1 of them are gone"):
        next(source.train_batches(batch.position, 4))


def test_a_file_that_came_too_late_is_not_left_out_after_a_resume(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for name in ("01.csv", "1.csv", "3.csv"):
        (parts / name).write_text(HEAD + "".join(map(line, range(4))))
    saved, position = saved_after(followed(tmp_path, parts), 4)
    assert position.offset == 12
    source = followed(tmp_path, parts)
    source.set_state(saved)
    assert list(source.train_batches(position, 4)) == []
    (parts / "2.csv").write_text(HEAD + "".join(map(line, range(4))))
    source = followed(tmp_path, parts)
    source.set_state(saved)
    with pytest.raises(DataError, match=r"must sort after 3\.csv, which was read, got 2\.csv"):
        next(source.train_batches(position, 4))


def test_files_that_are_gone_are_known_after_each_resume(tmp_path: Path) -> None:
    """Whether they were removed before the state was saved, or after, or the state of a resumed run was saved again."""
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in range(4):
        (parts / f"{number}.csv").write_text(HEAD + "".join(map(line, range(4 * number, 4 * number + 4))))
    source = followed(tmp_path, parts)
    position = list(source.train_batches(Position(), 4))[-1].position
    (parts / "1.csv").unlink()
    saved = source.state(position)
    (parts / "2.csv").unlink()
    for _ in range(2):
        source = followed(tmp_path, parts)
        source.set_state(Saved(saved, "followed"))
        assert list(source.train_batches(position, 4)) == []
        for file, missing in (("0.csv", "1.csv, 2.csv"), ("2.csv", "2.csv")):
            with pytest.raises(DataError, match=f"must still have all files read from then on, missing: {missing}$"):
                source.files.check_kept(file)
        source.files.check_kept("3.csv")
        saved = source.state(position)
    (parts / "2.csv").write_text(HEAD + line(0))
    with pytest.raises(DataError, match=r"2\.csv was read and removed, and is there again"):
        source.files.later(parts / "3.csv")


def test_half_a_character_waits_for_its_end(tmp_path: Path) -> None:
    path, text = tmp_path / "clicks.csv", (HEAD + "".join(map(line, range(8)))).encode("utf-16")
    config = config_of(tmp_path, path, "data.follow=true", "data.follow_idle_seconds=0.1")
    with (tmp_path / "schema.toml").open("a") as file:
        file.write('[file]\nencoding = "utf-16"\n')
    path.write_bytes(text[:-41])
    assert prices(FollowedSource(config).train_batches(Position(), 4)) == [[0, 1, 2, 3], [4, 5]]
    path.write_bytes(text)
    assert prices(FollowedSource(config).train_batches(Position(), 4)) == chunked(range(8))


def test_a_malformed_row_is_counted_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(8))))
    source = followed(tmp_path, path, idle=20.0)
    batches = source.train_batches(Position(), 4)
    assert prices(iter([next(batches), next(batches)])) == chunked(range(8))

    def add() -> None:
        with path.open("a") as file:
            file.write(line(8) + "1,2\n")

    in_pauses(source, add)
    with pytest.raises(DataError, match=r"row 10: must have 3 fields"):
        next(batches)


def test_a_file_is_followed_once_its_first_line_is_there(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD[:10])
    with pytest.raises(DataError, match="must have its first line, which names the columns"):
        followed(tmp_path, path)


def test_malformed_rows_that_come_alone_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(4))))
    source = FollowedSource(config_of(tmp_path, path, "data.follow=true", "data.on_bad_row=skip"))
    batches = source.train_batches(Position(), 4)
    assert next(batches).malformed_rows == 0

    def add(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    parts = ["1,2\n", "7,u,1\n", "".join(map(line, range(4))) + "7,u,1\n"]
    in_pauses(source, *(partial(add, text) for text in parts))
    assert next(batches).malformed_rows == 3
    source.stop()


def skipping(folder: Path, source: Path) -> FollowedSource:
    settings = ["data.follow=true", "data.on_bad_row=skip", "data.follow_idle_seconds=0.1"]
    return FollowedSource(config_of(folder, source, *settings))


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("form", ["grows", "folder", "gz"])
def test_malformed_rows_behind_the_last_row_are_counted_once(
    tmp_path: Path, is_killed: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 96)
    monkeypatch.setattr(packed, "CHUNK_BYTES", 96)
    (tmp_path / "parts").mkdir()
    path = tmp_path / "parts" / "1.csv"
    text = HEAD + "".join(map(line, range(8))) + "7,user,1\n" * 30
    path.write_text(text)
    if form == "gz":
        path.unlink()
        path = path.with_suffix(".csv.gz")
        path.write_bytes(gzip.compress(text.encode()))
    data = path if form == "grows" else path.parent
    source = skipping(tmp_path, data)
    batches = list(source.train_batches(Position(), 4))
    counted, last = sum(batch.malformed_rows for batch in batches), batches[-1].position
    assert 0 < counted < 30  # those in the chunk of the last row come with it
    saved = Saved(source.state(last), "followed")
    at_the_end = source.end(last)
    assert (counted + at_the_end, source.end(last)) == (30, 0)
    if not is_killed:
        saved, counted = Saved(source.state(last), "followed"), counted + at_the_end
    more = "7,user,1\n" + "".join(map(line, range(8, 12)))
    if form == "grows":
        with path.open("a") as file:
            file.write(more)
    else:
        (path.parent / "2.csv").write_text(HEAD + more)
    source = skipping(tmp_path, data)
    source.set_state(saved)
    assert counted + sum(batch.malformed_rows for batch in source.train_batches(last, 4)) == 31


@pytest.mark.parametrize("file_size", [8, 100])
def test_malformed_rows_that_come_behind_a_saved_place_are_counted_after_a_kill(tmp_path: Path, file_size: int) -> None:
    """A resume reads what has come since in one block with rows that were trained on. It may be killed and resumed again."""
    parts = tmp_path / "parts"
    parts.mkdir()
    texts = [line(k) + "7,user,1\n" * (k % 3) for k in range(24)]
    saved, position, counted, trained = None, Position(), 0, []
    for come in (5, 9, 10, 17, 24):
        for first in range(0, come, file_size):
            (parts / f"{first}.csv").write_text(HEAD + "".join(texts[first : min(first + file_size, come)]))
        source = skipping(tmp_path, parts)
        if saved is not None:
            source.set_state(saved)
        for batch in source.train_batches(position, 2):
            if len(batch.labels_B) < 2 or come < 24 and batch.position.offset > come - 3:
                break  # the kill
            trained.append(batch)
            position, counted = batch.position, counted + batch.malformed_rows
        source.stop()
        saved = Saved(source.state(position), "followed")
    assert prices(iter(trained)) == chunked(range(24), 2)
    assert counted + source.end(position) == sum(k % 3 for k in range(24))


@pytest.mark.parametrize("half", ["", "1,user"])
def test_a_folder_that_is_emptied_is_waited_for(tmp_path: Path, half: str) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "1.csv").write_text(HEAD + "".join(map(line, range(4))) + half)
    size = (parts / "1.csv").stat().st_size
    source = followed(tmp_path, parts, idle=20.0)
    batches = source.train_batches(Position(), 4)
    assert prices(iter([next(batches)])) == [[0, 1, 2, 3]]
    in_pauses(
        source, (parts / "1.csv").unlink, lambda: (parts / "2.csv").write_text(HEAD + "".join(map(line, range(4, 8))))
    )
    assert prices(iter([next(batches)])) == [[4, 5, 6, 7]]
    left = " but for 6 at its end, which are no whole line" if half else ""
    assert sorted(source.files.take_warnings()) == [
        f"{parts} has no files any more, the run waits for new ones",
        f"{parts / '1.csv'} was removed while it was followed; its {size} bytes were read{left}",
    ]
    (parts / "1.csv").write_text(HEAD)
    with pytest.raises(DataError, match=r"files that come must have new names, 1\.csv was read and removed, and is there"):
        next(batches)


@pytest.mark.parametrize("end", ["", "1,user", '1,"open,3\n0,b,4\n'])
def test_an_ended_stream_says_what_it_has_left(tmp_path: Path, end: str) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(7))) + end)
    source = followed(tmp_path, path)
    assert prices(source.train_batches(Position(), 4)) == chunked(range(7))
    text = f"{len(end)} bytes at the end of {path} were not read, as they are no whole line"
    assert source.unread() == (text if end else "")


def test_a_stream_that_is_stopped_within_its_rows_says_nothing_of_those_to_come(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(HEAD + "".join(map(line, range(7))) + "1,user")
    source = followed(tmp_path, path)
    next(source.train_batches(Position(), 4))
    assert source.unread() == ""
