"""The thread that sends messages: notices from the store to the owners of jobs, and what
administrators should know.

A notice is committed with what it is about, and deleted once a message with it was taken by an
address, or cannot be: so it is told at least once, and again if carmad dies in between. Every
message is sent by a process of its own, as the user whom it is for (`sender`).
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

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
from carmad.notify import addresses, mail
from carmad.notify.letters import Item, Letter, ToldOnce, letter, lines
from carmad.notify.sender import FAILED, SENT, UNUSABLE
from carmad.store.sql import SqlStore

log = logging.getLogger(__name__)

WITHIN_S = 60.0  # for a sender: then it is killed
GATHER_S = 1.0  # so that what happens at the same time is one message
LATE_S = 5 * units.WITHIN_S  # several senders may be started, each by systemd
LOOK_S = 0.1  # while a sender is at work
MOST_OUTCOME = 3 + 1 + mail.LONGEST * 4  # bytes: a number, and why
AT_ONCE = 4  # senders, of different users
AN_HOUR_S = 3600.0
PER_HOUR = 20  # messages for a user: what comes after that waits, and is one message
FIRST_PAUSE_S = 60.0  # before another try, and twice as long before each after that
TRIES = 6
MOST = 1000  # notices in a message
STUCK_LOOK_S = 60.0
NO_MAIL = "this server sends no mail"
SET_MAIL = 'An administrator sets it: [notify] mail = "sendmail" or "smtp://HOST".'
ADVICE = "more: carma gpus; carma doctor"  # to administrators
ADMINS = Owner(-1, "")  # in place of a user
READERS = Owner(-2, "")  # likewise: those who get the week's report
PASSED_ON = (
    *("HOME", "LANG", "PATH", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    *("DISPLAY", "WAYLAND_DISPLAY", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY"),
    *("HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
BOUNDS = {
    "RuntimeMaxSec": f"{WITHIN_S:.0f}",
    "MemoryMax": "1G",
    "TasksMax": "64",
    "NoNewPrivileges": "yes",
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, as `sender` wants it. `over` is called once an address has taken it, or none
    will. `instead`: what is sent if the user has no addresses of their own."""

    request: bytes
    over: Callable[[], object]
    instead: Outgoing | None = None
    bounds: Mapping[str, str] = field(default_factory=lambda: BOUNDS)


class Sender:
    """A process that sends a message. It shares a file in memory with us: there it finds the
    message, and leaves the outcome."""

    _count = itertools.count(1)

    def __init__(self, order: Outgoing, in_unit: bool) -> None:
        self.deadline = time.monotonic() + WITHIN_S
        self.why = ""  # a mail was not taken
        self._shared = os.memfd_create("carma-message")
        write_all(self._shared, order.request)
        argv = [*units.program("carmad.notify.sender"), f"/proc/{os.getpid()}/fd/{self._shared}"]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if in_unit:
                unit = f"carma-message-{os.getpid()}-{next(self._count)}"
                if said := units.start(unit, "CARMA sends a message", order.bounds, argv):
                    raise CarmaError(f"systemd did not start the unit: {said:.300}")
            else:
                self._process = _start(argv)
        except BaseException:
            os.close(self._shared)
            raise

    def outcome(self) -> int | None:
        """As the exit codes of `sender`; None: there is none yet."""
        ended = self._process is not None and self._process.poll() is not None
        said = os.pread(self._shared, MOST_OUTCOME, 0).decode(errors="replace")
        code, _, why = said.partition(" ")
        if code.isdigit():
            self.why = why
            return int(code)
        return FAILED if ended else None

    def close(self) -> None:
        """End it, if it has not ended; its unit ends it by itself."""
        os.close(self._shared)
        if self._process is not None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)


def _start(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={"PATH": os.defpath},
        start_new_session=True,
    )


