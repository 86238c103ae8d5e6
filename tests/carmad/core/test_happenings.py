"""What a step tells, and whom."""

from __future__ import annotations

from typing import Any

import pytest

from carma_testing import FakeServer
from carmad.core.happenings import Kind, happenings, notices, words
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.messages import Step

OOM = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory")
LOST = Exit(Cause.LOST, evidence="a reboot")


class Listening:
    """A server of which every step is heard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = FakeServer(gpus=1)
        self.steps: list[Step] = []
        handle = self.server.scheduler.handle

        def heard(*events: Any) -> Step:
            self.steps.append(handle(*events))
            return self.steps[-1]

        monkeypatch.setattr(self.server.scheduler, "handle", heard)

    def kinds(self) -> list[Kind]:
        return [each.kind for step in self.steps for each in happenings(step)]

    def told(self) -> list[tuple[str, ...]]:
        found = [notices(each) for step in self.steps for each in happenings(step)]
        return [each for each in found if each]


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Listening:
    return Listening(monkeypatch)


def test_a_job_without_gpus_starts_on_cpus(listening: Listening) -> None:
    listening.server.submit(gpus=0, cpus=1)
    found = [each for step in listening.steps for each in happenings(step)]
    (started,) = [each for each in found if each.kind is Kind.STARTED]
    assert words(started, {}) == "started on CPUs alone"


def test_a_retry_is_not_an_end(listening: Listening) -> None:
    server = listening.server
    id = server.submit(notify="start,end,fail")
    server.exit(id, LOST)
    server.exit(id, Exit(Cause.FAILURE, 3))
    assert [str(kind) for kind in listening.kinds()] == [
        *("submitted", "started", "retried", "started", "ended"),
    ]
    assert listening.told() == [("start",), ("start",), ("end", "fail")]
    *_, retried = (h for s in listening.steps for h in happenings(s) if h.kind is Kind.RETRIED)
    assert words(retried, {}) == "retried: its processes were lost"


@pytest.mark.parametrize(
    ("exit", "asked", "expected"),
    [
        (Exit(Cause.SUCCESS, 0), "end", ("end",)),
        (Exit(Cause.SUCCESS, 0), "fail,oom", ()),
        (Exit(Cause.FAILURE, 1), "fail", ("fail",)),
        (Exit(Cause.FAILURE, 1), "oom", ()),
        (OOM, "oom,fail", ("fail", "oom")),
    ],
)
def test_an_owner_is_told_what_they_asked_for(
    listening: Listening, exit: Exit, asked: str, expected: tuple[str, ...]
) -> None:
    id = listening.server.submit(notify=asked)
    listening.server.exit(id, exit)
    assert listening.told() == ([expected] if expected else [])


def test_80_percent_of_the_limit_are_told_once_even_by_the_next_daemon(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = listening.server
    id: JobId = server.submit(time_limit_s=100, notify="limit80")
    server.pass_time(79)
    assert listening.told() == []
    server.pass_time(2)
    assert listening.told() == [("limit80",)]
    again = Listening(monkeypatch)
    again.server.scheduler.restore([server.job(id)])
    again.server.pass_time(90)
    assert again.told() == []
    server.pass_time(10)
    assert listening.told() == [("limit80",)]


def test_who_did_not_ask_is_told_nothing_at_80_percent(listening: Listening) -> None:
    server = listening.server
    id = server.submit(time_limit_s=100, notify="end")
    server.pass_time(90)
    assert not server.job(id).current.nearing
