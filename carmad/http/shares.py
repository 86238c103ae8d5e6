"""Each user's share of the daemon: how many requests run at once, and how many per second.

A user who sends too many is first delayed, then refused. None of this applies to the daemon's own
user, who could stop it anyway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from carmad.http.problems import TooMany

AT_ONCE, ANY = 2, 1 << 30  # requests of a user that run; of one without limits
RATE = 20.0  # requests per second in the long run
BURST = 500.0  # requests
LARGE = 32 << 10  # bytes of a body that cost as much as one more request
JOBS = 50  # so many that a request touches cost as much as one more, too
ANSWERED = 1 << 20  # likewise, bytes of a listing
PATIENCE_S = 5.0  # the longest delay of a request that came too soon
REFUSED_AFTER_S = 5.0  # an immediate refusal would invite an immediate retry


class Share:
    """One user's: a token bucket and a semaphore."""

    def __init__(self, user: int = -1, free: bool = False) -> None:
        self.user = user
        self._free = free
        self.running = asyncio.Semaphore(ANY if free else AT_ONCE)
        self._paid_until = -math.inf  # on the loop's clock

    async def admit(self, tokens: float = 1) -> None:
        """Take the tokens of a request. Raises TooMany if it would wait for them too long."""
        wait_s = self._debt_s(tokens / RATE)
        if wait_s > PATIENCE_S:
            await asyncio.sleep(REFUSED_AFTER_S)
            raise TooMany("you are sending too many requests", wait_s)
        await self.pay(tokens)

    async def pay(self, tokens: float) -> None:
        """Wait until the bucket has so many. It refuses nothing: no request is left half done."""
        wait_s = self._debt_s(tokens / RATE)
        self._paid_until = asyncio.get_running_loop().time() + wait_s
        if wait_s > 0 and not self._free:
            await asyncio.sleep(wait_s)

    def _debt_s(self, more_s: float) -> float:
        """How long it takes to earn what was spent and `more_s`; below 0: there is a rest."""
        if self._free:
            return 0.0
        now = asyncio.get_running_loop().time()
        return max(self._paid_until - now, -BURST / RATE) + more_s

    def turn(self) -> Turn:
        return Turn(self)


class Turn:
    """A request's place among its user's that run."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._held = False

    async def __aenter__(self) -> None:
        await self.share.running.acquire()
        self._held = True

    async def __aexit__(self, *error: object) -> None:
        if self._held:
            self.share.running.release()
            self._held = False

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[None]:
        """Let another of the user's requests run while this one only waits."""
        await self.__aexit__()
        try:
            yield
        finally:
            await self.__aenter__()


class Shares:
    """Shares by user. `free`: users without limits."""

    def __init__(self, *free: int) -> None:
        self._known = {user: Share(user, True) for user in free}

    def of(self, uid: int) -> Share:
        return self._known.setdefault(uid, Share(uid))
