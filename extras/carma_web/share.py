"""Who has used how much, and for what; who may, and what is reserved. Administrators change it
here, and users book."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from carma_web.forms import Given, form_endpoint
from carma_web.once import once
from carma_web.page import Page, go_on
from carmad.report import Section, last, sections, title
from cli import client, parse
from cli.options import check
from cli.problems import Usage

if TYPE_CHECKING:
    from carmad.api.fairness import LimitsOut, SharesOut
    from carmad.api.report import ReportOut
    from carmad.api.reservations import ReservationOut, ReservationsOut

SEVEN_DAYS = "7 days"


class Report(Page):
    template = "report.html.j2"
    title = "Report"
    section = "/report"
    periods = (SEVEN_DAYS, "week", "month")

    @property
    def period(self) -> str:
        asked = self.request.query_params.get("of", "")
        return asked if asked in self.periods else SEVEN_DAYS

    @property
    def command(self) -> str:
        return "carma stats --report " + (
            "week --since 7d" if self.period == SEVEN_DAYS else self.period
        )

    @once
    def answer(self) -> ReportOut:
        now = datetime.now().astimezone()
        since, until = now - timedelta(days=7), now
        if self.period != SEVEN_DAYS:
            since, until = last(self.period, now.date())
        found: ReportOut = client.get(
            "/v1/report", since=since.isoformat(), until=until.isoformat()
        )
        return found

    @property
    def heading(self) -> str:
        return title(self.answer)

    @property
    def sections(self) -> list[Section]:
        return sections(self.answer)


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


PATH = "/share"
BACK = (PATH, "/admin")  # the pages that have these forms
MOST = 1_000_000_000
PERIODS = ("day", "week", "month")


class Share(Page):
    template = "share.html.j2"
    title = "Shares and reservations"
    section = PATH

    @once
    def shares(self) -> SharesOut:
        found: SharesOut = client.get("/v1/share")
        return found

    @once
    def limits(self) -> LimitsOut:
        found: LimitsOut = client.get("/v1/limits")
        return found

    @once
    def reservations(self) -> ReservationsOut:
        found: ReservationsOut = client.get("/v1/reservations")
        return found

    @property
    def calendar(self) -> Calendar:
        gpus = {gpu["id"]: f"GPU {gpu['index']}" for gpu in self.status["gpus"]}
        return Calendar(gpus, self.reservations["reservations"])

    @property
    def may_change(self) -> bool:
        return self.is_admin and not self.read_only

    @property
    def may_book(self) -> bool:
        return bool(self.reservations["booking"]) and not self.read_only

    @property
    def who(self) -> str:
        """Whose limit the form begins with."""
        return self.request.query_params.get("who", "")

    @property
    def periods(self) -> tuple[str, ...]:
        return PERIODS


def limit(request: Request, given: Given) -> Response:
    who = given.get("who", "")
    if "clear" in given:
        client.post("/v1/limits", {"subject": who, "clear": True})
        return go_on(request, _back(given), f"The limit of {who} is removed.")
    natural = parse.whole(0, MOST)
    numbers = (name for name in ("gpus", "jobs", "booking") if given.get(name))
    body = {name: check(natural, given[name]) for name in numbers}
    if hours := given.get("gpu_hours"):
        body["gpu_hours"], body["per"] = check(parse.gpu_hours, f"{hours}/{given.get('per')}")
    if not body:
        raise Usage("give at least one limit", "or remove the whole limit in its row")
    client.post("/v1/limits", body | {"subject": who})
    return go_on(request, _back(given), f"The limit of {who} is in force.")


def reserve(request: Request, given: Given) -> Response:
    lasts_s = check(parse.seconds, given.get("for", ""))
    if lasts_s is None:
        raise Usage("for how long?", "such as 4h or 1-12 (a day and twelve hours)")
    body = {
        "gpus": check(parse.gpu_count, given.get("gpus") or None),
        "on": _words(given.get("on", "")) or None,
        "users": _words(given.get("users", "")),
        "starts_at": check(parse.moment, given.get("from") or "now"),
        "lasts_s": lasts_s,
        "weekly": "weekly" in given,
        "book": "book" in given,
    }
    (made,) = client.post("/v1/reservations", body)["reservations"]
    return go_on(request, _back(given), f"Reserved: {made['text']}.")


def _back(given: Given) -> str:
    path = given.get("back", "")
    return path if path in BACK else PATH


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def cancel(request: Request, given: Given) -> Response:
    id = check(parse.whole(1, MOST), given.get("id", ""))
    client.post(f"/v1/reservations/{id}/cancel", {})
    return go_on(request, _back(given), f"Reservation {id} is cancelled.")


ROUTES = [
    Route(PATH, Share.show),
    Route("/report", Report.show),
    Route(f"{PATH}/limit", form_endpoint(limit), methods=["POST"]),
    Route(f"{PATH}/reserve", form_endpoint(reserve), methods=["POST"]),
    Route(f"{PATH}/cancel", form_endpoint(cancel), methods=["POST"]),
]
