"""One attempt of a job while it holds GPUs: its progress at the pace that its GPUs allow."""

from __future__ import annotations

from carmad.core.types import Job, JobId
from carmad.sim.card import Card
from carmad.sim.task import Load


class Execution:
    """Work is measured in seconds of training alone on the kind of GPU the task was measured on.

    `full` has, for each of `cards`, the work done there per second when alone.
    """

    __slots__ = (
        "_since",
        "attempt",
        "cards",
        "ending",
        "full",
        "job",
        "left",
        "limit_mib",
        "load",
        "mode",
        "rate",
        "shares_j",
        "version",
    )

    def __init__(
        self, job: Job, load: Load, cards: tuple[Card, ...], full: tuple[float, ...], left: float
    ) -> None:
        assert job.mode is not None
        self.job: JobId = job.id
        self.attempt = job.attempt
        self.mode = job.mode
        self.load = load
        self.limit_mib = job.limit_mib
        self.cards = cards
        self.full = full
        self.left = left  # work, as of `_since`
        self.rate = 0.0  # work per second; 0 until its first kernel
        self.ending = False  # being stopped, or crashing: further work is lost
        self.version = 0  # scheduled calls for an older version are void
        self.shares_j = tuple(card.share_j for card in cards)
        self._since = 0.0

    @property
    def energy_j(self) -> float:
        """Its share so far of its GPUs' energy, split evenly among the jobs that hold them."""
        pairs = zip(self.cards, self.shares_j, strict=True)
        return sum(card.share_j - before for card, before in pairs)

    def progress(self, now: float) -> None:
        """Subtract the work done since the last change of pace."""
        if self.rate and not self.ending:
            self.left = max(0.0, self.left - (now - self._since) * self.rate)
        self._since = now

    def pace(self, now: float) -> bool:
        """Adopt the pace of the slowest of its GPUs. False if that is no change."""
        job, cards, full = self.job, self.cards, self.full
        if len(cards) == 1:
            rate = cards[0].speeds[job] * full[0]
        else:
            pairs = zip(cards, full, strict=True)
            rate = min(card.speeds[job] * alone for card, alone in pairs)
        if rate == self.rate:
            return False
        self.progress(now)
        self.rate = rate
        for card, alone in zip(cards, full, strict=True):
            card.paces[job] = rate / alone
        return True
