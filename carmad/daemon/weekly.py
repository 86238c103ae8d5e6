"""The report of the last week, for those whom `notify.report` names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from carmad.api.reporting import report
from carmad.core.scene import Scene
from carmad.notify.letters import Letter
from carmad.notify.post import Post
from carmad.report import as_markdown, last, title
from carmad.store.reading import Reader

SENT_AFTER = timedelta(hours=7)  # from the end of the week


def weekly(
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
        week = f"{since:%F}"
        before = told.read_text(errors="replace") if told.exists() else ""
        if now.astimezone() < until + SENT_AFTER or before == week:
            return
        out = report(store, scene(), since.timestamp(), until.timestamp())
        letter = Letter(title(out), as_markdown(out))
        post.send_report(letter, partial(told.write_text, week))

    return tell
