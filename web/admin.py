"""For administrators: drains, processes outside of the queue, settings, and the doctor."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli import client, parse
from web import what_if
from web.forms import Given, form_endpoint
from web.page import go_on
from web.share import Share

if TYPE_CHECKING:
    from carmad.api.server import ConfigOut, DoctorOut, StatsOut

PATH = "/admin"
SINCE = "7d"


class Admin(Share):
    template = "admin.html.j2"
    title = "Administration"
    section = PATH

    @classmethod
    def show(cls, request: Request) -> Response:
        page = cls(request)
        if not page.is_admin:
            raise HTTPException(
                403, "this page is for administrators: root and members of access.admin_group"
            )
        return page.response()

    @cached_property
    def stats(self) -> StatsOut:
        found: StatsOut = client.get("/v1/stats", since=parse.since(SINCE))
        return found

    @property
    def outsiders(self) -> list[dict[str, Any]]:
        """The processes that use GPUs now without a job."""
        return [
            {**process, "gpu": gpu["index"]}
            for gpu in self.status["gpus"]
            for process in gpu["outsiders"]
        ]

    @cached_property
    def config(self) -> ConfigOut:
        found: ConfigOut = client.get("/v1/config")
        return found

    @property
    def usual(self) -> list[str]:
        """The policies that one click compares."""
        return [name for name in what_if.USUAL if name in what_if.policy_names()]


class Doctor(Admin):
    template = "doctor.html.j2"
    title = "Doctor"

    @cached_property
    def doctor(self) -> DoctorOut:
        found: DoctorOut = client.get("/v1/doctor")
        return found


def drain(request: Request, given: Given) -> Response:
    gpu = given.get("gpu", "")
    client.post(_gpu(gpu, "drain"), {"reason": given.get("reason") or "maintenance"})
    return go_on(request, PATH, f"GPU {gpu} is drained: its jobs continue, and no others start.")


def resume(request: Request, given: Given) -> Response:
    gpu = given.get("gpu", "")
    client.post(_gpu(gpu, "resume"), {})
    return go_on(request, PATH, f"GPU {gpu} takes jobs again.")


def _gpu(ref: str, verb: str) -> str:
    return f"/v1/gpus/{quote(ref, safe='')}/{verb}"


ROUTES = [
    Route(PATH, Admin.show),
    Route(f"{PATH}/doctor", Doctor.show),
    Route(f"{PATH}/drain", form_endpoint(drain), methods=["POST"]),
    Route(f"{PATH}/resume", form_endpoint(resume), methods=["POST"]),
]
