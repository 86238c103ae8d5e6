"""The service that tells people what happened: owners of jobs, administrators, and once a week all
who held GPUs and the readers of the report."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from carmad.api.reporting import report
from carmad.core.scene import Scene
from carmad.daemon.host import DaemonHost
from carmad.edge import Chore
from carmad.notify.letters import Letter, find_stuck
from carmad.notify.post import Post
from carmad.notify.week import letter_of
from carmad.report import as_markdown, last, title
from carmad.store.reading import Reader

MOST_OF_USER = 2000  # jobs of a week, the latest
SENT_AFTER = timedelta(hours=7)  # from the end of the week


def notices(host: DaemonHost) -> Post:
    settings = host.settings().notify
    post = Post(
        host.store,
        settings,
        own_units=host.has_units,
        stuck=lambda: find_stuck(host.scene()),
        explain=host.explain,
        gpus=lambda: host.scene().gpus,
    )

    def add(name: str, tell: Callable[[], None]) -> None:
        host.add_chore(Chore(name, tell, "cron", {"minute": 0}, at_start=True))

    if settings.report:
        sent = host.state_dir / "report.sent"
        add("report", weekly_report(host.store, host.scene, post, sent))
    if settings.mail and settings.week:
        add("mails", weekly_mails(host.store, post, host.state_dir / "weeks.sent"))
    return post


def weekly_mails(
    store: Reader,
    post: Post,
    told: Path,
    clock: Callable[[], datetime] = datetime.now,
) -> Callable[[], None]:
    """A chore for every hour: has each user who held GPUs in the last whole week told of it, unless
    that was done before. The file `told` says which week was the last."""

    def tell() -> None:
        now = clock()
        since, until = last("week", now.date())
        if not _is_due(now, since, until, told):
            return
        told.write_text(f"{since:%F}")  # first: rather none than one every hour
        first, end = since.timestamp(), until.timestamp()
        for user in store.users():
            jobs = store.history(user=user, since=first, until=end, limit=MOST_OF_USER)
            for owner in dict.fromkeys(job.spec.owner for job in jobs):
                own = [job for job in jobs if job.spec.owner == owner]
                week = letter_of(own, since, until, now.timestamp(), socket.gethostname())
                if week:
                    post.send_week(week, own[0])

    return tell


def _is_due(now: datetime, since: datetime, until: datetime, told: Path) -> bool:
    before = told.read_text(errors="replace") if told.exists() else ""
    return now.astimezone() >= until + SENT_AFTER and before != f"{since:%F}"


def weekly_report(
    store: Reader,
    scene: Callable[[], Scene],
    post: Post,
    told: Path,
    clock: Callable[[], datetime] = datetime.now,
) -> Callable[[], None]:
    """A chore for every hour: makes the report of the last whole week, and has it sent, unless it
    was before. The file `told` says which week's was the last."""

    def tell() -> None:
        now = clock()
        since, until = last("week", now.date())
        if not _is_due(now, since, until, told):
            return
        out = report(store, scene(), since.timestamp(), until.timestamp())
        letter = Letter(title(out), as_markdown(out, titled=False))
        post.send_report(letter, partial(told.write_text, f"{since:%F}"))

    return tell
