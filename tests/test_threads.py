"""Thread pools that start all their threads at once."""

from __future__ import annotations

import threading

import pytest

from carmad.threads import Threads
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
