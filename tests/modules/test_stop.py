"""A user's loop is asked to stop from outside, and shows where it ends if it announces that."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from adaptive_rec.errors import ConflictError
from adaptive_rec.live.mailbox import Command

from .training import CASES, Loop

STEPS = 8


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(CASES["dlrm"], "sgd", {})
    yield made
    made.runtime.close()


def train(loop: Loop, items: Iterable[Any]) -> Iterator[int | None]:
    """Train on items; yield the end that is known after each step."""
    for item in items:
        loop.zero_grad()
        loop.forward_backward(loop.model, item, loop)
        loop.update()
        yield loop.runtime.state.steps_total


def batches(loop: Loop) -> list[Any]:
    return list(loop.case.batches(STEPS))


def ask_to_stop(loop: Loop) -> list[Any]:
    """Leave a command to stop for the next step boundary; return the list that its answer will be in."""
    answers: list[Any] = []
    loop.runtime.mailbox.send(Command("stop", answer=answers.append))
    return answers


def test_a_loop_without_prefetch_has_no_known_end(loop: Loop) -> None:
    assert list(train(loop, batches(loop))) == [None] * STEPS


def test_the_end_of_a_prefetched_loader_is_known_until_it_is_reached(loop: Loop) -> None:
    ahead = loop.runtime.prefetch(batches(loop), sparse=loop.case.lookups)
    assert list(train(loop, ahead)) == [STEPS] * STEPS
    assert loop.runtime.state.steps_total is None
    assert list(train(loop, batches(loop)[:2])) == [None, None]


class LongerThanItSays(list[Any]):
    def __len__(self) -> int:
        return 3


def test_a_loader_that_is_longer_than_it_says_has_no_known_end_from_there_on(loop: Loop) -> None:
    ahead = loop.runtime.prefetch(LongerThanItSays(batches(loop)), sparse=loop.case.lookups)
    assert list(train(loop, ahead)) == [3] * 3 + [None] * (STEPS - 3)


def test_a_prefetched_loop_obeys_a_request_to_stop_in_all_later_epochs(loop: Loop) -> None:
    trained = 0
    for epoch in range(3):
        for _ in train(loop, loop.runtime.prefetch(batches(loop), sparse=loop.case.lookups)):
            trained += 1
            if (epoch, trained) == (0, 3):
                answers = ask_to_stop(loop)
    assert trained == 4, "the command is carried out at the end of the fourth step"
    assert answers[0]["step"] == 4


def test_a_loop_that_reads_stop_requested_can_be_stopped(loop: Loop) -> None:
    trained = 0
    for _ in train(loop, batches(loop)):
        trained += 1
        if loop.runtime.stop_requested:
            break
        if trained == 3:
            answers = ask_to_stop(loop)
    assert trained == 4
    assert answers[0]["step"] == 4


def test_a_loop_that_would_not_stop_refuses_by_name(loop: Loop) -> None:
    for number, _ in enumerate(train(loop, batches(loop))):
        if number == 2:
            answers = ask_to_stop(loop)
    assert not loop.runtime.state.stop_requested
    assert isinstance(answers[0], ConflictError)
    assert "runtime.prefetch or read runtime.stop_requested" in str(answers[0])


def test_a_closed_runtime_has_no_threads(loop: Loop) -> None:
    before = set(threading.enumerate())
    other = Loop(CASES["dlrm"], "sgd", {})
    list(train(other, other.runtime.prefetch(batches(other), sparse=other.case.lookups)))
    other.runtime.observer._counting.do(lambda: None)  # counts in a thread where a machine has enough cores
    assert set(threading.enumerate()) - before
    other.runtime.close()
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []
