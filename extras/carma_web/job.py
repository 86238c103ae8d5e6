"""The page of a job, or of an array, and what can be done to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from carma_client.logs import Tail, output, search, tail, unreadable
from carma_web import charts, forms
from carma_web.forms import Field, Given, carma, form_endpoint, in_fields
from carma_web.once import once
from carma_web.page import Page, Piece, Share, go_on, pieces, shares
from carmad.errors import CarmaError
from carmad.readable import duration
from carmad.states import ENDED
from cli import client, render, sweeps
from cli.client import outcomes
from cli.problems import FORBIDDEN, Refused
from cli.text import clock, energy, fraction, local_time, memory

if TYPE_CHECKING:
    from carmad.api.job import AttemptOut, JobOut
    from carmad.api.jobs import MetricsOut
    from carmad.api.timeline import TimelineOut
    from carmad.api.why import WhyOut

JOULES_PER_KWH = 3_600_000
LINES = 200  # of the log
TERMINAL = "it runs at a terminal, and its output is there"
MOST_TASKS = 1_000
LABEL = re.compile(r"\d{1,15}(_\d{1,7})?", re.ASCII)
ENDS: tuple[Literal["started_at"], Literal["ended_at"]] = (
    "started_at",
    "ended_at",
)  # of an attempt
AT_ONCE = {
    "hold": "Hold",
    "release": "Release",
    "suspend": "Suspend",
    "resume": "Resume",
    "requeue": "Requeue",
}


def label_in(request: Request) -> str:
    """The job that the address names. Raises HTTPException."""
    label = str(request.path_params["label"])
    if not LABEL.fullmatch(label):
        raise HTTPException(404, f"there is no job {label:.40}")
    return label


@dataclass(frozen=True, slots=True)
class Neighbour:
    label: str
    user: str
    name: str
    gpu: int | None
    memory_mib: float | None


class JobPage(Page):
    template = "job.html.j2"
    section = "/"
    of_outline = ("headline", "figures")  # parts
    charts = charts

    def response(self) -> Response:
        part = self.request.query_params.get("part")
        if part is not None and part not in self.of_outline:
            self.full  # noqa: B018 - raises if the reader may not see it, maybe no more
        return super().response()

    @property
    def label(self) -> str:
        return label_in(self.request)

    @property
    def heading(self) -> str:
        return f"Job {self.label}"

    @once
    def outline(self) -> JobOut | None:
        """Of a job that is not the user's: what everybody sees of it."""
        try:
            self.full  # noqa: B018 - asks
        except CarmaError as error:
            if getattr(error, "code", "") not in FORBIDDEN:
                raise
            listed: list[JobOut] = client.get("/v1/jobs", select=self.label)["jobs"]
            found = next((job for job in listed if job["label"] == self.label), None)
            return found or listed[0]
        return None

    @once
    def full(self) -> JobOut:
        found: JobOut = client.get(f"/v1/jobs/{self.label}")
        return found

    @property
    def job(self) -> JobOut:
        return self.outline or self.full

    @property
    def is_over(self) -> bool:
        return self.job["state"] in ENDED

    @property
    def live(self) -> bool:
        return bool(self.job["gpus"]) and not self.is_over

    @property
    def array(self) -> str:
        """The array that it is a task of; "" if it is none."""
        array, _, task = self.label.partition("_")
        return array if task else ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        return render.facts(self.job)

    @property
    def receipt(self) -> list[tuple[str, str]]:
        """Once it has ended, and its owner asks."""
        its = self.job.get("receipt") if self.is_over else None
        return list(render.receipt(its)) if its else []

    @property
    def figures(self) -> list[tuple[str, str, str]]:
        """The numbers at the top: of what, the number, and a word on it."""
        job = self.job
        used, limit, waits = job["memory"], job.get("time_limit_s"), not job["started_at"]
        peak, need = memory(used["peak_mib"]), render.need(job)
        promised = used["declared_mib"] or used["estimate_mib"]
        on = [str(gpu["id"] if gpu["index"] is None else gpu["index"]) for gpu in job["gpus"]]
        wanted = "1 GPU" if job["gpus_wanted"] == 1 else f"{job['gpus_wanted']} GPUs"
        found = [
            ("Waited", clock(job.get("wait_s")), "so far")
            if waits
            else ("Ran", clock(job["elapsed_s"]), f"of at most {clock(limit)}" if limit else ""),
            ("GPU", ", ".join(on), (job.get("mode") or "").replace("streams", "time-slicing"))
            if on
            else ("Wants", wanted, "not shared" if job.get("exclusive") else ""),
            ("Memory need", memory(promised), need.partition(" ")[2].strip("()")),
        ]
        start = None if self.outline else self.why.get("start")
        if start and start["expected_at"]:
            latest = start["latest_at"]
            by = f"at the latest {local_time(latest)[5:16]}" if latest else ""
            found.append(("Expected start", local_time(start["expected_at"])[5:16], by))
        if self.live:
            known = f"peak {peak}" if used["peak_mib"] else ""
            found.append(("Memory now", memory(used["used_mib"]), known))
        elif used["peak_mib"]:
            found.append(("Memory peak", peak, "per GPU"))
        if (mean := job.get("sm_active_mean")) is not None:
            found.append(("SM activity", fraction(mean), "on average"))
        if (joules := job.get("energy_j")) is not None:
            found.append(("Energy", energy(joules / JOULES_PER_KWH), ""))
        return found

    # -- why

    @once
    def why(self) -> WhyOut:
        found: WhyOut = client.get(f"/v1/jobs/{self.label}/why")
        return found

    @property
    def headline(self) -> str:
        """Unless the state says it already."""
        said = self.why["headline"]
        return "" if said == self.job["state"].replace("_", " ") else said

    @property
    def story(self) -> list[Piece]:
        """Why it waits or runs where it does, without the headline, and without the last lines of
        its log if that is shown beside it."""
        tail = self.why["tail"] if self.log.why else []
        return pieces(render.why({**self.why, "tail": tail})[1:])

    # -- its log

    @property
    def channel(self) -> str:
        return "stderr" if self.request.query_params.get("log") == "stderr" else "stdout"

    @property
    def channels(self) -> tuple[str, ...]:
        job = self.job
        return ("stdout", "stderr") if job.get("stderr") != job.get("stdout") else ("stdout",)

    @property
    def wanted(self) -> str:
        """The text that is looked for in the log."""
        return self.request.query_params.get("find", "").strip()[:200]

    @once
    def log(self) -> Tail:
        """The end of it, or the lines that are looked for."""
        job = self.job
        if job.get("interactive"):
            return Tail(why=TERMINAL)
        path: str = job[self.channel]  # type: ignore[literal-required]
        if self.wanted:
            return search(path, job, self.wanted, LINES)
        return tail(path, job, LINES)

    def split(self, line: str) -> list[str]:
        """Every second piece is what is looked for."""
        return re.split(f"({re.escape(self.wanted)})", line, flags=re.I) if self.wanted else [line]

    # -- its memory and its neighbours

    @property
    def parts(self) -> list[Share]:
        own = self.job.get("estimate")
        return shares(own["parts"] if own else {})

    def duration(self, attempt: AttemptOut) -> str:
        begun, ended = (datetime.fromisoformat(attempt[end]) for end in ENDS)
        return duration((ended - begun).total_seconds())

    def on(self, attempt: AttemptOut) -> str:
        """Its GPUs, as people call them."""
        index = {gpu["id"]: gpu["index"] for gpu in self.status["gpus"]}
        return ", ".join(f"GPU {index.get(id, id)}" for id in attempt["gpus"])

    @once
    def neighbours(self) -> list[Neighbour]:
        """The other jobs on its GPUs: now, or while it ran, as far back as that is recorded."""
        job = self.job
        if self.live:
            own = {gpu["id"] for gpu in job["gpus"]}
            there = [gpu for gpu in self.status["gpus"] if gpu["id"] in own]
            return [
                Neighbour(one["label"], one["user"], one["name"], gpu["index"], one["memory_mib"])
                for gpu in there
                for one in gpu["jobs"]
                if one["id"] != job["id"]
            ]
        return self._former() if self.is_over and job["started_at"] else []

    def _former(self) -> list[Neighbour]:
        """Those that were there at the same time, as the receipt has it: a bin of the timeline may
        have one that came after the other."""
        job, found = self.job, []
        its = job.get("receipt")
        beside = set(its["beside"] if its else ())
        if not beside:
            return []
        for gpu in job["gpus"]:
            since, until = job["started_at"], job.get("ended_at")
            try:
                answer: TimelineOut = client.get(
                    "/v1/timeline", since=since, until=until, gpu=gpu["id"]
                )
            except Refused:  # nothing is recorded of it any more
                continue
            for one in answer["gpus"][0]["jobs"]:
                if one["id"] in beside:
                    most = max((mib for mib in one["used_max_mib"] if mib), default=None)
                    name = one["label"], one["user"], one["name"]
                    found.append(Neighbour(*name, gpu["index"], most))
        return found

    # -- what can be done

    @property
    def actions(self) -> list[tuple[str, str]]:
        able = () if self.read_only else self.job.get("actions", ())
        return [(verb, name) for verb, name in AT_ONCE.items() if verb in able]

    @property
    def can_cancel(self) -> bool:
        return not self.read_only and "cancel" in self.job.get("actions", ())

    @property
    def changes(self) -> list[Field]:
        return [] if self.read_only else forms.changes(self.job)


class ArrayPage(Page):
    """All tasks of an array."""

    template = "array.html.j2"
    section = "/"

    @property
    def label(self) -> str:
        return label_in(self.request)

    @property
    def heading(self) -> str:
        return f"Array {self.label}"

    @once
    def tasks(self) -> list[JobOut]:
        found: list[JobOut] = client.get("/v1/jobs", select=self.label)["jobs"]
        return found

    @once
    def columns(self) -> list[sweeps.Column]:
        """Parameters and metrics of its tasks."""
        return sweeps.columns(self.tasks)

    @property
    def rows(self) -> list[tuple[JobOut, list[str]]]:
        """The tasks, with the cells of the columns; sorted by one of these, if that is asked."""
        by = self.sort.removeprefix("-")
        found = self.tasks
        if by in [name for _, name in self.columns]:
            found = sweeps.sort(found, by, reverse=not self.sort.startswith("-"))
        return [
            (job, [sweeps.cell(value) for value in sweeps.values(job, self.columns)])
            for job in found[: self.most]
        ]

    @property
    def sort(self) -> str:
        """The column by which it is sorted, the largest first; with a - before it, in reverse."""
        return self.request.query_params.get("sort", "")

    def sorted_by(self, name: str) -> str:
        return urlencode({"sort": f"-{name}" if self.sort == name else name})

    def way(self, name: str) -> str:
        """How the column is sorted now, as aria-sort has it."""
        return {name: "descending", f"-{name}": "ascending"}.get(self.sort, "none")

    @property
    def counts(self) -> list[tuple[JobOut, int]]:
        """A task of each state, and how many there are."""
        counts = Counter(job["state"] for job in self.tasks)
        one = {job["state"]: job for job in self.tasks}
        return [(one[state], count) for state, count in counts.items()]

    @property
    def can_cancel(self) -> bool:
        me, live = self.status["me"], any(job["state"] not in ENDED for job in self.tasks)
        mine = me["admin"] or self.tasks[0]["user"] == me["user"]
        return live and mine and not self.read_only

    most = MOST_TASKS


