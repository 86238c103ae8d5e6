"""Reservations: who may start where and when, in the core and through the command line."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from carma_testing import FakeServer, a_job, a_spec
from carma_testing.builders import changed
from carmad.api import reservations as api
from carmad.api.fairness import booking_hours
from carmad.api.reservations import ReserveIn
from carmad.api.wire import stamp
from carmad.config import Limits, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Prediction
from carmad.core.jobs.history import Durations
from carmad.core.jobs.states import JobState
from carmad.core.messages import CancelRequested, LimitRequested, Reserved, Unreserved
from carmad.core.rules.limits import LAPSE_S, TIMES, Limit, Reservation
from carmad.errors import CarmaError
from carmad.http.connections import Peer
from carmad.store.sql import SqlStore
from tests.daemon import NO_KERNELS, Carmad, running, until
from tests.owners import who

HOUR_S, DAY_S, WEEK_S = 3600.0, 86_400.0, 604_800.0
NOON = 12 * HOUR_S


def reserving(server: FakeServer, *gpus: int, **changes: object) -> Reservation:
    """From noon, for ada, an hour long, unless `changes` say otherwise."""
    chosen = tuple(server.gpus[n].id for n in gpus)
    made = Reservation(1, chosen, ("ada",), (NOON,), HOUR_S, "root")
    made = replace(made, **changes)  # type: ignore[arg-type]
    server.tell(Reserved(server.now, made))
    return made


def starts(server: FakeServer, **spec: object) -> bool:
    """Whether such a job starts at once; it is gone afterwards."""
    id = server.submit(**spec)
    started = server.job(id).holds_gpus
    if started:
        server.exit(id)
        server.sample()
    else:
        server.tell(CancelRequested(server.now, id, "root"))
    return started


# -- in the core


def test_a_job_starts_if_it_ends_before_the_reservation() -> None:
    server = FakeServer(1)
    reserving(server, 0)
    server.sample(NOON - 2 * HOUR_S)
    assert starts(server, user="eve", time_limit_s=2 * HOUR_S)
    assert not starts(server, user="eve", time_limit_s=2 * HOUR_S + 1)
    assert starts(server, user="eve", expected_s=HOUR_S), "a declared length counts"
    assert starts(server, user="eve", expected_s=9 * HOUR_S, time_limit_s=HOUR_S)
    assert not starts(server, user="eve"), "its length is not known"
    assert starts(server, user="ada"), "it is hers"
    id = server.submit(user="eve", time_limit_s=3 * HOUR_S)
    (reason,) = server.scene.decisions[id].placement.verdicts[0].refused
    assert (reason.code, reason.need, reason.have) == ("reservation_ahead", NOON, 3 * HOUR_S)
    assert reason.detail == "ada"


def test_a_job_of_unknown_length_starts_before_the_notice() -> None:
    server = FakeServer(1)
    reserving(server, 0, starts=(2 * DAY_S,))
    server.sample(DAY_S - 1)
    assert starts(server, user="eve")
    server.sample(2)
    id = server.submit(user="eve")
    assert server.why(id)[0] == {0: ["reservation_notice"]}


def test_only_its_users_start_while_it_lasts_and_then_everybody() -> None:
    server = FakeServer(1)
    reserving(server, 0)
    server.sample(NOON)
    eve = server.submit(user="eve", time_limit_s=60.0)
    assert server.why(eve)[0] == {0: ["reservation"]}
    server.sample(HOUR_S - 1)
    assert not server.job(eve).holds_gpus
    server.sample(1)
    assert server.job(eve).holds_gpus
    assert server.scheduler.snapshot(server.now).reservations == ()
    assert server.steps[-2].reservations == () or server.steps[-1].reservations == ()


def test_whom_a_reservation_keeps_at_the_head_of_the_line_blocks_nobody() -> None:
    server = FakeServer(3)
    reserving(server, 2)
    server.sample(NOON - HOUR_S)
    wide = server.submit(user="eve", gpus=3)
    assert not server.job(wide).holds_gpus
    assert starts(server, user="eve", time_limit_s=60.0)
    server.sample(2 * HOUR_S)
    assert server.job(wide).holds_gpus


def test_maintenance_is_for_nobody() -> None:
    server = FakeServer(2)
    reserving(server, 0, 1, users=())
    server.sample(NOON)
    assert not starts(server, user="ada", time_limit_s=60.0)


def test_the_verdict_on_a_waiting_job_changes_as_time_passes() -> None:
    """With nothing but time: the job's demand is the same object throughout."""
    server = FakeServer(2)
    blocker = server.submit(user="ada", gpus=2, exclusive=True)
    reserving(server, 0)
    waiting = server.submit(user="eve", gpus=1, time_limit_s=HOUR_S, exclusive=True)
    server.sample(NOON - HOUR_S + 1)
    server.exit(blocker)
    assert server.job(waiting).gpus == (server.gpus[1].id,)
    second = server.submit(user="eve", time_limit_s=HOUR_S - 1, exclusive=True)
    assert server.job(second).gpus == (server.gpus[0].id,)


