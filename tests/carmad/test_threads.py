"""Thread pools that start all their threads at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial

import pytest

from carmad.threads import SharedThreads, Threads
from tests.attempts import until
from tests.waiting import PATIENCE_S


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_all_are_there_from_the_start() -> None:
    threads = Threads(3, "first", 60.0)
    assert len(named("first")) == 3
    assert threads.submit(lambda: 7).result(PATIENCE_S) == 7
    threads.shutdown()
    assert not named("first")


def test_where_not_all_find_room_none_stays_and_keeps_the_process_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, left = threading.Thread.start, iter(range(2))

    def crowded(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", crowded)
        with pytest.raises(RuntimeError, match="new thread"):
            Threads(3, "second", 60.0)
    until(lambda: not named("second"), "the others to end")


class Calls:
    """Calls that end when they are let, and which have begun, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let = dict[str, threading.Event]()

    def call(self, name: str) -> None:
        self.begun.append(name)
        self.let.setdefault(name, threading.Event()).wait(PATIENCE_S)

    def end(self, name: str) -> None:
        self.let.setdefault(name, threading.Event()).set()

    def await_begun(self, *names: str) -> None:
        until(lambda: self.begun == [*names], f"{names}, and nothing else, to begin")


@pytest.fixture
def calls() -> Calls:
    return Calls()


def put(threads: SharedThreads, calls: Calls, *names: str, urgent: bool = False) -> None:
    """The first letter is the user."""
    for name in names:
        threads.submit(ord(name[0]), partial(calls.call, name), key=name, urgent=urgent)


def test_one_whose_calls_hang_leaves_threads_to_the_others(calls: Calls) -> None:
    threads = SharedThreads(2, "shared", 60.0)
    put(threads, calls, "a1", "a2", "a3", "b1", "c1")
    calls.await_begun("a1", "b1")
    calls.end("b1")
    calls.await_begun("a1", "b1", "c1")
    put(threads, calls, "b2")
    calls.end("c1")
    calls.await_begun("a1", "b1", "c1", "b2")
    calls.end("a1")
    calls.await_begun("a1", "b1", "c1", "b2", "a2")
    for name in ("b2", "a2", "a3"):
        calls.end(name)
    calls.await_begun("a1", "b1", "c1", "b2", "a2", "a3")
    threads.shutdown()


def test_urgent_calls_go_first_and_what_was_dropped_is_not_begun(calls: Calls) -> None:
    threads = SharedThreads(1, "shared", 60.0)
    put(threads, calls, "a1")
    calls.await_begun("a1")
    put(threads, calls, "b1", "c1", "b2")
    put(threads, calls, "c2", "a2", urgent=True)
    threads.drop("b1")
    for name in ("a1", "c2", "a2", "b2", "c1"):
        calls.end(name)
    until(lambda: len(calls.begun) == 5, "all calls to begin")
    assert calls.begun == ["a1", "c2", "a2", "b2", "c1"]
    threads.shutdown()


def test_a_call_that_fails_is_logged_and_the_next_begins(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    threads = SharedThreads(1, "shared", 60.0)
    threads.submit(1, partial(int, "no number"))
    calls.end("a1")
    put(threads, calls, "a1")
    calls.await_begun("a1")
    threads.shutdown()
    assert "a call of user 1 failed" in caplog.text
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(1, partial(int, "1"))


def test_what_has_not_begun_ends_with_the_shutdown(calls: Calls) -> None:
    threads = SharedThreads(1, "shared", 60.0)
    put(threads, calls, "a1", "a2", "b1")
    calls.await_begun("a1")
    threads.shutdown(wait=False)
    calls.end("a1")
    until(lambda: not named("shared"), "the thread to end")
    assert calls.begun == ["a1"]


@dataclass(frozen=True)
class Key:
    """Counts with how many others it is compared."""

    number: int
    compared: list[int]

    def __eq__(self, other: object) -> bool:
        self.compared.append(self.number)
        return isinstance(other, Key) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


def test_to_drop_a_call_costs_nothing_for_those_that_wait(calls: Calls) -> None:
    """Jobs end while thousands wait for an estimate, and the core's thread drops each."""
    threads, compared = SharedThreads(1, "shared", 60.0), list[int]()
    put(threads, calls, "a1")
    calls.await_begun("a1")
    for number in range(1000):
        threads.submit(7, lambda: None, key=Key(number, compared))
    for number in range(1000, 2000):
        threads.drop(Key(number, compared))
    assert not compared
    calls.end("a1")
    threads.shutdown()
