"""Each user's share: turns, pace and limits; users do not wait for each other."""

from __future__ import annotations

import asyncio
import gc
import os
import pwd
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from carmad.accounts import groups_of
from carmad.core.jobs.attempt import JobId
from carmad.core.messages import Noticed
from carmad.engine.inbox import QUANTUM, Backlog, Delivery
from carmad.http import connections, turns
from carmad.http.bounds import Bounded
from carmad.http.connections import FEW, PER_USER, Connections, Credentials, Owners, Peer, Peers
from carmad.http.problems import TooMany, extra_headers
from carmad.http.turns import RoundRobin, Share, Shares
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


def of_a_burst(share: Share, count: int, size: int = 0) -> int:
    """How many of a burst are admitted."""

    async def ask() -> int:
        let_in = 0
        for _ in range(count):
            try:
                await share.pace(size)
                let_in += 1
            except TooMany as refused:
                assert int(extra_headers(refused)["retry-after"]) >= turns.PATIENCE_S
        return let_in

    return run_async(ask())


def test_a_loop_of_hundreds_is_let_in_at_once(clock: Clock) -> None:
    assert of_a_burst(Share(), 400) == 400
    assert clock.slept == []


def test_who_asks_too_often_waits_and_is_then_refused(clock: Clock) -> None:
    let_in = of_a_burst(Share(), 2000)
    most = turns.BURST + turns.PATIENCE_S * turns.RATE
    assert turns.BURST <= let_in <= most + 100  # what comes back while they ask
    assert all(0 < seconds <= turns.PATIENCE_S for seconds in clock.slept)
    assert clock.slept.count(turns.REFUSED_AFTER_S) >= 2000 - let_in


def test_large_bodies_count_for_many(clock: Clock) -> None:
    assert of_a_burst(Share(), 100, 8 << 20) <= 5


def test_the_daemons_own_user_is_not_held_back(clock: Clock) -> None:
    shares = Shares(ROOT)
    assert of_a_burst(shares.of(ROOT), 5000, 8 << 20) == 5000
    assert shares.of(1000) is shares.of(1000) is not shares.of(1001)

    async def many() -> None:
        held = [shares.of(ROOT).turn() for _ in range(50)]
        for each in held:
            await each.__aenter__()

    run_async(many())


def test_a_users_requests_take_turns_and_others_do_not_wait() -> None:
    shares = Shares(ROOT)
    order: list[str] = []

    async def work(uid: int, name: str, until: asyncio.Event) -> None:
        async with shares.of(uid).turn():
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


async def heavy(share: Share) -> Share:
    for _ in range(int(turns.LIGHT) + 2):
        await share.pace(0)
    return share


@pytest.mark.parametrize("yields_s", [PATIENCE_S, 0.0])
def test_who_has_sent_many_requests_lets_others_go_first(
    monkeypatch: pytest.MonkeyPatch, yields_s: float
) -> None:
    """One by one; but nobody waits for ever for a request that does."""
    monkeypatch.setattr(turns, "YIELD_S", yields_s)
    shares, inside = Shares(ROOT), list[int]()

    async def work(share: Share, over: asyncio.Event) -> None:
        async with share.turn():
            inside.append(share.user)
            await over.wait()
            inside.remove(share.user)

    async def play() -> None:
        many = [await heavy(shares.of(uid)) for uid in (1, 2)]
        overs = [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.ensure_future(work(shares.of(3), overs[3]))]
        await passes(10)
        tasks += [asyncio.ensure_future(work(share, overs[share.user])) for share in many]
        if yields_s == 0:
            while len(inside) < 3:
                await asyncio.sleep(0.001)
        else:
            await passes(50)
            assert inside == [3]
            overs[3].set()
            await passes(50)
            assert inside == [1]
            overs[3].clear()
            tasks += [asyncio.ensure_future(work(shares.of(uid), overs[3])) for uid in (ROOT, 4)]
            await passes(50)
            assert inside == [1, ROOT, 4]
            overs[1].set()
            await passes(50)
            assert inside == [ROOT, 4]
            overs[3].set()
            await passes(50)
            assert inside == [2]
        for over in overs:
            over.set()
        await asyncio.gather(*tasks)
        assert not shares.of(1)._priority._heavy.locked()

    run_async(play())


def test_the_event_loop_does_one_thing_of_one_user_in_a_pass() -> None:
    """However many of two users' things wait, a third one's need not."""
    rounds, order = RoundRobin(), list[str]()

    async def thing(user: int, name: str) -> None:
        await rounds.turn(user)
        order.append(name)

    async def play() -> None:
        tasks = [asyncio.ensure_future(thing(1, f"a{n}")) for n in range(50)]
        tasks += [asyncio.ensure_future(thing(2, f"b{n}")) for n in range(50)]
        tasks[1].cancel()
        while not order:
            await passes(1)
        tasks.append(asyncio.ensure_future(thing(3, "c0")))
        for done in range(1, 8):
            assert len(order) == done
            await passes(1)
        assert "c0" in order[:6], order
        await asyncio.gather(*tasks, return_exceptions=True)

    run_async(play())
    assert len(order) == 100
    mine = [name for name in order if name.startswith("b")]
    assert mine == sorted(mine, key=lambda name: int(name[1:]))


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
        assert share._turns._value == turns.AT_ONCE  # as many as there were

    run_async(play())


