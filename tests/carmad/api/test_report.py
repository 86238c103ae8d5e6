"""The report of a period: its numbers by hand, who sees what, and how it reads."""

from __future__ import annotations

import json
import os
import pwd
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_gpu, a_job, a_spec
from carmad.api.report import Period, ReportOut, report_out
from carmad.api.reporting import longest_wait_reason
from carmad.core.gpus.sharing import JobSummary, SpecSummary
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId
from carmad.core.jobs.findings import Estimate, Usage
from carmad.core.jobs.spec import ArrayTask, JobSpec, Owner
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step, Tick
from carmad.core.placing.decision import Decision, Placement, Reason, Verdict
from carmad.report import as_markdown, as_page, last, sections
from carmad.store import queries
from carmad.store.values import External
from tests.api_server import as_uid, running
from tests.attack.users import needs_root
from tests.carmad.core.test_sharing import HOUR, beside, job, stay
from tests.owners import who

GPUS = {GpuId(f"g{n}"): a_gpu(n, id=GpuId(f"g{n}")) for n in range(2)}
WEEK = Period(0.0, 100 * HOUR, 100 * HOUR)
HOSTILE = "<img src=x onerror=alert(1)>|`*[x](javascript:1)\x1b[31m\u202e" + "A" * 10_000


def report(*jobs: JobSummary, period: Period = WEEK, user: Owner | None = None) -> ReportOut:
    return report_out(jobs, period, GPUS, lambda one: f"why {one.id}", user)


def waiting(id: int, since_h: float, **its: Any) -> JobSummary:
    return job(id, **{"submitted_at": since_h * HOUR, "state": JobState.QUEUED, **its})


# numbers


def test_gpus_and_users_by_hand() -> None:
    """g0: 10 h ada, the last 5 of them with ben; g1: ben, from before the period on."""
    used = Usage(energy_j=7.2e6)
    out = report(
        job(1, stay(10, 20), usage=used),
        job(2, stay(15, 20), user="ben", company=(beside(1, 1.25),)),
        job(3, stay(-10, 10, "g1"), user="ben", usage=used),
    )
    assert [
        (gpu["index"], gpu["busy_hours"], gpu["shared_hours"], gpu["idle_hours"], gpu["jobs"])
        for gpu in out["gpus"]
    ] == [(0, 10.0, 5.0, 90.0, 2), (1, 10.0, 0.0, 90.0, 1)]
    assert out["users"] == [
        {"user": "ben", "jobs": 2, "gpu_hours": 12.5, "share": 0.625, "energy_kwh": 1.0},
        {"user": "ada", "jobs": 1, "gpu_hours": 7.5, "share": 0.375, "energy_kwh": 2.0},
    ]
    its = out["sharing"]
    assert (its["shared"], its["jobs"], its["sources"]) == (0.25, 2, {"steps": 1})
    assert its["saved_gpu_hours"] == 4.0 - 2.5, "job 2: alone 4 h, and half of 5 h is its part"
    assert (its["slowdown"], its["known"]) == (1.25, 0.5)
    assert its["unknown_at_most_gpu_hours"] == 2.5


def test_an_empty_week() -> None:
    out = report()
    assert (out["jobs"], out["users"], out["waits"], out["idle"]) == (0, [], [], [])
    assert [gpu["idle_hours"] for gpu in out["gpus"]] == [100.0, 100.0]
    assert "No job held a GPU." in as_markdown(out)
    assert "No job held a GPU." in as_page(out)
    assert report(job(1, stay(200, 300)), job(2, stay(-9, -1)))["jobs"] == 0


def test_a_gpu_that_is_gone_is_there_while_it_was_used() -> None:
    out = report(job(1, stay(0, 1, "gone")), job(2, stay(-2, -1, "long-gone")))
    assert [(gpu["id"], gpu["index"]) for gpu in out["gpus"]][2:] == [("gone", None)]


