"""A GPU: its card, which other pages show, and its own page with its jobs and its last hours."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carma_client.transport import is_away
from carma_web import charts
from carma_web.hues import Hues, css
from carma_web.once import once
from carma_web.page import Page, Share, shares
from carmad.readable import clean
from cli import client
from cli.overview import kernelless
from cli.problems import Refused
from cli.text import fraction, memory, number

if TYPE_CHECKING:
    from carmad.api.gpus import GpuOut, GpusOut, ResidentOut
    from carmad.api.timeline import TimelineOut

OTHERS = "others"
LOADS: dict[str, Literal["sm_active", "sm_occupancy", "dram_active"]] = {
    "SM activity": "sm_active",
    "SM occupancy": "sm_occupancy",
    "DRAM activity": "dram_active",
}


class Card:
    """What pages show of a GPU. `lines`: for its jobs; the last one may say how many more there
    are."""

    def __init__(self, gpu: GpuOut, hues: Hues, lines: int = 10**6) -> None:
        self.gpu = gpu
        self.lines = lines
        given = hues.give(gpu["id"], [job["id"] for job in gpu["jobs"]])
        self.colours = {job["label"]: css(given[job["id"]]) for job in gpu["jobs"]}

    @property
    def name(self) -> str:
        return clean(self.gpu["name"]).removeprefix("NVIDIA ")

    @property
    def promised_mib(self) -> int:
        return self.gpu["memory_mib"] - self.gpu["admissible_free_mib"]

    @property
    def held(self) -> list[Share]:
        """What is used of its memory: by each job, and by others."""
        own = {job["label"]: job["memory_mib"] or 0 for job in self.gpu["jobs"]}
        rest = max(0, (self.gpu["memory_used_mib"] or 0) - sum(own.values()))
        colours = {**self.colours, OTHERS: charts.SOFT}
        return shares({**own, OTHERS: rest}, self.gpu["memory_mib"], colours)

    @property
    def jobs(self) -> Sequence[ResidentOut]:
        """Those that there are lines for, first the ones that somebody should look at."""
        found = sorted(self.gpu["jobs"], key=lambda job: not kernelless(job))
        return found[: self.lines if len(found) <= self.lines else max(1, self.lines - 1)]

    @property
    def more(self) -> int:
        return len(self.gpu["jobs"]) - len(self.jobs)


class GpuPage(Page):
    template = "gpu.html.j2"
    section = "/"
    hours_shown = tuple(charts.HOURS)

    @once
    def gpus(self) -> GpusOut:
        found: GpusOut = client.get("/v1/gpus")
        return found

    @once
    def card(self) -> Card:
        index = self.request.path_params["index"]
        found = next((gpu for gpu in self.gpus["gpus"] if gpu["index"] == index), None)
        if found is None:
            raise HTTPException(404, f"there is no GPU {index:.0f}")
        return Card(found, self.request.app.state.hues)

    @property
    def heading(self) -> str:
        return f"GPU {self.card.gpu['index']}"

    @property
    def hours(self) -> int:
        return _hours(self.request)

    @property
    def figures(self) -> list[tuple[str, str, str]]:
        """Of what, the number, and a word on it."""
        card, gpu, limits = self.card, self.card.gpu, self.gpus["thresholds"]["risk"]
        of = f"of {memory(gpu['memory_mib'])}, {memory(card.promised_mib)} promised"
        loads = [
            (
                name,
                fraction(gpu[key]),
                f"risk {fraction(gpu['risk'][key])}, limit {limits[key]:.2f}",
            )
            for name, key in LOADS.items()
        ]
        return [
            ("Memory used", memory(gpu["memory_used_mib"]), of),
            *loads,
            ("Power", number(gpu["power_w"], " W"), ""),
            ("Temperature", number(gpu["temperature_c"], " °C"), ""),
        ]


def sparks(request: Request) -> Response:
    """The load of all GPUs in the last hour."""
    answer = _timeline(charts.SPARK_HOURS, charts.SPARK_STEP_S)
    return answer if isinstance(answer, Response) else _drawn(charts.sparks(answer))


def last_hours(request: Request) -> Response:
    """The charts of a GPU's page."""
    hours = _hours(request)
    answer = _timeline(hours, charts.HOURS[hours], gpu=request.path_params["index"])
    if isinstance(answer, Response):
        return answer
    return _drawn(charts.gpu_charts(answer, hours, request.app.state.hues))


def _timeline(hours: int, step_s: int, **which: object) -> TimelineOut | Response:
    query = charts.query(hours, step_s, time.time()) | which
    try:
        found: TimelineOut = client.get(client.with_query("/v1/timeline", query))
    except Refused as refused:
        if is_away(refused):
            raise
        return JSONResponse({"error": f"carmad tells no timeline: {refused.message}"}, 404)
    return found


def _drawn(made: Mapping[str, charts.Chart]) -> Response:
    return JSONResponse({"charts": made})


def _hours(request: Request) -> int:
    asked = request.query_params.get("hours", "")
    return next((hours for hours in charts.HOURS if str(hours) == asked), charts.USUAL_HOURS)


ROUTES = [
    Route("/charts.json", sparks),
    Route("/gpus/{index:int}", GpuPage.show),
    Route("/gpus/{index:int}/timeline.json", last_hours),
]
