"""After any failed operation the newest committed generation loads, nothing is tried again, and the next draft works."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.generation import generations
from adaptive_rec.checkpoint.history import newest_valid, prune
from adaptive_rec.errors import CheckpointError
from tests.checkpoint.histories import (
    CHAINS,
    CHECKPOINTS,
    STEPS,
    checked_step,
    found_step,
    name_of,
    values,
    write,
    write_history,
)
from tests.checkpoint.sim_files import Failing, Meddling, SimFiles


def operations() -> list[tuple[str, Path]]:
    """Return all operations of a history on a file system without faults."""
    files, failing = SimFiles(), Failing(-1, errno.EIO, False)
    write_history(Meddling(files, failing), files.log)
    return failing.done


def go_on(files: Files) -> tuple[list[int], str]:
    """Write the history until something fails: which steps were committed, and the error."""
    committed: list[int] = []
    try:
        for step in STEPS:
            write(files, step)
            committed.append(step)
            prune(files, CHECKPOINTS, keep=2)
    except CheckpointError as error:
        return committed, str(error)
    return committed, ""


def newest_written(done: list[tuple[str, Path]]) -> str:
    """The name of the generation that was committed last."""
    drafts = [path.name for operation, path in done if operation == "rename"]
    return drafts[-1].removeprefix(".").removesuffix(".draft") if drafts else ""


@pytest.mark.parametrize(
    ("code", "lasting", "which"),
    [
        pytest.param(errno.EIO, False, slice(0, None, 10), id="EIO once, every tenth"),
        pytest.param(errno.ENOSPC, True, slice(5, None, 10), id="ENOSPC from then on, every tenth"),
        *(
            pytest.param(code, lasting, slice(None), id=f"{name} {'from then on' if lasting else 'once'}", marks=pytest.mark.slow)
            for name, code in (("EIO", errno.EIO), ("ENOSPC", errno.ENOSPC))
            for lasting in (False, True)
        ),
    ],
)
def test_whichever_operation_fails_the_last_generation_loads_and_the_next_is_written(
    code: int, lasting: bool, which: slice
) -> None:
    """In `make test` every fifth operation fails, in one of two ways; in `make check` each in all ways."""
    expected = operations()
    for number, (operation, path) in list(enumerate(expected))[which]:
        files, failing = SimFiles(), Failing(number, code, lasting)
        committed, error = go_on(Meddling(files, failing))
        context = f"operation {number}, {operation} of {path}: {error}"
        if error:
            assert lasting or path.name in error, context
            assert ("No space left" if code == errno.ENOSPC else "Input/output") in error, context
        else:
            assert path.parts[2] != newest_written(expected[:number]), "an older generation that cannot be read is kept"
        if lasting:  # what is visible but could not be synced could not be removed either
            assert found_step(files) in {[None, *committed][-1], *(STEPS[len(committed) :][:1])}, context
        else:
            assert found_step(files) == [None, *committed][-1], context
        found = found_step(files)
        write(files, 500, on=CHAINS[found] if found else ())
        assert found_step(files) == 500, context
        prune(files, CHECKPOINTS, keep=2)
        assert found_step(files) == 500, context
        assert found is None or checked_step(files, CHECKPOINTS / name_of(found)) == found, context
        assert all(name.startswith("step-") for name in files.names(CHECKPOINTS)), context


def undone(done: list[tuple[str, Path]]) -> list[str]:
    """What follows the last of these operations, if that fails: what it had begun is removed, hidden before if it is visible."""
    operation, path = done[-1]
    renamed = path if operation == "rename" else done[-2][1] if path == CHECKPOINTS else None
    if path == CHECKPOINTS.parent or (renamed and renamed.name.startswith("step-")):
        return []  # nothing was begun, or a removal: what is hidden goes with the next draft
    return ["rename", "remove_folder"] if path == CHECKPOINTS else ["remove_folder"]


@pytest.mark.parametrize("operation", ["write", "sync", "sync_folder", "rename", "close"])
def test_a_failed_operation_is_not_tried_again(operation: str) -> None:
    expected = operations()
    for number, (name, path) in enumerate(expected):
        if name == operation:
            files, failing = SimFiles(), Failing(number, errno.EIO, False)
            with pytest.raises(CheckpointError):
                write_history(Meddling(files, failing), files.log)
            after = [entry for entry in failing.done[number + 1 :] if entry[0] != "close"]
            assert [entry[0] for entry in after] == undone(expected[: number + 1]), f"{name} of {path}: {after}"


def test_the_error_names_operation_and_file() -> None:
    for operation, name in {"write": "write", "sync": "sync", "rename": "renaming", "create": "creation"}.items():
        files = SimFiles()

        def meddle(requested: str, path: Path, operation: str = operation) -> bool:
            if requested == operation and path.name in {"state.json", ".step-000000007.draft"}:
                raise OSError(errno.EIO, "Input/output error")
            return True

        with pytest.raises(CheckpointError, match=rf"(state.json|\.draft): {name} failed: Input/output error"):
            write(Meddling(files, meddle), 7)


def test_an_abandoned_draft_accepts_no_files() -> None:
    files = SimFiles()
    draft = Draft(files, CHECKPOINTS, 7)
    draft.arrays("state.safetensors", values(7)["arrays"])
    draft.abandon()
    draft.abandon()
    assert files.names(CHECKPOINTS) == []
    for late in (lambda: draft.json("state.json", {}), lambda: draft.commit({})):
        with pytest.raises(CheckpointError, match="committed or abandoned"):
            late()


def test_any_kind_of_error_abandons_a_draft() -> None:
    files = SimFiles()
    draft = Draft(files, CHECKPOINTS, 7)
    with pytest.raises(CheckpointError, match=r"state.json must hold numbers, texts, lists and objects"):
        draft.json("state.json", {"loss": float("nan")})
    assert files.names(CHECKPOINTS) == []


@pytest.mark.parametrize(
    "name", ["../x.json", "a/b.json", "MANIFEST.json", ".x.json", "x.bin", "", "x.json\n", "ä.json"]
)
def test_names_of_files_are_plain(name: str) -> None:
    files = SimFiles()
    with pytest.raises(CheckpointError, match="must be named"):
        Draft(files, CHECKPOINTS, 7).json(name, {})
    assert files.names(CHECKPOINTS) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="file: listing failed: Not a directory"):
        Draft(DISK, tmp_path / "file", 1)
    with pytest.raises(CheckpointError, match="checkpoints: creation failed: No such file"):
        Draft(DISK, tmp_path / "absent" / "checkpoints", 1)


def test_a_second_generation_of_a_step_is_newer_than_the_first() -> None:
    files = SimFiles()
    first, second, third = (write(files, 7) for _ in range(3))
    assert [path.name for path in (first, second, third)] == ["step-000000007", "step-000000007.1", "step-000000007.2"]
    assert newest_valid(files, CHECKPOINTS).generation == third
    assert prune(files, CHECKPOINTS, keep=2) == [first.name]
    assert newest_valid(files, CHECKPOINTS).skipped == []


@pytest.mark.parametrize("steps", [(1, 7, 40, 180), (7, 40, 123, 180), (7, 40, 123, 180, 222)], ids=str)
def test_a_generation_that_is_unreadable_for_a_moment_is_not_removed(steps: tuple[int, ...]) -> None:
    """Whichever operation fails while older ones are removed: the newest two are whole when all can be read again."""
    number, left = 0, set()
    while True:
        files, failing = SimFiles(), Failing(number, errno.EIO, False)
        for step in steps:
            write(files, step)
        try:
            prune(Meddling(files, failing), CHECKPOINTS, keep=2)
        except CheckpointError:
            pass
        context = f"operation {number}: {failing.done[number : number + 1]}"
        left.add(len(generations(files.names(CHECKPOINTS))))
        for step in steps[-2:]:
            try:
                assert checked_step(files, CHECKPOINTS / name_of(step)) == step, context
            except CheckpointError as error:
                raise AssertionError(context) from error
        if len(failing.done) <= number:
            break
        number += 1
    assert number > 10
    assert (min(left) < len(steps)) == (len(steps) != 4 or steps[0] == 1), (
        "of each history something goes but of the second"
    )
