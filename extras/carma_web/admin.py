"""For administrators: drains, processes outside of the queue, settings, the doctor; and what
another policy would have done with the last days: one simulation at a time, in a child at the
lowest priority, by `carma simulate --what-if`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import threading
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from carma_web.forms import Given, form_endpoint
from carma_web.once import once
from carma_web.page import Page, go_on
from carma_web.share import Share
from carmad import registry
from carmad.config import Settings
from carmad.errors import CarmaError
from carmad.paths import python
from cli import client, parse
from cli.options import check
from cli.problems import Problem

if TYPE_CHECKING:
    from carmad.api.server import ConfigOut, DoctorOut, StatsOut

WHAT_IF = "/what-if"
USUAL = ("exclusive", "magm", "lug", "carma")
FIELD = "policy-"  # and the name of each that was chosen
DAYS, MOST_DAYS = 7, 90
END_WITHIN_S = 10.0


class Simulation:
    """The last one that was started. `said` is what it has told by now."""

    def __init__(self, days: int, policies: list[str]) -> None:
        self.days = days
        self.said: dict[str, Any] = {"share": 0}
        self._cancelled = False
        chosen = [f"--policy={policy}" for policy in policies]
        words = [*python("cli.main"), "simulate", f"--what-if={days}", *chosen]
        self._child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._listen, name="simulation", daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._reader.is_alive()

    def cancel(self) -> None:
        self._cancelled = True
        self._child.terminate()
        self._reader.join(END_WITHIN_S)  # so that another may begin

    def _listen(self) -> None:
        assert self._child.stdin and self._child.stdout
        for line in self._child.stdout:
            self.said |= json.loads(line)
        code = self._child.wait()
        self._child.stdin.close()
        if "runs" not in self.said and "error" not in self.said:
            why = "it was cancelled" if self._cancelled else f"it ended with code {code}"
            self.said |= {"error": why, "hint": ""}


class Desk:
    """Where the simulation is kept: there is at most one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.simulation: Simulation | None = None

    def start(self, days: int, policies: list[str]) -> None:
        with self._lock:
            if self.simulation and self.simulation.running:
                raise Problem("a simulation is running", "cancel it, or wait for it to end")
            self.simulation = Simulation(days, policies)


DESK = Desk()


class WhatIf(Page):
    template = "what_if.html.j2"
    title = "What if"
    section = "/admin"

    @property
    def policies(self) -> list[str]:
        return policy_names()

    @property
    def usual(self) -> tuple[str, ...]:
        return USUAL

    @property
    def simulation(self) -> Simulation | None:
        return DESK.simulation

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The runs, each with how its mean JCT compares with that of the policy in force."""
        runs: list[dict[str, Any]] = DESK.simulation.said.get("runs", []) if DESK.simulation else []
        base = runs[1]["jct_s"] if len(runs) > 1 else None
        longest = max((run["jct_s"] or 0 for run in runs), default=0)
        return [
            run
            | {
                "kind": ("as it was", "in force")[n] if n < 2 else "",
                "longest": longest,
                "change": run["jct_s"] / base - 1 if n > 1 and base and run["jct_s"] else None,
            }
            for n, run in enumerate(runs)
        ]


@cache
def policy_names() -> list[str]:
    """The installed policies, without those whose libraries are missing."""
    found = []
    for name in registry.names("policies"):
        try:
            registry.bare_policy(Settings(policy=name))
        except CarmaError:
            continue
        found.append(name)
    return found


def start_simulation(request: Request, given: Given) -> Response:
    days = check(parse.whole(1, MOST_DAYS), given.get("days", ""))
    chosen = [name for name in policy_names() if FIELD + name in given]
    DESK.start(days, chosen)
    return go_on(request, WHAT_IF, "The simulation has begun.")


def cancel_simulation(request: Request, given: Given) -> Response:
    if DESK.simulation:
        DESK.simulation.cancel()
    return go_on(request, WHAT_IF, "The simulation is cancelled.")


def report(request: Request) -> Response:
    """A page that stands alone: its policy allows its own style sheet and charts, nothing else."""
    html = DESK.simulation.said.get("report") if DESK.simulation else ""
    if not html:
        raise HTTPException(404, "there is no report")
    return HTMLResponse(html, headers={"Content-Security-Policy": alone(html)})


def alone(html: str) -> str:
    """The policy for a page whose one style sheet is inside it."""
    found = re.search("<style>(.*?)</style>", html, re.DOTALL)
    sheet = hashlib.sha256(found[1].encode() if found else b"").digest()
    style = f"style-src 'sha256-{base64.b64encode(sheet).decode()}'"
    rest = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; {style}; img-src data:; {rest}"


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

    @once
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

    @once
    def config(self) -> ConfigOut:
        found: ConfigOut = client.get("/v1/config")
        return found

    @property
    def usual(self) -> list[str]:
        """The policies that one click compares."""
        return [name for name in USUAL if name in policy_names()]


class Doctor(Admin):
    template = "doctor.html.j2"
    title = "Doctor"

    @once
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
    Route(WHAT_IF, WhatIf.show),
    Route(WHAT_IF, form_endpoint(start_simulation), methods=["POST"]),
    Route(f"{WHAT_IF}/cancel", form_endpoint(cancel_simulation), methods=["POST"]),
    Route(f"{WHAT_IF}/report", report),
]