def test_a_job_that_is_still_there_is_told_and_not_stopped() -> None:
    server = FakeServer(1)
    id = server.submit(user="eve")
    mine = server.submit(user="ada")
    reserving(server, 0)
    server.sample(NOON - 1)
    note = "is still on GPU 0, which is now reserved (ada); it is not stopped for that"
    assert note not in server.job(id).notes
    server.pass_time(3)
    assert server.job(id).notes.count(note) == 1
    assert not server.stops
    assert note not in server.job(mine).notes


def test_a_weekly_one_recurs_and_ends_after_its_last_time() -> None:
    server = FakeServer(1)
    reserving(server, 0, starts=(NOON, NOON + WEEK_S))
    server.sample(NOON + HOUR_S)
    assert starts(server, user="eve", time_limit_s=WEEK_S - HOUR_S)
    assert not starts(server, user="eve", time_limit_s=WEEK_S)
    server.sample(WEEK_S - HOUR_S)
    assert not starts(server, user="eve", time_limit_s=1.0)
    server.sample(HOUR_S)
    assert starts(server, user="eve")
    assert not server.scene.reservations


def test_two_cannot_have_a_gpu_at_the_same_time() -> None:
    server = FakeServer(2)
    first = reserving(server, 0, starts=(NOON, NOON + WEEK_S))
    reserving(server, 1, 0, id=2, starts=(NOON + WEEK_S + HOUR_S - 1,))
    assert server.scene.reservations == (first,)
    reserving(server, 1, id=1)
    assert server.scene.reservations == (first,), "an id is one reservation's"
    other = reserving(server, 1, id=2)
    after = reserving(server, 0, id=3, starts=(NOON + HOUR_S,))
    assert server.scene.reservations == (first, other, after)
    step = server.tell(Unreserved(server.now, 2, "root"))
    assert step.reservations == server.scene.reservations == (first, after)


def test_a_restored_core_makes_the_same_decisions() -> None:
    server = FakeServer(1)
    made = reserving(server, 0)
    step = next(step for step in server.steps if step.reservations)
    assert step.reservations == (made,)
    server.scheduler.restore((), reservations=step.reservations)
    assert not starts(server, user="eve")


def test_how_long_a_job_lasts_at_most() -> None:
    assert a_job().at_most_s(0.0) == float("inf")
    known = a_job(spec=a_spec(time_limit_s=100.0, expected_s=50.0))
    assert known.at_most_s(0.0) == 50.0
    often = replace(known, prediction=Prediction(20.0, "history", at_most_s=70.0))
    assert often.at_most_s(0.0) == 70.0
    runs = changed(often, state=JobState.RUNNING, started_at=0.0)
    assert [runs.at_most_s(t) for t in (40.0, 80.0, 120.0)] == [30.0, 20.0, 0.0]
    only_predicted = replace(runs, spec=a_spec())
    assert only_predicted.at_most_s(80.0) == float("inf"), "it has outlived the prediction"


def test_what_nine_of_ten_runs_take() -> None:
    durations = Durations()
    for seconds in range(1, 11):
        durations.add("a", float(seconds))
    assert durations.at_most("a") == 9.0
    durations.add("b", 5.0)
    assert durations.at_most("b") is None, "one run says little"


# -- as asked for


