"""Each user's share: turns, pace and limits; users do not wait for each other."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from carmad.accounts import groups_of
from carmad.core.jobs.attempt import JobId
from carmad.core.messages import Noticed
from carmad.engine.inbox import QUANTUM, Backlog, Delivery
from carmad.http import connections, shares
from carmad.http.connections import FEW, PART_OF_FEW, PER_USER, Connections, Credentials, Peers
from carmad.http.problems import TooMany, refusal_of
from carmad.http.shares import Share, Shares
from carmad.threads import run_in_threadpool
from tests.aio import run_async
from tests.waiting import PATIENCE_S

ROOT = 0


class Clock:
    """Sleeps return at once, and are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def passes(count: int) -> None:
    """Of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def of_a_burst(share: Share, count: int, tokens: float = 1) -> int:
    """How many of a burst are admitted."""

    async def ask() -> int:
        let_in = 0
        for _ in range(count):
            try:
                await share.admit(tokens)
                let_in += 1
            except TooMany as refused:
                assert int(refusal_of(refused).headers["retry-after"]) >= shares.PATIENCE_S
        return let_in

    return run_async(ask())


def test_a_loop_of_hundreds_is_let_in_at_once(clock: Clock) -> None:
    assert of_a_burst(Share(), 400) == 400
    assert clock.slept == []


def test_who_asks_too_often_waits_and_is_then_refused(clock: Clock) -> None:
    let_in = of_a_burst(Share(), 2000)
    most = shares.BURST + shares.PATIENCE_S * shares.RATE
    assert shares.BURST <= let_in <= most + 100  # what comes back while they ask
    assert all(0 < seconds <= shares.PATIENCE_S for seconds in clock.slept)
    assert clock.slept.count(shares.REFUSED_AFTER_S) >= 2000 - let_in


def test_the_daemons_own_user_is_not_held_back(clock: Clock) -> None:
    known = Shares(ROOT)
    assert of_a_burst(known.of(ROOT), 5000, 256) == 5000
    assert clock.slept == []
    assert known.of(1000) is known.of(1000) is not known.of(1001)

    async def many() -> None:
        held = [known.of(ROOT).turn() for _ in range(50)]
        for each in held:
            await each.__aenter__()

    run_async(many())


def test_a_users_requests_take_turns_and_others_do_not_wait() -> None:
    known, order = Shares(ROOT), list[str]()

    async def work(uid: int, name: str, until: asyncio.Event) -> None:
        async with known.of(uid).turn():
            order.append(name)
            await until.wait()

    async def play() -> None:
        until = asyncio.Event()
        hostile = [asyncio.ensure_future(work(1, f"h{n}", until)) for n in range(50)]
        await passes(10)
        assert order == ["h0", "h1"]
        honest = asyncio.ensure_future(work(2, "honest", until))
        await passes(10)
        assert order == ["h0", "h1", "honest"]
        until.set()
        await asyncio.gather(honest, *hostile)

    run_async(play())
    assert len(order) == 51


def test_who_only_waits_for_an_answer_leaves_the_turn_to_others() -> None:
    share = Share()

    async def play() -> None:
        rested, go_on = asyncio.Event(), asyncio.Event()

        async def waiting() -> None:
            turn = share.turn()
            async with turn, turn.rest():
                rested.set()
                await go_on.wait()

        waiters = [asyncio.ensure_future(waiting()) for _ in range(20)]
        await rested.wait()
        for _ in range(10):
            async with share.turn():
                pass
        go_on.set()
        await asyncio.gather(*waiters)
        assert share.running._value == shares.AT_ONCE  # as many as there were

    run_async(play())


def opened(counted: Connections, user: int, wanted: int) -> int:
    """How many of so many more connections a user gets."""
    return sum(counted.add(user) for _ in range(wanted))


def test_the_last_connections_are_for_users_with_few() -> None:
    counted = Connections({ROOT}, room=1024)
    assert [opened(counted, user, 1000) for user in (1, 2, 3)] == [PER_USER] * 3
    assert opened(counted, 4, 1000) == 1024 - 3 * PER_USER - 1024 // PART_OF_FEW
    assert [opened(counted, user, 1000) for user in range(5, 20)] == [FEW] * 15
    assert opened(counted, ROOT, 2000) == 2000
    for _ in range(PER_USER):
        counted.remove(1)
    counted.remove(ROOT)
    assert opened(counted, 1, 1000) > FEW
    assert opened(counted, 2, 1) == 0


def delivery(user: int | None, number: int = 0, weight: int = 1) -> Delivery:
    return Delivery((Noticed(0.0, JobId(number), ""),), None, user, weight)


def users_of(batch: list[Delivery]) -> list[int | None]:
    return [each.user for each in batch]


def test_who_comes_with_little_goes_before_another_s_thousands() -> None:
    backlog = Backlog()
    for number in range(100):
        backlog.put(delivery(1, number, QUANTUM))
    assert users_of(backlog.take(1.0)) == [1]
    backlog.put(delivery(2))
    backlog.put(delivery(None))
    assert users_of(backlog.take(2.0)) == [None, 2, 1]  # who has much has a turn, too
    backlog.put(delivery(3))
    assert users_of(backlog.take(3.0)) == [3, 1]
    assert users_of(backlog.take(4.0)) == [1]


def test_nor_does_anybody_wait_for_several_who_have_much() -> None:
    """Arrays come in parts of a whole quantum."""
    backlog = Backlog()
    for number in range(900):
        backlog.put(delivery(1 + number % 9, number, QUANTUM))
    backlog.take(1.0)
    touched: Counter[int | None] = Counter()
    for now in range(2, 60):
        backlog.put(delivery(99))
        taken = backlog.take(now)
        assert 99 in users_of(taken), "in the next batch, whenever that is"
        assert sum(each.weight for each in taken) <= 2 * QUANTUM
        touched.update(users_of(taken))
    assert min(touched[user] for user in range(1, 10)) >= 4, "and the others go on"


def test_users_with_much_take_turns_by_what_they_touch() -> None:
    backlog = Backlog()
    for number in range(1000):
        backlog.put(delivery(1, number))
        backlog.put(delivery(2, number, QUANTUM // 2))
        backlog.put(delivery(3, number, 3 * QUANTUM))  # which nobody has split
    touched: Counter[int] = Counter()
    for _ in range(30):
        for each in backlog.take(1.0):
            assert each.user is not None
            touched[each.user] += each.weight
    fair = sum(touched.values()) / 3
    assert all(abs(one - fair) <= 4 * QUANTUM for one in touched.values())


def test_nothing_is_lost_and_what_waited_happens_when_its_turn_comes() -> None:
    backlog = Backlog()
    for number in range(500):
        backlog.put(delivery(number % 3 or None, number, 1 + number % 100))
    taken = backlog.take(7.0)
    taken += backlog.rest(8.0)
    assert sorted(each.events[0].job for each in taken) == list(range(500))  # type: ignore[union-attr]
    assert not backlog
    waited = [each for each in taken if each.user is not None]
    assert {each.events[0].at for each in waited} == {7.0, 8.0}


def test_what_a_request_touches_is_waited_for_and_never_refused(clock: Clock) -> None:
    share = Share()

    async def ask() -> None:
        await share.pay(shares.BURST)
        assert clock.slept == []
        for seconds in range(1, 5):
            await share.pay(shares.RATE)
            assert seconds - 1 < clock.slept[-1] <= seconds
        await share.pay(10 * shares.RATE)
        with pytest.raises(TooMany):
            await share.admit()

    run_async(ask())


def test_whoever_was_known_is_served_while_the_user_database_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REMEMBERED_S", 0.0)
    monkeypatch.setattr(connections, "PATIENT_S", 0.01)
    answers, hangs = threading.Event(), list[str]()

    def group_names(user: str, gid: int) -> Iterator[str]:
        if hangs:
            assert answers.wait(PATIENCE_S)
            yield "carma"

    monkeypatch.setattr(connections, "_group_names", group_names)

    async def main() -> None:
        known = Peers("carma")
        assert (await known.peer(Credentials(1, 1))).groups == ()
        hangs.append("from now on")
        for _ in range(3):
            assert (await known.peer(Credentials(1, 1))).groups == ()
        answers.set()
        while not (await known.peer(Credentials(1, 1))).admin:
            await asyncio.sleep(0.01)

    run_async(main())


def test_a_user_database_that_hangs_leaves_threads_for_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user in a namespace of their own has 65,536 groups: each would be looked up."""
    answers = threading.Event()

    def group_names(user: str, gid: int) -> Iterator[str]:
        assert answers.wait(PATIENCE_S)
        yield "carma"

    monkeypatch.setattr(connections, "_group_names", group_names)

    async def main() -> None:
        peers = Peers("carma")
        asked = [asyncio.ensure_future(peers.peer(Credentials(1, gid))) for gid in range(100)]
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S / 2):
            assert await run_in_threadpool(lambda: 42) == 42
        answers.set()
        assert {peer.gid for peer in await asyncio.gather(*asked)} == set(range(100))

    run_async(main())


def test_groups_are_those_that_the_user_database_has() -> None:
    for entry in pwd.getpwall()[:5]:
        theirs = os.getgrouplist(entry.pw_name, entry.pw_gid)
        assert list(groups_of(entry.pw_name, entry.pw_gid)) == theirs