def show(request: Request) -> Response:
    """A job, or an array, which is named by its id alone."""
    if "_[" in (label := str(request.path_params["label"])):  # as folded listings have it
        base: str = request.app.state.base
        return RedirectResponse(f"{base}/jobs/{label.partition('_')[0]}", 303)
    try:
        return JobPage(request).response()
    except Refused as refused:
        if refused.code != "array":
            raise
    return ArrayPage.show(request)


def timeline(request: Request) -> Response:
    """What the page's charts show: what is recorded of its GPUs since its first attempt."""
    label = label_in(request)
    found: JobOut = client.get(f"/v1/jobs/{label}")
    begun = [each["started_at"] for each in (*found["attempts"], found) if each["started_at"]]
    drawn: dict[str, charts.Chart] = {}
    if begun:
        try:
            until = found.get("ended_at")
            answer: TimelineOut = client.get("/v1/timeline", since=min(begun), until=until)
            drawn |= charts.job_charts(answer, found, request.app.state.hues)
        except Refused as refused:
            if refused.code != "not_found":
                raise  # otherwise nothing is recorded of that time any more
    curves: MetricsOut = client.get(f"/v1/jobs/{label}/metrics")
    for name, curve in curves["metrics"].items():
        drawn[charts.metric_of(name)] = charts.metric_chart(name, curve)
    return JSONResponse({"charts": drawn})


def download(request: Request) -> Response:
    """The whole log, as a file."""
    label, channel = label_in(request), str(request.path_params["channel"])
    if channel not in ("stdout", "stderr"):
        raise HTTPException(404, f"a job has no {channel:.40}")
    job = client.get(f"/v1/jobs/{label}")
    if job.get("interactive"):
        raise HTTPException(404, TERMINAL)
    blocks = output(job[channel], job)
    try:
        next(blocks)
    except (OSError, ValueError) as error:
        raise HTTPException(404, unreadable(job[channel], job, error)) from None
    name = f"carma-{label}.{'out' if channel == 'stdout' else 'err'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(blocks, headers=headers, media_type="text/plain; charset=utf-8")


def acting(verb: str) -> Callable[[Request, Given], Response]:
    def act(request: Request, given: Given) -> Response:
        label = label_in(request)
        answer = client.post(f"/v1/{verb}", {"select": label, "user": None})
        return _back(request, label, answer["results"])

    return act


def update(request: Request, given: Given) -> Response:
    label = label_in(request)
    words = forms.words(given, forms.changes(client.get(f"/v1/jobs/{label}")))
    if not words:
        return go_on(request, f"/jobs/{label}", "nothing was filled in, so nothing has changed")
    answer, _ = carma(["update", "--json", *words, label], Path("/"))
    return _back(request, label, answer["results"])


def _back(request: Request, label: str, results: list[dict[str, Any]]) -> Response:
    lines = [f"job {name}: {in_fields(message)}" for name, _, message in outcomes(results)]
    return go_on(request, f"/jobs/{label}", "; ".join(lines))


ROUTES = [
    Route("/jobs/{label}", show),
    Route("/jobs/{label}/timeline.json", timeline),
    Route("/jobs/{label}/log/{channel}", download),
    *(
        Route(f"/jobs/{{label}}/{verb}", form_endpoint(acting(verb)), methods=["POST"])
        for verb in ("cancel", *AT_ONCE)
    ),
    Route("/jobs/{label}/update", form_endpoint(update), methods=["POST"]),
]