ROOT = Peer(0, 0, "root", admin=True)
ADA = Peer(1000, 1000, "ada", admin=False, groups=("lab", "staff"))


def asked(server: FakeServer, peer: Peer = ROOT, **body: object) -> Reservation:
    given = {"starts_at": stamp(server.now + NOON), "lasts_s": HOUR_S} | body
    return api.reservation(ReserveIn(**given), server.scene, peer)  # type: ignore[arg-type]


def booked(server: FakeServer, peer: Peer = ADA, **body: object) -> Reservation:
    made = asked(server, peer, gpus=1, book=True, **body)
    server.tell(Reserved(server.now, made))
    assert made in server.scene.reservations
    return made


def indices(server: FakeServer, made: Reservation) -> list[int]:
    return [gpu.index for gpu in server.gpus if gpu.id in made.gpus]


def test_the_best_gpus_are_chosen() -> None:
    server = FakeServer(4)
    assert indices(server, asked(server, gpus=2)) == [2, 3]
    server.fault[server.gpus[3].id] = "lost"
    server.sample()
    assert indices(server, asked(server, gpus=2)) == [1, 2]
    server.submit(user="eve", gpus=3, time_limit_s=HOUR_S, exclusive=True)
    assert indices(server, asked(server, gpus=2)) == [1, 2], "it has ended by then"
    reserving(server, 2)
    assert indices(server, asked(server, gpus=2)) == [0, 1]
    assert indices(server, asked(server, on=["0", server.gpus[3].id])) == [0, 3]


def test_what_cannot_be_reserved_is_refused_with_the_reason() -> None:
    server = FakeServer(2)
    reserving(server, 0)
    for body, words in (
        ({"gpus": 2}, "only 1 of 2 GPUs are not reserved then, by 1 (ada)"),
        ({"gpus": 3}, "there are only 2 GPUs"),
        ({"on": ["all"]}, "these GPUs are reserved then, by 1 (ada)"),
        ({"on": ["7"]}, "there is no GPU '7'"),
        ({}, "say how many GPUs, or which"),
        ({"gpus": 1, "on": ["0"]}, "say how many GPUs, or which"),
        ({"gpus": 1, "lasts_s": 2 * WEEK_S, "weekly": True}, "it would last longer than a week"),
    ):
        with pytest.raises(CarmaError) as refused:
            asked(server, **body)
        assert refused.value.message == words
    server.sample(2 * HOUR_S)
    with pytest.raises(CarmaError, match="is over"):
        asked(server, gpus=1, starts_at=stamp(HOUR_S))


def refused(server: FakeServer, peer: Peer = ADA, **body: object) -> str:
    with pytest.raises(CarmaError) as why:
        asked(server, peer, **{"gpus": 1, "book": True, **body})
    return why.value.message


def allow(server: FakeServer, subject: str, hours: float) -> None:
    server.tell(LimitRequested(server.now, Limit(subject, booking=hours)))


def test_users_book_for_themselves_within_their_limit() -> None:
    server = FakeServer(2)
    assert refused(server) == "ada may not book GPUs"
    allow(server, "default", 3)
    made = booked(server, lasts_s=2 * HOUR_S)
    assert (made.users, made.by, made.charged) == (("ada",), "ada", ("ada",))
    more = "ada may book 3 GPU-hours, has booked 2, and this takes 1.5"
    assert refused(server, lasts_s=1.5 * HOUR_S) == more
    server.sample(NOON + HOUR_S)
    booked(server, lasts_s=1.5 * HOUR_S)  # an hour of the first is over
    assert refused(server, users=["bo"]) == "a booking is for yourself"
    assert refused(server, starts_at=stamp(server.now + 14 * DAY_S)).startswith("it would end in")
    assert booking_hours(who("ada"), server.scene) == pytest.approx(2.5)


def test_the_users_of_a_group_share_its_bookings() -> None:
    server = FakeServer(3)
    allow(server, "@lab", 2)
    booked(server, replace(ADA, user="bo", groups=("lab",)))
    assert booked(server).charged == ("@lab",)
    assert refused(server) == "@lab may book 2 GPU-hours, has booked 2, and this takes 1"
    allow(server, "ada", 9)
    assert refused(server).startswith("@lab may book 2"), "both limits hold"
    assert refused(server, replace(ADA, groups=("staff",), user="eve")) == "eve may not book GPUs"


