"""Who has used how much, who may, and what is reserved. Administrators change it here."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli import client, parse
from cli.options import check
from cli.problems import Usage
from web.calendar import Calendar
from web.forms import Given, form_endpoint
from web.page import Page, go_on

if TYPE_CHECKING:
    from carmad.api.fairness import LimitsOut, SharesOut
    from carmad.api.reservations import ReservationsOut

PATH = "/share"
BACK = (PATH, "/admin")  # the pages that have these forms
MOST = 1_000_000_000
PERIODS = ("day", "week", "month")


class Share(Page):
    template = "share.html.j2"
    title = "Shares and reservations"
    section = PATH

    @cached_property
    def shares(self) -> SharesOut:
        found: SharesOut = client.get("/v1/share")
        return found

    @cached_property
    def limits(self) -> LimitsOut:
        found: LimitsOut = client.get("/v1/limits")
        return found

    @cached_property
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
    body = {name: check(natural, given[name]) for name in ("gpus", "jobs") if given.get(name)}
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
    Route(f"{PATH}/limit", form_endpoint(limit), methods=["POST"]),
    Route(f"{PATH}/reserve", form_endpoint(reserve), methods=["POST"]),
    Route(f"{PATH}/cancel", form_endpoint(cancel), methods=["POST"]),
]
