"""The record of processes that use GPUs outside of the queue."""

from __future__ import annotations

import json
import os
from pathlib import Path

from carma_testing import a_gpu
from carmad.config import Retention
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import JobId
from carmad.daemon.monitor import Externals
from carmad.store.retention import KEPT_PER_USER
from carmad.store.sql import SqlStore
from carmad.store.values import External, ExternalTotals
from tests.carmad.core.test_adopt import outsider
from tests.daemon import NO_KERNELS, Carmad, running, until

GPU, OTHER = a_gpu(0).id, a_gpu(1).id
GONE = 1 << 22  # beyond the largest pid


def reading(at: float, *uses: ProcessUse) -> list[GpuSample]:
    return [GpuSample(GPU, at, processes=uses), GpuSample(OTHER, at)]


def use(pid: int = GONE, mib: int | None = 1000, job: int | None = None) -> ProcessUse:
    owner = None if job is None else JobId(job)
    return ProcessUse(pid, mib, job=owner, user="ann", command="python")


def external(**its: object) -> External:
    usual = {"gpu": GPU, "pid": 7, "started_at": 1.0, "user": "ann", "command": "python"}
    return External(**usual | {"seen_from": 2.0, "seen_to": 3.0, "peak_mib": 1000} | its)  # type: ignore[arg-type]


def test_who_is_seen_from_when_to_when_and_with_how_much() -> None:
    externals = Externals(least_mib=500)
    externals.add(reading(10.0, use(mib=600), use(9, mib=100), use(11, job=3)))
    externals.add(reading(11.0, use(mib=900), use(9, mib=100)))
    (found,) = externals.take()
    assert (found.gpu, found.pid, found.user, found.peak_mib) == (GPU, GONE, "ann", 900)
    assert (found.started_at, found.seen_from, found.seen_to) == (10.0, 10.0, 11.0)
    externals.add(reading(12.0, use(mib=700)))
    externals.add(reading(13.0))
    (found,) = externals.take()
    assert (found.seen_to, found.peak_mib) == (12.0, 900)
    assert externals.take() == []


def test_a_process_whose_memory_is_not_known_counts_and_its_own_start_is_recorded() -> None:
    externals = Externals(least_mib=500)
    externals.add(reading(10.0, use(os.getpid(), mib=None)))
    (found,) = externals.take()
    assert found.peak_mib is None
    assert found.started_at > 1e9


def test_the_same_process_is_one_row(tmp_path: Path) -> None:
    store = SqlStore.open(tmp_path / "carma.db")
    store.record_externals([external()])
    store.record_externals([external(seen_from=5.0, seen_to=3602.0, peak_mib=None)])
    store.record_externals([external(peak_mib=800, seen_to=3602.0)])
    store.record_externals([external(user="bob", pid=8, seen_to=9.0, peak_mib=None)])
    totals, latest = store.externals(0.0)
    assert totals[0] == ExternalTotals("ann", 1, 1.0, 1000)
    assert (totals[1].user, totals[1].peak_mib) == ("bob", None)
    assert [one.user for one in latest] == ["ann", "bob"]
    assert store.externals(0.0, "bob")[1] == latest[1:]
    assert store.externals(10.0)[1] == latest[:1]
    store.close()


def test_old_ones_and_too_many_of_a_user_are_forgotten(tmp_path: Path) -> None:
    store = SqlStore.open(tmp_path / "carma.db")
    now = 100 * 86_400.0
    many = [external(pid=n, seen_to=now - n) for n in range(1, KEPT_PER_USER + 5)]
    store.record_externals([*many, external(user="bob", pid=1, started_at=2.0, seen_to=now)])
    store.record_externals([external(user="old", pid=9_999, seen_to=now - 2 * 86_400)])
    store.purge(now, Retention(ended_days=1))
    counts = {each.user: each.processes for each in store.externals(0.0)[0]}
    assert counts == {"ann": KEPT_PER_USER, "bob": 1}
    store.close()


def test_stats_tell_of_them(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as daemon:
        with outsider(daemon):
            until(lambda: daemon.gpus()[0]["outsiders"][0]["memory_mib"] > 600, "its memory")
        daemon.stop()  # what is not on disk yet is written then
        daemon.start()
        _told(daemon)


def _told(daemon: Carmad) -> None:
    said = json.loads(daemon.carma("stats", "--json"))
    (totals,), (seen,) = said["external"], said["external_processes"]
    assert (totals["processes"], seen["gpu"]["index"]) == (1, 0)
    assert totals["user"] == seen["user"]
    assert seen["peak_mib"] > 600
    assert "outside of the queue: " in daemon.carma("stats")