def test_a_booking_that_nobody_uses_lapses() -> None:
    server = FakeServer(2)
    allow(server, "default", 9)
    booked(server, lasts_s=4 * HOUR_S)
    server.sample(NOON)
    (one,) = server.scene.reservations
    assert one.idle_since == server.now
    (text,) = (each["text"] for each in api.reservations_out(server.scene))
    assert "not used, so it ends at" in text
    server.sample(LAPSE_S - 1)
    job = server.submit(user="ada", on=str(server.gpus[1].index))
    assert server.job(job).holds_gpus
    server.sample(LAPSE_S)
    (one,) = server.scene.reservations
    assert one.idle_since is None, "it is in use"
    server.exit(job)
    server.sample(LAPSE_S / 2)
    eve = server.submit(user="eve", on=str(server.gpus[1].index))
    assert not server.job(eve).holds_gpus, "it is booked"
    server.sample(LAPSE_S / 2)
    server.sample(1)
    assert server.scene.reservations == ()
    assert server.job(eve).holds_gpus


def test_what_an_administrator_reserves_does_not_lapse() -> None:
    server = FakeServer(1)
    reserving(server, 0, lasts_s=9 * HOUR_S)
    server.sample(NOON + 8 * HOUR_S)
    assert len(server.scene.reservations) == 1


def test_a_user_has_only_so_many_bookings_and_administrators_as_they_like() -> None:
    server = FakeServer(1)
    allow(server, "ada", 1000)
    for n in range(api.MOST_EACH):
        booked(server, starts_at=stamp(server.now + (n + 1) * HOUR_S))
    assert refused(server, starts_at=stamp(server.now + 99 * HOUR_S)) == "you have 10 bookings"
    assert asked(server, on=["0"], starts_at=stamp(server.now + 99 * HOUR_S)).charged == ()


def test_a_weekly_one_keeps_its_hour_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Copenhagen")
    time.tzset()
    try:
        server = FakeServer(1)
        server.sample(datetime(2026, 10, 1, 12).timestamp())
        first = datetime(2026, 10, 19, 9).timestamp()
        made = asked(server, gpus=1, starts_at=stamp(first), weekly=True)
        assert len(made.starts) == TIMES
        hours = {datetime.fromtimestamp(start).strftime("%a %H:%M") for start in made.starts}
        assert hours == {"Mon 09:00"}
        assert made.starts[1] - first == WEEK_S + HOUR_S, "summer time ends in between"
    finally:
        monkeypatch.undo()
        time.tzset()


# -- on disk


def test_reservations_survive_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    server = FakeServer(1)
    made = reserving(server, 0, users=("ada", "bo"), starts=(NOON, NOON + WEEK_S))
    step = next(step for step in server.steps if step.reservations)
    store = SqlStore.open(tmp_path / "db")
    store.commit(step)
    store.close()
    store = SqlStore.open(tmp_path / "db")
    assert store.restore().reservations == (made,)
    with store._transaction() as connection:
        connection.exec_driver_sql("UPDATE reservations SET body = '{}'")
    assert store.restore().reservations == ()
    assert "reservation 1" in store.damage.reasons()
    store.close()


# -- through the command line


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


def codes(daemon: Carmad, job: int) -> set[str]:
    verdicts = daemon.why(job)["verdicts"]
    return {reason["code"] for verdict in verdicts for reason in verdict["refused"]}


