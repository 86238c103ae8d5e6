"""A busy server with a journal, for tests of writing and reading it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from carmad.config import Limits, Monitor, Settings
from carmad.core.messages import Event, Step
from carmad.store.journal import Journal
from policies import builtin
from recovery import ladder
from tests.busy import Busy

PLENTY = 1 << 30


class Recorded(Busy):
    """A server whose every step is in a journal."""

    def __init__(
        self, directory: Path, cap_bytes: int = PLENTY, policy: str = "magm", **changes: Any
    ) -> None:
        settings = Settings(
            policy=policy,
            monitor=Monitor(window_s=5, stale_s=3),
            limits=Limits(backfill=2),
        )
        settings = replace(settings, **changes)
        make = getattr(builtin, policy)
        self._where = directory, cap_bytes
        self.decided: list[int] = []  # for each step, how many decisions it recorded
        super().__init__(3, settings, make(settings), ladder.exclusive(settings))

    def tell(self, *events: Event) -> Step:
        if not self.steps:
            self._keep_journal()
        step: Step = super().tell(*events)
        return step

    def _keep_journal(self) -> None:
        directory, cap_bytes = self._where
        self.journal = Journal(directory, self.scheduler, cap_bytes)
        self.journal.on_reset(())
        handle = self.scheduler.handle

        def recorded(*events: Event) -> Step:
            self.journal.hear(events)
            step = handle(*events)
            self.journal.on_commit(step)
            self.decided.append(len(step.decisions))
            return step

        self.scheduler.handle = recorded  # type: ignore[method-assign]
