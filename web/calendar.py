"""Reservations as a picture: a row for each GPU, a column for each of the next fourteen days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carmad.api.reservations import ReservationOut

DAYS = 14
LABEL, DAY, HEAD, ROW = 58, 72, 40, 30  # widths and heights, in pixels


@dataclass(frozen=True, slots=True)
class Bar:
    """A time of a reservation on a GPU."""

    x: float
    y: int
    width: float
    text: str
    meaning: str
    kind: str  # maintenance, active or ""


class Calendar:
    """In the server's local time, by whose clock weekly ones repeat. `gpus`: names by id."""

    def __init__(
        self,
        gpus: Mapping[str, str],
        reservations: Sequence[ReservationOut],
        now: datetime | None = None,
    ) -> None:
        self._now = now or datetime.now()
        self._begin = self._now.replace(hour=0, minute=0, second=0, microsecond=0)
        self._rows = {gpu: n for n, gpu in enumerate(gpus)}
        self.rows = [(name, HEAD + n * ROW) for n, name in enumerate(gpus.values())]
        self.width, self.height = LABEL + DAYS * DAY, HEAD + len(gpus) * ROW
        self.bars = [bar for each in reservations for bar in self._bars(each)]

    @property
    def now_x(self) -> float:
        return self._x(self._now)

    @property
    def days(self) -> list[tuple[int, str, str, bool]]:
        """Where each begins, its name and date, and whether it is of a weekend."""
        dates = [self._begin + timedelta(days=n) for n in range(DAYS)]
        return [
            (LABEL + n * DAY, f"{day:%a}", f"{day.day} {day:%b}", day.weekday() > 4)
            for n, day in enumerate(dates)
        ]

    def _x(self, at: datetime) -> float:
        days = (at - self._begin) / timedelta(days=1)
        return round(LABEL + DAY * min(max(days, 0), DAYS), 1)

    def _bars(self, each: ReservationOut) -> Iterator[Bar]:
        starts, ends = _local(each["starts_at"]), _local(each["ends_at"])
        for n in range(min(each["times_left"], DAYS // 7 + 1)):
            later = timedelta(weeks=n)
            left, right = self._x(starts + later), self._x(ends + later)
            if right <= left:
                continue
            whose = ", ".join(each["users"])
            for gpu in each["gpus"]:
                if gpu in self._rows:
                    yield Bar(
                        left,
                        HEAD + self._rows[gpu] * ROW,
                        max(right - left, 3),
                        whose or "maintenance",
                        f"{each['id']}: {each['text']}",
                        "active" if each["active"] and not n else "" if whose else "maintenance",
                    )


def _local(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp).astimezone().replace(tzinfo=None)
