"""The thread that sends messages: notices from the store to the owners of jobs, and what
administrators should know.

A notice is committed with what it is about, and deleted once a message with it was taken by an
address, or cannot be: so it is told at least once, and again if carmad dies in between. Every
message is sent by a process of its own, as the user whom it is for (`sender`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
import pwd
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from carmad import beats, units
from carmad.accounts import NoAccount, account
from carmad.attempt.starting import write_all
from carmad.config import Notify
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import label
from carmad.core.happenings import Happening, name_gpus, words
from carmad.core.jobs.attempt import Cause, GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.messages import Step
from carmad.edge import Follower
from carmad.errors import CarmaError
from carmad.notify import addresses
from carmad.notify.letters import Item, Letter, ToldOnce, letter, lines
from carmad.notify.sender import FAILED, LONGEST, SENT
from carmad.store.sql import SqlStore

log = logging.getLogger(__name__)

WITHIN_S = 60.0  # for a sender: then it is killed
GATHER_S = 1.0  # so that what happens at the same time is one message
LATE_S = 5 * units.WITHIN_S  # several senders may be started, each by systemd
LOOK_S = 0.1  # while a sender is at work
MOST_OUTCOME = 3 + 1 + LONGEST * 4  # bytes: a number, and why
AT_ONCE = 4  # senders, of different users
AN_HOUR_S = 3600.0
PER_HOUR = 20  # messages for a user: what comes after that waits, and is one message
FIRST_PAUSE_S = 60.0  # before another try, and twice as long before each after that
TRIES = 6
MOST = 1000  # notices in a message
STUCK_LOOK_S = 60.0
NO_MAIL = "this server sends no mail"
ADVICE = "more: carma gpus; carma doctor"  # to administrators
ADMINS = Owner(-1, "administrators")  # in place of a user
PASSED_ON = (
    *("HOME", "LANG", "PATH", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    *("DISPLAY", "WAYLAND_DISPLAY", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY"),
    *("HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
# Not NoNewPrivileges: a sendmail may have to write to a queue as a user or group of its own.
BOUNDS = {"RuntimeMaxSec": f"{WITHIN_S:.0f}", "MemoryMax": "1G", "TasksMax": "64"}

Order = dict[str, Any]  # as `sender` wants it
Over = Callable[[], object]
Outgoing = tuple[Order, Over]  # and what is called once it was carried out, or never will be


class Post(Follower):
    """`own_units`: systemd runs the senders, outside this daemon's sandbox, which has no network.
    `stuck`: the job that does not start although it could, if any, and that in words. `explain`:
    what its owner is to know of a job besides what happened. `gpus`: those there are."""

    def __init__(
        self,
        store: SqlStore,
        settings: Notify,
        *,
        own_units: bool = False,
        stuck: Callable[[], tuple[JobId, str] | None] = lambda: None,
        explain: Callable[[Job], Iterable[str]] = lambda job: (),
        gpus: Callable[[], Mapping[GpuId, Gpu]] = dict,
    ) -> None:
        self._store = store
        self._settings = settings
        self._in_units = own_units and os.geteuid() == 0
        self._stuck, self._explain, self._gpus = stuck, explain, gpus
        self._where = socket.gethostname()
        self._once = ToldOnce()
        self._for_admins: dict[str, None] = {}  # lines, each once
        self._sent: dict[Owner, deque[float]] = {}  # when, the latest (monotonic)
        self._tasks: dict[Owner, asyncio.Task[None]] = {}  # of those who are being told
        self._senders = asyncio.Semaphore(AT_ONCE)  # who has waited longest is next
        self._count = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._news = asyncio.Event()
        self._closed = asyncio.Event()
        self._thread = beats.thread("post", LATE_S, self._run)

    # -- in the core's thread

    def on_commit(self, step: Step) -> None:
        if any(job.spec.notify or job.current.idle for job in step.jobs):
            self._set(self._news)

    def on_happenings(self, happenings: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        """What happened to the GPUs, and jobs whose users are not there any more."""
        for each in happenings:
            if each.gpu is not None:
                its = gpus[each.gpu].index if each.gpu in gpus else each.gpu
                self._tell_admins(f"GPU {its}: {words(each, {})}")
            elif each.job is not None and each.cause is Cause.NO_ACCOUNT:
                self._tell_admins(f"job {label(each.job)} is held: {each.job.barred}")

    def on_failed_commit(self, error: CarmaError) -> None:
        self._tell_admins(f"carmad cannot record events: {error}")

    def _tell_admins(self, line: str) -> None:
        if self._settings.administrators and len(self._for_admins) < MOST:
            self._for_admins[line] = None
            self._set(self._news)

    def _set(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(event.set)

    # -- in a request's thread

    def send_test(self, whom: Owner) -> str:
        """Send a mail to a user now. Returns why it was not taken; "": it was. Raises CarmaError if
        this server sends none."""
        if not self._settings.mail:
            raise CarmaError(NO_MAIL, 'An administrator sets it: [notify] mail = "sendmail".')
        test = Item("a test: messages about your jobs arrive here", ("by carma doctor --notify",))
        its = account(whom.user, whom.uid)
        who = its.uid, its.gid, its.groups
        _, why = asyncio.run(
            self._send(self._order(letter([test], self._where), who, [whom.user], urls=[]))
        )
        return why

    # -- its own thread

    def start(self) -> None:
        if "/" in self._settings.administrators:
            _addresses(self._settings.administrators)  # a fault is logged now, not with a lost GPU
        self._thread.start()

    def stop(self) -> None:
        """Messages that are being sent are sent again by the next daemon."""
        self._set(self._closed)
        self._thread.join(5.0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left
            runner.run(self._work())

    async def _work(self) -> None:
        duties = [asyncio.create_task(self._look_for_news())]
        if self._settings.administrators:
            duties.append(asyncio.create_task(self._look_at_queue()))
        await self._closed.wait()
        for duty in duties:
            duty.cancel()

    async def _look_for_news(self) -> None:
        while True:  # at once, as an earlier daemon may have left notices
            self._news.clear()
            with _working("messages wait"):
                waiting = [*self._store.to_tell(), *([ADMINS] if self._for_admins else ())]
                for whom in waiting:
                    if whom not in self._tasks:
                        self._tasks[whom] = asyncio.create_task(self._tell(whom))
            await self._news.wait()

    async def _look_at_queue(self) -> None:
        stuck_job, tell_at = None, math.inf
        while True:
            with _working("the queue is not looked at"):
                now, found = time.monotonic(), self._stuck()
                if found is None or found[0] != stuck_job:
                    stuck_job, tell_at = found and found[0], now + self._settings.stuck_s
                if found and now >= tell_at:
                    self._tell_admins(found[1])
                    tell_at = math.inf
            await asyncio.sleep(STUCK_LOOK_S)

    async def _tell(self, whom: Owner) -> None:
        """Send what there is to tell them, until that is taken or given up."""
        try:
            await asyncio.sleep(max(GATHER_S, self._pause_s(whom)))
            for tries in range(1, TRIES + 1):
                over = None
                async with self._senders:
                    with _working(f"cannot tell {whom.user} (uid {whom.uid})"):
                        over = await self._try_to_tell(whom, is_last=tries == TRIES)
                if over is not None:
                    await _finish(over)
                    return
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (tries - 1))
        finally:
            del self._tasks[whom]
            self._news.set()  # there may be more for them by now

    async def _try_to_tell(self, whom: Owner, is_last: bool) -> Over | None:
        """What is to be called now; None: try again later."""
        outgoing = self._to_admins() if whom is ADMINS else self._to_user(whom, is_last)
        if outgoing is None:
            return _nothing
        self._sent.setdefault(whom, deque(maxlen=PER_HOUR)).append(time.monotonic())
        order, over = outgoing
        code, why = await self._send(order)
        if code == FAILED and not is_last:
            return None
        if code != SENT:
            log.warning(
                "%s (uid %d) could not be told%s; `carma doctor --notify` shows why",
                whom.user,
                whom.uid,
                f": {why}" if why else "",
            )
        return over

    def _pause_s(self, whom: Owner) -> float:
        """Until the next message may be sent to them."""
        times = self._sent.get(whom)
        if times is None or len(times) < PER_HOUR:
            return 0.0
        return times[0] + AN_HOUR_S - time.monotonic()

    def _to_user(self, whom: Owner, is_last: bool) -> Outgoing | None:
        """Raises NoAccount if a later try may find it."""
        notices = self._store.notices(whom, MOST)
        jobs = {job.id: job for job in self._store.jobs({notice.job for notice in notices})}
        its = None
        try:
            its = account(whom.user, whom.uid) if jobs else None
        except NoAccount:  # for good, or a directory server is down: nobody can tell
            if not is_last:
                raise
            jobs = {}  # the account is gone: whoever has its name or uid now is not told
        to = next((job.spec.mail_user for job in jobs.values()), None)
        jobs = {id: job for id, job in jobs.items() if job.spec.mail_user == to}  # others follow
        notices = [each for each in notices if each.job in jobs] or notices
        gpus = self._gpus()
        notices = [replace(each, words=name_gpus(each.words, gpus)) for each in notices]
        said = lines(notices, jobs, self._store.tasks, self._once, self._explain)
        over = partial(self._store.forget_notices, tuple(notice.id for notice in notices))
        if not said or its is None:
            over()
            return None
        spec = self._store.whole(jobs[max(jobs)].spec)
        env = {name: value for name, value in spec.env if name in PASSED_ON}
        who = its.uid, its.gid, its.groups
        urls: list[str] | None = [] if to and self._settings.mail else None
        what = letter(said, self._where)
        return self._order(what, who, [to or spec.user], urls=urls, env=env), over

    def _to_admins(self) -> Outgoing:
        """To mail addresses, or those in a file, by nobody: they are not a user's."""
        whom, said = self._settings.administrators, [*self._for_admins]

        def over() -> None:
            for line in said:  # the core's thread may have added others
                del self._for_admins[line]

        its = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        who = its.pw_uid, its.pw_gid, (its.pw_gid,)
        what = letter([*map(Item, said)], self._where, (ADVICE,))
        if "/" in whom:
            return self._order(what, who, [], urls=_addresses(whom)), over
        return self._order(what, who, [each.strip() for each in whom.split(",")], urls=[]), over

    def _order(
        self,
        what: Letter,
        who: tuple[int, int, Sequence[int]],
        mail_to: Sequence[str],
        *,
        urls: Sequence[str] | None,
        env: Mapping[str, str] = {},
    ) -> Order:
        return {
            "title": what.title,
            "body": what.body,
            **dict(zip(("uid", "gid", "groups"), who, strict=True)),
            "env": env,
            "urls": urls,
            "mail_to": mail_to if self._settings.mail else [],
            "domain": self._settings.domain,
        }

    async def _send(self, order: Order) -> tuple[int, str]:
        """The outcome, as of `sender`, and why a mail was not taken."""
        shared = os.memfd_create("carma-message")  # has the order, and then the outcome
        process = None
        try:
            write_all(shared, json.dumps(order).encode())
            argv = [*units.program("carmad.notify.sender"), f"/proc/{os.getpid()}/fd/{shared}"]
            unit = f"carma-message-{os.getpid()}-{next(self._count)}"
            about = "CARMA sends a message"
            process = units.run(unit, about, BOUNDS, argv, in_unit=self._in_units)
            async with asyncio.timeout(WITHIN_S):
                while True:
                    beats.at("messages")
                    has_ended = process is not None and process.poll() is not None
                    said = os.pread(shared, MOST_OUTCOME, 0).decode(errors="replace")
                    code, _, why = said.partition(" ")
                    if code.isdigit():
                        return int(code), why
                    if has_ended:
                        return FAILED, "the process that was to send it has failed"
                    beats.idle()
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return FAILED, f"it was not sent within {WITHIN_S:g} s"
        finally:
            os.close(shared)
            if process is not None:  # a unit ends by itself
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)


async def _finish(over: Over) -> None:
    """Until it is done: because the disk is full, nobody is told the same again and again."""
    while True:
        with _working("what was told cannot be deleted yet"):
            over()
            return
        await asyncio.sleep(FIRST_PAUSE_S)


def _nothing() -> None:
    pass


@contextmanager
def _working(failure: str) -> Iterator[None]:
    """Work of the thread. Whatever fails in it is logged, as others are to be told."""
    beats.at("messages")
    try:
        yield
    except NoAccount:
        pass
    except CarmaError as error:
        log.error("%s: %s", failure, error)
    except Exception:
        log.exception(failure)
    finally:
        beats.idle()


def _addresses(file: str) -> list[str]:
    """Empty if there is something wrong with them."""
    try:
        return addresses.read(file)
    except CarmaError as error:
        log.error("nobody is told by %s: %s; %s", file, error, error.hint)
        return []
