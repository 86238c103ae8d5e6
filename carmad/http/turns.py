"""Limits each user's share of the daemon, so that users do not keep each other waiting.

A few of a user's requests are in progress at a time, and one large one is read; the others wait
their turn. A user who sends too many is first delayed, then refused. None of this applies to the
daemon's own user, who could stop it anyway; but the event loop serves all users in turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)

from carmad.http.problems import TooMany

AT_ONCE = 2  # requests per user in progress
PRESENT = 256  # requests per user waiting or in progress
LARGE = 32 << 10  # bytes; smaller requests, which nearly all are, are read at once
LARGE_AT_ONCE = 4  # for all users together
LIGHT = 20.0  # requests beyond RATE; users who have lately sent more wait for one another
YIELD_S = 0.1  # and for anybody's request in progress, at most so long
RATE = 20.0  # requests per second in the long run; each LARGE bytes of a body count as one more
BURST = 500.0
JOBS_RATE = 1000.0  # jobs per second in the long run, that a user's requests touch
JOBS_BURST = 10_000.0
ROWS = 16  # of a listing count as one job
PATIENCE_S = 5.0  # the longest delay of a request that came too soon
REFUSED_AFTER_S = 5.0  # an immediate refusal would invite an immediate retry


class RoundRobin:
    """Serves users in turn: one thing of one user's in each pass of the event loop, which looks in
    between at what else has arrived. So a burst of one user's delays others by no more than one."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    async def turn(self, user: int) -> None:
        loop = asyncio.get_running_loop()
        come = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._serve)
        self._waiting.setdefault(user, deque()).append(come)
        await come

    def _serve(self) -> None:
        served = False
        while self._waiting and not served:
            user, waiting = self._waiting.popitem(last=False)
            come = waiting.popleft()
            if not come.done():  # it was not cancelled
                come.set_result(None)
                served = True
            if waiting:
                self._waiting[user] = waiting
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)


class Priority:
    """Requests of users who have lately sent many pass one by one, and let the others' go first.
    A slow request, which may have to wait for something, keeps nobody waiting for more than
    `YIELD_S`."""

    def __init__(self) -> None:
        self._light = 0  # requests of others in progress
        self._none_light = asyncio.Event()
        self._none_light.set()
        self._heavy = asyncio.Lock()

    @asynccontextmanager
    async def light(self) -> AsyncIterator[None]:
        self._light += 1
        self._none_light.clear()
        try:
            yield
        finally:
            self._light -= 1
            if not self._light:
                self._none_light.set()

    @asynccontextmanager
    async def heavy(self) -> AsyncIterator[None]:
        await self._heavy.acquire()
        passes = asyncio.get_running_loop().call_later(YIELD_S, self._heavy.release)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(YIELD_S):
                    await self._none_light.wait()
            yield
        finally:
            if passes.when() > asyncio.get_running_loop().time():  # else it is as good as done
                passes.cancel()
                self._heavy.release()


class Turn:
    """A request in progress. `turns` is None for a user without limits."""

    def __init__(self, share: Share, turns: asyncio.Semaphore | None = None) -> None:
        self._share = share
        self._turns = turns
        self._first = AsyncExitStack()

    @property
    def payer(self) -> int:
        """The user whose share it takes, who may have asked as a uid of their containers'."""
        return self._share.user

    async def afford(self, jobs: float) -> None:
        await self._share.afford(jobs)

    async def come(self) -> None:
        """Wait for the user's next turn in the event loop."""
        await self._share.come()

    async def __aenter__(self) -> None:
        if self._turns:
            await self._turns.acquire()
        try:
            await self._first.enter_async_context(self._share.priority())
            await self.come()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *error: object) -> None:
        await self._first.aclose()
        if self._turns:
            self._turns.release()

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        """Let another of the user's requests proceed while this one only waits."""
        await self.__aexit__()
        try:
            yield
        finally:
            await self.__aenter__()


class Share:
    """One user's share."""

    def __init__(
        self,
        user: int = -1,
        free: bool = False,
        rounds: RoundRobin | None = None,
        priority: Priority | None = None,
    ) -> None:
        self.user = user
        self._free = free
        self._rounds = rounds or RoundRobin()
        self._priority = priority or Priority()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._large = asyncio.Lock()
        self._present = 0
        self._paid_until = -math.inf  # on the loop's clock
        self._worked_until = -math.inf  # likewise

    def turn(self) -> Turn:
        return Turn(self, None if self._free else self._turns)

    async def come(self) -> None:
        await self._rounds.turn(self.user)

    def priority(self) -> AbstractAsyncContextManager[None]:
        """For the time that a request of the user's is in progress."""
        most = asyncio.get_running_loop().time() - (BURST - LIGHT) / RATE
        many = self._paid_until > most and not self._free
        return self._priority.heavy() if many else self._priority.light()

    @contextmanager
    def presence(self) -> Iterator[None]:
        """Raises TooMany."""
        if self._present >= PRESENT and not self._free:
            raise TooMany("you are sending too many requests at once", REFUSED_AFTER_S)
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1

    async def pace(self, size: int) -> None:
        """Raises TooMany."""
        now, seconds = asyncio.get_running_loop().time(), (1 + size // LARGE) / RATE
        paid_until = max(self._paid_until, now - BURST / RATE) + seconds
        if self._free:
            return
        if paid_until - now > PATIENCE_S:
            await asyncio.sleep(REFUSED_AFTER_S)
            raise TooMany("you are sending too many requests", paid_until - now)
        self._paid_until = paid_until
        if paid_until > now:
            await asyncio.sleep(paid_until - now)

    async def afford(self, jobs: float) -> None:
        """Wait until so many jobs more may be touched. Nothing is refused: what is large only takes
        longer, and small requests need not wait for it."""
        now = asyncio.get_running_loop().time()
        since = max(self._worked_until, now - JOBS_BURST / JOBS_RATE)
        self._worked_until = since + jobs / JOBS_RATE
        if self._worked_until > now and not self._free:
            await asyncio.sleep(self._worked_until - now)

    @asynccontextmanager
    async def large(self, of_all: asyncio.Semaphore) -> AsyncIterator[None]:
        async with self._large, of_all:
            yield


class Shares:
    """Shares by user. `free`: users without limits."""

    def __init__(self, *free: int) -> None:
        self.rounds = RoundRobin()
        self._priority = Priority()
        self._known = {user: Share(user, True, self.rounds, self._priority) for user in free}
        self.large = asyncio.Semaphore(LARGE_AT_ONCE)

    def of(self, uid: int) -> Share:
        known = self._known.get(uid)
        if known is None:
            known = self._known[uid] = Share(uid, False, self.rounds, self._priority)
        return known