def test_estimates_by_whose_they_were() -> None:
    def estimated(id: int, mib: int, peak: int, source: str = "trace", **its: Any) -> JobSummary:
        return job(id, stay(0, id), estimate=Estimate(mib, source), usage=Usage(peak), **its)

    out = report(
        *(estimated(n, mib, 1000) for n, mib in enumerate((900, 1100, 1500), 1)),
        estimated(4, 2000, 1000, "declared"),
        estimated(5, 5, 1000, state=JobState.FAILED),
        estimated(6, 5, 0),
        estimated(101, 5, 1000),  # ends after the period
    )
    assert out["estimates"] == [
        {"source": "trace", "jobs": 3, "ratio_median": 1.1, "under": 0.3333},
        {"source": "declared", "jobs": 1, "ratio_median": 2.0, "under": 0.0},
    ]


def test_jobs_that_ran_out_of_memory_and_what_became_of_them() -> None:
    crash = [stay(n, n + 1, cause=Cause.GPU_OOM) for n in range(3)]
    out = report(
        job(1, *crash[:2], stay(5, 6)),
        job(2, crash[0], state=JobState.OUT_OF_MEMORY),
        job(3, crash[1], state=JobState.QUEUED),
        job(4, stay(-2, -1, cause=Cause.GPU_OOM), stay(5, 6)),  # crashed before
    )
    assert out["ooms"] == {"crashes": 4, "jobs": 3, "saved": 1, "waiting": 1}
    assert "3 jobs ran out of GPU memory, 4 times in all; 1 of them" in as_markdown(out)


def test_the_longest_waits() -> None:
    task = SpecSummary("ada", 1000, "sweep", ArrayTask(JobId(10), 0))
    out = report(
        job(1, stay(7, 8)),
        waiting(2, 40),
        waiting(3, 90, spec=SpecSummary("ada", 1000, "later", begin_at=99 * HOUR)),
        waiting(4, 1, state=JobState.CANCELLED),
        job(5, stay(150, 160), submitted_at=80 * HOUR),
        *(waiting(n, 50, spec=task) for n in (10, 11, 12)),
        job(6, stay(-1, 5), submitted_at=-90 * HOUR),  # started before
    )
    assert [(row["id"], row["wait_s"] / HOUR, row["started"]) for row in out["waits"]] == [
        (2, 60.0, False),
        (10, 50.0, False),
        (5, 20.0, False),
        (1, 7.0, True),
        (3, 1.0, False),
    ]
    assert out["waits"][0]["why"] == "why 2"


def test_jobs_that_held_gpus_without_using_them() -> None:
    def idler(id: int, active: float, hours: float = 10.0, measured: float = 1.0) -> JobSummary:
        gpu_s = hours * HOUR * measured
        usage = Usage(sm_seconds=active * gpu_s, gpu_seconds=gpu_s)
        return job(id, stay(id * 10, id * 10 + hours), usage=usage)

    out = report(
        idler(1, 0.01),
        idler(2, 0.2),
        idler(3, 0.0, hours=0.5),
        idler(4, 0.0, measured=0.3),
        idler(5, 0.04, hours=9.0),
    )
    assert [(row["id"], row["gpu_hours"], row["sm_active"]) for row in out["idle"]] == [
        (1, 10.0, 0.01),
        (5, 9.0, 0.04),
    ]


def test_others_are_totals_to_anyone_but_administrators() -> None:
    idle = Usage(gpu_seconds=10 * HOUR)
    jobs = (job(1, stay(0, 10), usage=idle), job(2, stay(0, 10, "g1"), user="eve", usage=idle))
    out = report(*jobs, waiting(3, 5), user=who("eve"))
    assert [(row["user"], row["gpu_hours"]) for row in out["users"]] == [("eve", 10.0), ("", 10.0)]
    assert [row["id"] for row in out["idle"]] == [2]
    assert out["waits"] == []
    assert "ada" not in json.dumps(out)
    assert "all others" in as_markdown(out)
    assert [row["id"] for row in report(*jobs)["idle"]] == [1, 2]


def decided(at: float, *reasons: Reason, gpus: tuple[str, ...] = (), refused: str = "") -> Decision:
    verdicts = (Verdict(GpuId("g0"), (Reason(refused),)),) if refused else ()
    ids = tuple(GpuId(gpu) for gpu in gpus)
    return Decision(at, "magm", Placement(JobId(1), ids, verdicts, reasons))