@dataclass(slots=True)
class Recipient:
    """A user, and what is under way for them. Times are monotonic."""

    waits: bool = False  # to be told something
    due: float = 0.0
    outgoing: Outgoing | None = None  # kept until an address takes it
    tries: int = 0
    sender: Sender | None = None
    sent: deque[float] = field(default_factory=deque)  # in the last hour

    def next_at(self, now: float) -> float:
        """When the next message may be sent."""
        while self.sent and self.sent[0] <= now - AN_HOUR_S:
            self.sent.popleft()
        return self.sent[0] + AN_HOUR_S if len(self.sent) >= PER_HOUR else now + GATHER_S


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
        self._users: dict[Owner, Recipient] = {}
        self._for_admins: dict[str, None] = {}  # lines, each once
        self._report: tuple[Letter, Callable[[], object]] | None = None  # to be sent
        self._weeks: dict[Owner, tuple[Letter, Job]] = {}  # likewise, with a job of the user's
        self._stuck_job: JobId | None = None
        self._tell_stuck_at = 0.0
        self._look_at = 0.0
        self._news = Event()
        self._news.set()  # an earlier daemon may have left notices
        self._closed = False
        self._thread = beats.thread("post", LATE_S, self._tell)

    # -- in the core's thread

    def on_commit(self, step: Step) -> None:
        if any(job.spec.notify or job.current.idle for job in step.jobs):
            self._news.set()

    def on_happenings(self, happenings: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        """What happened to the GPUs, and jobs whose users are not there any more."""
        for each in happenings if self._settings.administrators else ():
            if each.gpu is not None:
                its = gpus[each.gpu].index if each.gpu in gpus else each.gpu
                self._tell_admins(f"GPU {its}: {words(each, {})}")
            elif each.job is not None and each.cause is Cause.NO_ACCOUNT:
                self._tell_admins(f"job {label(each.job)} is held: {each.job.barred}")

    def on_failed_commit(self, error: CarmaError) -> None:
        if self._settings.administrators:
            self._tell_admins(f"carmad cannot record events: {error}")

    def _tell_admins(self, line: str) -> None:
        if len(self._for_admins) < MOST:
            self._for_admins[line] = None
        self._news.set()

    # -- in housekeeping's thread

    def send_report(self, report: Letter, over: Callable[[], object]) -> None:
        """To those whom `notify.report` names. `over`: as of `Outgoing`. Not kept on disk."""
        self._report = Letter(f"[carma {self._where}] {report.title}", report.body), over
        self._news.set()

    def send_week(self, week: Letter, latest: Job) -> None:
        """To the owner of this job, whose environment says where their files are. Not kept on
        disk."""
        self._weeks[latest.spec.owner] = week, latest
        self._news.set()

    # -- in a request's thread

    def send_test(self, user: str) -> str:
        """Send a mail to a user now. Returns why it was not taken; "": it was. Raises CarmaError if
        this server sends none."""
        test = Item("a test: messages about your jobs arrive here", ("by carma doctor --notify",))
        what = letter([test], self._where)
        order = self._by_mail([user], what, lambda: None)
        if order is None:
            raise CarmaError(NO_MAIL, SET_MAIL)
        sender = Sender(order, self._in_units)
        try:
            while (code := sender.outcome()) is None:
                if time.monotonic() > sender.deadline:
                    return f"it was not sent within {WITHIN_S:g} s"
                time.sleep(LOOK_S)
            return (
                "" if code == SENT else sender.why or "the process that was to send it has failed"
            )
        finally:
            sender.close()

    # -- its own thread

    def start(self) -> None:
        its = self._settings
        for file in (its.administrators, its.report, its.mail):
            if "/" in file and "://" not in file:
                _addresses(file)  # a fault in it is logged now, not when a GPU is lost
        self._thread.start()

    def stop(self) -> None:
        """Messages that are being sent are sent again by the next daemon."""
        self._closed = True
        self._news.set()
        self._thread.join(5.0)

    def _tell(self) -> None:
        while not self._closed:
            beats.idle()
            self._news.wait(self._pause_s())
            self._news.clear()
            beats.at("messages")
            try:
                self._go_on()
            except CarmaError as error:
                log.error("messages wait: %s", error)
                time.sleep(GATHER_S)
            except Exception:
                log.exception("messages wait")
                time.sleep(GATHER_S)
        for each in self._users.values():
            if each.sender:
                each.sender.close()

    def _pause_s(self) -> float | None:
        if any(each.sender for each in self._users.values()):
            return LOOK_S
        times = [each.due for each in self._users.values() if each.waits]
        times += [self._look_at] if self._settings.administrators else []
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _go_on(self) -> None:
        now = time.monotonic()
        for whom, each in self._users.items():
            if each.sender:
                self._look(whom, each, each.sender, now)
        if self._settings.administrators and now >= self._look_at:
            self._look_at = now + STUCK_LOOK_S
            self._look_at_queue()
        for whom in self._waiting():
            each = self._users.setdefault(whom, Recipient())
            if not each.waits:
                each.waits, each.due = True, each.next_at(now)
        for whom, each in list(self._users.items()):
            busy = sum(1 for one in self._users.values() if one.sender)
            if each.waits and not each.sender and each.due <= now and busy < AT_ONCE:
                try:
                    self._send(whom, each, now)
                except NoAccount:  # for good, or a directory server is down: nobody can tell
                    self._over(whom, each, FAILED, now)
                except Exception:  # whatever it is, others are to be told
                    log.exception("cannot tell %s (uid %d)", whom.user, whom.uid)
                    self._over(whom, each, FAILED, now)
            elif not each.waits and each.next_at(now) and not each.sent:
                del self._users[whom]

    def _waiting(self) -> list[Owner]:
        others = {ADMINS: self._for_admins, READERS: self._report}
        users = dict.fromkeys((*self._store.to_tell(), *tuple(self._weeks)))
        return [*users, *(who for who, what in others.items() if what)]

    def _look_at_queue(self) -> None:
        now, found = time.monotonic(), self._stuck()
        if found is None or found[0] != self._stuck_job:
            self._stuck_job, self._tell_stuck_at = found and found[0], now + self._settings.stuck_s
        elif now >= self._tell_stuck_at:
            self._for_admins[found[1]] = None
            self._tell_stuck_at = math.inf

    def _send(self, whom: Owner, each: Recipient, now: float) -> None:
        if each.outgoing is None:
            known = {ADMINS: self._to_admins, READERS: self._to_readers}
            users = known.get(whom) or (lambda: self._to_user(whom, each) or self._to_week(whom))
            each.outgoing = users()
        if each.outgoing is None:
            each.tries, each.waits = 0, False
            return
        each.sent.append(now)
        each.sender = Sender(each.outgoing, self._in_units)

    def _to_user(self, whom: Owner, each: Recipient) -> Outgoing | None:
        """Raises NoAccount if a later try may find it."""
        notices = self._store.notices(whom, MOST)
        jobs = {job.id: job for job in self._store.jobs({notice.job for notice in notices})}
        its = None
        try:
            its = account(whom.user, whom.uid) if jobs else None
        except NoAccount:
            if each.tries + 1 < TRIES:
                raise
            jobs = {}  # the account is gone: whoever has its name or uid now is not told
        to = next((job.spec.mail_user for job in jobs.values()), None)
        jobs = {id: job for id, job in jobs.items() if job.spec.mail_user == to}  # others follow
        notices = [each for each in notices if each.job in jobs] or notices
        gpus = self._gpus()
        notices = [replace(each, words=name_gpus(each.words, gpus)) for each in notices]
        said = lines(notices, jobs, self._store.tasks, self._once, self._explain)
        ids = tuple(notice.id for notice in notices)
        if not said or its is None:
            self._store.forget_notices(ids)
            return None
        spec = self._store.whole(jobs[max(jobs)].spec)
        what, over = letter(said, self._where), partial(self._store.forget_notices, ids)
        by_mail = self._by_mail([to or spec.user], what, over)
        if to and by_mail:
            return by_mail
        identity = spec.uid, its.gid, list(its.groups)
        return _outgoing(what, over, identity, dict(spec.env), instead=by_mail)

    def _to_week(self, whom: Owner) -> Outgoing | None:
        if whom not in self._weeks:
            return None
        what, latest = self._weeks.pop(whom)
        try:
            its = account(whom.user, whom.uid)
            env = dict(self._store.whole(latest.spec).env)
        except CarmaError:  # the user is gone; or the job is, which takes a moment of bad luck
            return None
        by_mail = self._by_mail([whom.user], what, lambda: None)
        identity = whom.uid, its.gid, list(its.groups)
        return _outgoing(what, lambda: None, identity, env, instead=by_mail, week=True)

    def _by_mail(
        self, to: Sequence[str], what: Letter, over: Callable[[], object]
    ) -> Outgoing | None:
        """None: this server sends no mail. A sendmail may have to write to a queue as a user or
        group of its own, which `NoNewPrivileges` forbids."""
        way = self._settings.mail
        if way.startswith("/"):
            way = next(iter(_addresses(way)), "")
        if not way:
            return None
        its = {"way": way, "to": list(to), "domain": self._settings.domain}
        free = {name: its for name, its in BOUNDS.items() if name != "NoNewPrivileges"}
        bounds = free if way == mail.SENDMAIL else BOUNDS
        return _outgoing(what, over, _nobody(), {}, by_mail=its, bounds=bounds)

    def _to_admins(self) -> Outgoing | None:
        said = list(self._for_admins)
        for line in said:  # the core's thread may be adding some
            del self._for_admins[line]
        what = letter([*map(Item, said)], self._where, (ADVICE,))
        return self._to(self._settings.administrators, what, lambda: None)

    def _to_readers(self) -> Outgoing | None:
        report, self._report = self._report, None
        return self._to(self._settings.report, *report) if report else None

    def _to(self, whom: str, what: Letter, over: Callable[[], object]) -> Outgoing | None:
        """To mail addresses, or those in a file, by nobody: they are not a user's."""
        if "@" in whom and "/" not in whom:
            return self._by_mail([each.strip() for each in whom.split(",")], what, over)
        urls = _addresses(whom)
        return _outgoing(what, over, _nobody(), {}, urls) if urls else None

    def _look(self, whom: Owner, each: Recipient, sender: Sender, now: float) -> None:
        code = sender.outcome()
        if code is None and now < sender.deadline:
            return
        sender.close()
        each.sender = None
        self._over(whom, each, code, now, sender.why)

    def _over(
        self, whom: Owner, each: Recipient, code: int | None, now: float, why: str = ""
    ) -> None:
        """What follows from an outcome; None: it took too long."""
        outgoing = each.outgoing
        if code == UNUSABLE and outgoing and outgoing.instead:
            each.outgoing = outgoing.instead
            return
        if code not in (SENT, UNUSABLE) and each.tries + 1 < TRIES:
            each.due = now + FIRST_PAUSE_S * 2**each.tries
            each.tries += 1
            return
        if code != SENT:
            log.warning(
                "%s (uid %d) could not be told%s; `carma doctor --notify` shows why",
                whom.user,
                whom.uid,
                f": {why}" if why else "",
            )
        each.outgoing, each.tries, each.waits = None, 0, False
        if outgoing:
            outgoing.over()


def _nobody() -> tuple[int, int, list[int]]:
    its = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    return its.pw_uid, its.pw_gid, [its.pw_gid]


def _addresses(file: str) -> list[str]:
    """None if there is something wrong with them."""
    try:
        return addresses.read(file)
    except CarmaError as error:
        log.error("nobody is told by %s: %s; %s", file, error, error.hint)
        return []


def _outgoing(
    what: Letter,
    over: Callable[[], object],
    identity: tuple[int, int, list[int]],
    env: dict[str, str],
    urls: list[str] | None = None,
    *,
    instead: Outgoing | None = None,
    by_mail: Mapping[str, object] | None = None,
    bounds: Mapping[str, str] = BOUNDS,
    week: bool = False,
) -> Outgoing:
    uid, gid, groups = identity
    order = {
        "uid": uid,
        "gid": gid,
        "groups": groups,
        "title": what.title,
        "body": what.body,
        "env": {name: env[name] for name in PASSED_ON if name in env},
        "urls": urls,
        "mail": by_mail,
        "week": week,
    }
    return Outgoing(json.dumps(order).encode(), over, instead, bounds)