def test_one_large_body_of_a_user_is_read_at_a_time_and_few_of_all() -> None:
    shares, reading = Shares(ROOT), []

    async def read(uid: int) -> None:
        async with shares.of(uid).large(shares.large):
            reading.append(uid)
            await asyncio.Event().wait()

    async def play() -> None:
        tasks: list[asyncio.Future[None]] = []
        for uid in range(1, 9):
            tasks += [asyncio.ensure_future(read(uid)) for _ in range(5)]
        await passes(5)
        assert len(reading) == len(set(reading)) == turns.LARGE_AT_ONCE
        for task in tasks:
            task.cancel()

    run_async(play())


def test_only_so_many_of_a_user_are_there() -> None:
    share = Share()
    with ExitStack() as there:
        for _ in range(turns.PRESENT):
            there.enter_context(share.presence())
        with pytest.raises(TooMany), share.presence():
            pass
    with share.presence():
        pass


class Known(Peers):
    """Peers that all have names."""

    def __init__(self) -> None:
        super().__init__("nobody")

    async def peer(self, credentials: Credentials) -> Peer:
        return Peer(credentials.uid, credentials.gid, f"user{credentials.uid}", admin=False)


def test_refusals_leave_no_garbage() -> None:
    """A collection of it would stop everybody."""
    refused = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was to be refused")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 2 * turns.LARGE, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal refused
        refused += message.get("status") == 413

    async def main() -> int:
        bounded = Bounded(app, Known(), Owners(Path("/nonexistent")), Shares(ROOT))

        async def ask() -> None:
            state = {"credentials": Credentials(ROOT, ROOT)}
            scope = {"type": "http", "path": "/v1/cancel", "headers": [], "state": state}
            await bounded(scope, receive, send)

        await ask()
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                await ask()
            return gc.collect()
        finally:
            gc.enable()

    assert run_async(main()) < 100
    assert refused == 101


def test_who_waits_without_a_large_body_keeps_nobody_s_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that does not say how long it is may be as long as any: until it has been read."""
    monkeypatch.setattr(turns, "YIELD_S", 0.0)
    in_the_app: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        in_the_app.append(scope["state"]["credentials"].uid)
        await asyncio.Event().wait()

    async def main() -> None:
        bounded = Bounded(app, Known(), Owners(Path("/nonexistent")), Shares())

        async def ask(uid: int, path: str, body: bytes) -> None:
            async def receive() -> Any:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message: Any) -> None:
                pass

            scope = {
                "type": "http",
                "path": path,
                "headers": [(b"transfer-encoding", b"chunked")],
                "state": {"credentials": Credentials(uid, uid)},
            }
            await bounded(scope, receive, send)

        hostile = range(100, 100 + turns.LARGE_AT_ONCE)
        tasks = [asyncio.ensure_future(ask(uid, "/v1/jobs/1/wait", b"")) for uid in hostile]
        tasks += [asyncio.ensure_future(ask(7, "/v1/jobs", b" " * 2 * turns.LARGE))]
        await passes(50)
        for task in tasks:
            task.cancel()
        assert in_the_app == [*hostile, 7]

    run_async(main())


def opened(counted: Connections, user: int, wanted: int) -> int:
    """How many of so many more connections a user gets."""
    got = 0
    for _ in range(wanted):
        if counted.is_room(user):
            counted.add(user)
            got += 1
    return got


def test_who_has_many_connections_is_refused_before_who_has_few() -> None:
    counted = Connections({ROOT}, room=1024)
    assert [opened(counted, user, 1000) for user in (1, 2)] == [PER_USER] * 2
    assert opened(counted, 3, 1000) > opened(counted, 4, 1000) > FEW
    assert all(opened(counted, user, FEW) == FEW for user in range(5, 20))
    assert opened(counted, ROOT, 1000) == 1000
    for _ in range(PER_USER):
        counted.remove(1)
    assert opened(counted, 20, 1000) > FEW


def test_a_uid_of_a_container_is_its_user_s(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    owners = Owners(file)  # there is none yet
    assert owners.of(100_000) == 100_000
    file.write_text("nobody:100000:10\n65533:100010:5\nno-such-user:5:5\nnonsense\n")
    owners.read()
    uids = 99_999, 100_000, 100_009, 100_010, 100_014, 100_015, 7
    assert [owners.of(uid) for uid in uids] == [99_999, 65534, 65534, 65533, 65533, 100_015, 7]


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
    assert users_of(backlog.take(2.0)) == [None, 2]
    backlog.put(delivery(3))
    assert users_of(backlog.take(3.0)) == [3, 1]  # who has much has a turn, too
    assert users_of(backlog.take(4.0)) == [1]


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


def test_large_requests_take_longer_and_small_ones_do_not_wait(clock: Clock) -> None:
    share = Share()

    async def ask() -> None:
        await share.afford(turns.JOBS_BURST)
        assert clock.slept == []
        await share.afford(turns.JOBS_RATE)
        (slept,) = clock.slept
        assert 0 < slept <= 1
        await share.pace(0)
        assert len(clock.slept) == 1

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


def test_groups_are_those_that_the_user_database_has() -> None:
    for entry in pwd.getpwall()[:5]:
        theirs = os.getgrouplist(entry.pw_name, entry.pw_gid)
        assert list(groups_of(entry.pw_name, entry.pw_gid)) == theirs