def test_a_wait_s_reason_is_the_one_that_lasted_longest() -> None:
    past = [
        decided(90.0, Reason("cpus")),  # for a later attempt
        decided(60.0, gpus=("g0",)),
        decided(50.0, Reason("quota", 1, 1, detail="ada")),
        decided(20.0, refused="exclusive"),
        decided(10.0, Reason("quota", 2, 2, detail="ada")),
    ]
    assert longest_wait_reason(past, 1000.0) == "Exclusive"
    assert longest_wait_reason(past[:2], 1000.0) == ""
    assert longest_wait_reason(past[2:], 51.0) == "Exclusive"
    assert longest_wait_reason(past[2:], 71.0).startswith("Quota"), "the same reason at two times"


# periods


@contextmanager
def zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


@pytest.mark.parametrize(
    ("today", "hours"),
    [
        pytest.param(date(2026, 11, 25), 168, id="an ordinary one"),
        pytest.param(date(2026, 10, 26), 169, id="the clock went back on its Sunday"),
        pytest.param(date(2026, 4, 5), 167, id="the clock went forward"),
    ],
)
def test_a_week_is_whole_in_local_time(today: date, hours: int) -> None:
    with zone("Europe/Copenhagen"):
        since, until = last("week", today)
        assert (until - since).total_seconds() == hours * HOUR or hours == 168
        assert (until.timestamp() - since.timestamp()) / HOUR == hours
        assert since.weekday() == until.weekday() == 0
        assert until.date() <= today and (since.hour, until.hour) == (0, 0)
        period = Period(since.timestamp(), until.timestamp(), until.timestamp())
        out = report(job(1, stay(0, 1)), period=period)
        assert out["hours"] == hours
        assert f"{until - (until - since) / 7:%d %b %Y}"[3:] in as_markdown(out)


def test_a_month() -> None:
    since, until = last("month", date(2026, 1, 31))
    assert (since.date(), until.date()) == (date(2025, 12, 1), date(2026, 1, 1))


# how it reads


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.said = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.said += data


def test_hostile_names_are_text() -> None:
    idle = Usage(gpu_seconds=10 * HOUR)
    spec = SpecSummary(HOSTILE, 1000, HOSTILE)
    out = report(job(1, stay(5, 15), usage=idle, spec=spec))
    out["external"] = [{"user": HOSTILE, "processes": 1, "gpu_hours": 1.0}]
    page = Text()
    page.feed(as_page(out))
    assert "img" not in page.tags and "script" not in page.tags
    assert "<img src=x onerror=alert(1)>" in page.said
    text = as_markdown(out)
    assert "\\<img src=x onerror=alert(1)\\>\\|\\`\\*\\[x\\]" in text
    assert max(map(len, text.splitlines())) < 300
    for each in (text, page.said):
        assert "\x1b" not in each and "\u202e" not in each


def test_the_page_stands_alone() -> None:
    page = as_page(report(job(1, stay(0, 10))))
    assert "http" not in page and "<script" not in page and "style=" not in page
    assert '<rect class="used" width="10.0"' in page


def test_tables_are_aligned() -> None:
    text = as_markdown(report(job(1, stay(1, 10)), job(2, stay(1, 2), user="a-long-name")))
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3, "GPUs, users, waits"
    for table in tables:
        assert len({len(line) for line in table.splitlines()}) == 1


def test_what_sharing_gave_in_a_sentence() -> None:
    one, two = (job(n, stay(0, 10), company=(beside(3 - n, 1.25),)) for n in (1, 2))
    (sharing,) = (each for each in sections(report(one, two)) if each.title == "Sharing")
    assert sharing.lines == [
        "The GPUs in use were shared 100% of the time, by 2 jobs. That saved 6.0 GPU-hours, and"
        " slowed them by 25.0% while they shared.",
        "Known for 100% of the time in company, from step times that jobs reported (2 jobs).",
    ]
    half = as_markdown(report(one, replace(two, company=())))
    assert "As far as it is known, that saved 3.0 GPU-hours, and slowed them by 25.0%" in half
    assert "How much the other jobs were slowed was not measured.\n" in half
    neither = as_markdown(report(replace(one, company=()), replace(two, company=())))
    assert "shared 100% of the time, by 2 jobs.\n" in neither
    assert "How much they were slowed was not measured.\n" in neither