def test_reserving_from_the_command_line(daemon: Carmad) -> None:
    other = next(user.pw_name for user in pwd.getpwall() if user.pw_uid != os.getuid())
    assert daemon.carma("reserve") == "nothing is reserved\n"
    said = daemon.carma("reserve", "--on", "0", "--users", other, "--for", "4h")
    assert said.startswith(f"1: GPU 0 for {other}, from ")
    assert daemon.gpus()[0]["state"] == "reserved"
    assert f"for {other} until" in daemon.carma("gpus")
    refused = daemon.carma("reserve", "--gpus", "2", "--for", "1h", rc=1)
    assert f"only 1 of 2 GPUs are not reserved then, by 1 ({other})" in refused
    assert "no user 'nobody-at-all'" in daemon.carma(
        "reserve", "--gpus", "1", "--users", "nobody-at-all", "--for", "1h", rc=1
    )

    wide = daemon.sh("true", gpus=2, time_limit_s=60)
    until(lambda: "reservation" in codes(daemon, wide), "the job to wait")
    daemon.kill()
    daemon.start()
    until(lambda: "reservation" in codes(daemon, wide), "the job to wait")
    assert "is reserved until" in daemon.carma("why", str(wide))
    assert "reservation 1 is cancelled" in daemon.carma("reserve", "--cancel", "1")
    assert daemon.ended(wide)["state"] == "succeeded"
    assert "there is no reservation 1" in daemon.carma("reserve", "--cancel", "1", rc=1)


def test_a_weekly_maintenance_is_listed_with_who_may_still_be_there(daemon: Carmad) -> None:
    stays = daemon.sh("sleep 60")
    daemon.await_state(stays, "starting", "running")
    on = daemon.job(stays)["gpus"][0]["index"]
    words = ("--from", "mon 9:00", "--for", "2h", "--weekly")
    daemon.carma("reserve", "--on", "all", *words)
    (made,) = json.loads(daemon.carma("reserve", "--json"))["reservations"]
    assert (made["users"], made["times_left"], made["active"]) == ([], TIMES, False)
    assert (
        datetime.fromisoformat(made["starts_at"]).astimezone().strftime("%a %H:%M") == "Mon 09:00"
    )
    listed = daemon.carma("reserve")
    assert "GPUs 0, 1 for maintenance, from" in listed
    assert f"job {stays} of {pwd.getpwuid(os.getuid()).pw_name} may still be there then" in listed
    assert daemon.gpus()[1 - on]["state_detail"].startswith("reserved for maintenance from")
    short = daemon.sh("true", time_limit_s=60)
    assert daemon.ended(short)["state"] == "succeeded"
    daemon.cancel(stays)


# -- and the line


def on(server: FakeServer, id: JobId) -> list[int]:
    return [gpu.index for gpu in server.gpus if gpu.id in server.job(id).gpus]


@pytest.mark.parametrize("policy", ["exclusive", "magm", "carma"])
@pytest.mark.parametrize("backfill", [None, 0])
def test_a_reservation_is_of_use_to_its_users_whoever_is_first_in_line(
    policy: str, backfill: int | None
) -> None:
    server = FakeServer(2, Settings(policy=policy, limits=Limits(backfill=backfill)))
    reserving(server, 1, starts=(0.0,))
    head = server.submit(user="bo", gpus=2)
    assert on(server, server.submit(user="ada")) == [1]
    assert on(server, server.submit(user="ada", gpus=2)) == []
    assert on(server, head) == []


def test_the_head_is_promised_what_is_free_when_a_reservation_is_over() -> None:
    server = FakeServer(2, Settings(policy="exclusive"))
    reserving(server, 1, starts=(0.0,))
    head = server.submit(user="bo", gpus=2)
    (promised,) = server.scene.decisions[head].placement.reasons
    assert (promised.code, promised.need) == ("promised", HOUR_S)
    assert on(server, server.submit(user="bo")) == []
    assert on(server, server.submit(user="bo", time_limit_s=HOUR_S / 2)) == [0]


def test_a_reservation_ahead_delays_only_a_head_that_does_not_end_before() -> None:
    server = FakeServer(1, Settings(policy="exclusive"))
    reserving(server, 0)
    server.sample(NOON - 2 * HOUR_S)
    running = server.submit(user="bo", time_limit_s=HOUR_S)
    ends_before = server.submit(user="bo", time_limit_s=HOUR_S / 2)
    (promised,) = server.scene.decisions[ends_before].placement.reasons
    assert promised.need == pytest.approx(HOUR_S, abs=1)
    server.tell(CancelRequested(server.now, ends_before, "root"))
    does_not = server.submit(user="bo", time_limit_s=2 * HOUR_S)
    (promised,) = server.scene.decisions[does_not].placement.reasons
    assert promised.need == pytest.approx(3 * HOUR_S, abs=1)
    assert server.job(running).holds_gpus