# the daemon's


def test_a_daemon_reports_what_its_store_has_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PAGE", 3)
    monkeypatch.setattr(queries, "SUMMARIES", queries.SUMMARIES.limit(3))
    with running(tmp_path, gpus=2) as daemon:
        now = time.time()
        gpu = daemon.gpus[0].id
        ended = [
            a_job(
                n,
                spec=a_spec(user="ada" if n % 2 else "ben", uid=60_000 + n % 2),
                state=JobState.SUCCEEDED,
                submitted_at=now - 7200,
                gpus=(gpu,),
                started_at=now - 3600,
                ended_at=now - 60 * (n // 2),  # some at the same time
                shared=True,
                exit=Exit(Cause.SUCCESS, 0),
            )
            for n in range(1, 8)
        ]
        daemon.store.commit(Step((Tick(now),), tuple(ended), (), ()))
        seen = External(gpu, 7, now, "eve", "python", now - 7200, now, None)
        daemon.store.record_externals([seen])
        status, out = daemon.call("GET", "/v1/report")
        assert (status, out["jobs"]) == (200, 7)
        assert {row["user"]: row["jobs"] for row in out["users"]} == {"ada": 4, "ben": 3}
        assert out["gpus"][0]["busy_hours"] == pytest.approx(1.0, abs=0.01)
        assert out["hours"] == pytest.approx(2.0, abs=0.01), (
            "not of the time before the first record"
        )
        assert out["gpus"][1]["idle_hours"] == pytest.approx(2.0, abs=0.01)
        assert out["external"] == [{"user": "eve", "processes": 1, "gpu_hours": 2.0}]
        assert out["waits"][0]["wait_s"] == pytest.approx(3600.0)
        query = f"?since={stamp_of(now - 1800)}&until={stamp_of(now - 900)}"
        _, part = daemon.call("GET", f"/v1/report{query}")
        assert part["gpus"][0]["busy_hours"] == 0.25
        assert part["external"][0]["gpu_hours"] == 0.25
        receipt = daemon.call("GET", "/v1/jobs/1")[1]["receipt"]
        assert receipt["gpu_hours"] == pytest.approx(1.0)
        assert (receipt["neighbours"], receipt["slowdown"]) == (6, None)
        assert daemon.call("GET", f"/v1/report?since={stamp_of(now + 900)}")[0] == 400
        query = f"?since={stamp_of(now - 90_000)}&until={stamp_of(now - 80_000)}"
        _, before = daemon.call("GET", f"/v1/report{query}")
        assert (before["jobs"], before["hours"], before["gpus"][0]["idle_hours"]) == (0, 0, 0)
        assert before["since"] < before["until"]
        assert "No job held a GPU" in as_markdown(before)


@contextmanager
def open_folder() -> Iterator[Path]:
    """One that every user may look into."""
    with tempfile.TemporaryDirectory(prefix="carma-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def spec_of(user: str) -> JobSpec:
    return a_spec(user=user, uid=pwd.getpwnam(user).pw_uid, name="secret")


@needs_root
def test_what_a_user_gets_of_others() -> None:
    with open_folder() as folder, running(folder) as daemon:
        now = time.time()
        its = {"state": JobState.SUCCEEDED, "started_at": now - 3600, "ended_at": now - 60}
        mine, other = (
            a_job(
                n,
                spec=a_spec(user=user, uid=pwd.getpwnam(user).pw_uid, name="secret"),
                gpus=(daemon.gpus[n].id,),
                **its,
            )
            for n, user in ((1, "nobody"), (2, "root"))
        )
        daemon.store.commit(Step((Tick(now),), (mine, other), (), ()))
        seen = External(daemon.gpus[0].id, 7, now, "root", "python", now - 7200, now, None)
        daemon.store.record_externals([seen])
        status, out = as_uid(pwd.getpwnam("nobody").pw_uid, daemon.path, "GET", "/v1/report")
        assert status == 200
        assert [row["user"] for row in out["users"]] == ["nobody", ""]
        assert [row["user"] for row in out["external"]] == [""]
        assert [row["id"] for row in out["waits"]] == [1]
        assert "root" not in json.dumps(out)


def stamp_of(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat().replace("+", "%2B")
