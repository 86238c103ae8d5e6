"""The recorded timelines over the API, with the real core, store, engine and server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from carmad.api.timeline import MOST_JOBS
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import JobId
from tests import daemon as carmad
from tests.api_server import Daemon, as_uid, running, user_name

NOBODY = 65534


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="carma-test-") as folder:
        Path(folder).chmod(0o755)  # for other users
        with running(Path(folder)) as daemon:
            yield daemon


def submit(daemon: Daemon, **options: object) -> int:
    body = {"argv": ["true"], "cwd": "/", "memory_mib": 4000, "name": "mine"} | options
    status, out = daemon.call("POST", "/v1/jobs", body)
    assert status == 201, out
    return int(out["id"])


def timeline(daemon: Daemon, query: str = "") -> dict[str, Any]:
    status, out = daemon.call("GET", f"/v1/timeline{query}")
    assert status == 200, out
    return out


def known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def test_a_job_is_drawn_on_its_gpu_with_what_it_was_promised_and_its_marks(daemon: Daemon) -> None:
    id = submit(daemon)
    daemon.run_kernel(id, mib=3000)
    daemon.exit(id)
    daemon.sample()
    out = timeline(daemon)
    assert out["step_s"] == 60 and len(out["times"]) <= 1000
    (gpu,) = [each for each in out["gpus"] if each["jobs"]]
    (series,) = gpu["jobs"]
    assert (series["id"], series["name"], series["label"]) == (id, "mine", str(id))
    assert max(known(series["used_max_mib"])) == 3000
    assert 0 < max(known(series["promised_mib"])) == max(known(gpu["promised_mib"]))
    assert [mark["kind"] for mark in gpu["marks"]] == ["started", "running", "succeeded"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_others_see_whose_job_it_is_but_not_its_name(daemon: Daemon) -> None:
    id = submit(daemon, name="secret-model")
    daemon.run_kernel(id)
    status, out = as_uid(NOBODY, daemon.path, "GET", "/v1/timeline")
    assert status == 200 and "secret-model" not in str(out)
    (series,) = [series for gpu in out["gpus"] for series in gpu["jobs"]]
    assert (series["label"], series["user"], series["name"]) == (str(id), user_name(), "-")
    daemon.exit(id)
    assert "secret-model" not in str(as_uid(NOBODY, daemon.path, "GET", "/v1/timeline"))


def test_one_gpu_a_wider_step_and_what_cannot_be_answered(daemon: Daemon) -> None:
    first = daemon.gpus[0]
    for ref in (first.id, str(first.index)):
        (gpu,) = timeline(daemon, f"?gpu={ref}&step_s=61")["gpus"]
        assert gpu["id"] == first.id
    assert timeline(daemon, "?step_s=61")["step_s"] == 120
    assert daemon.call("GET", "/v1/timeline?gpu=GPU-none")[0] == 404
    future = "2100-01-01T00:00:00Z"
    assert daemon.call("GET", f"/v1/timeline?since={future}")[0] == 404
    assert daemon.call("GET", "/v1/timeline?since=yesterday")[0] == 422
    whole = timeline(daemon, "?since=2020-01-01T00:00:00Z")
    assert (whole["step_s"], len(whole["times"])) in {(120, 720), (120, 721)}
    assert all(len(gpu["used_mib"]) == len(whole["times"]) for gpu in whole["gpus"])


def test_a_drain_is_marked_with_its_reason(daemon: Daemon) -> None:
    daemon.call("POST", "/v1/gpus/0/drain", {"reason": "loud fan"})
    marks = timeline(daemon, "?gpu=0")["gpus"][0]["marks"]
    assert [(mark["kind"], mark["job"]) for mark in marks] == [("drained", None)]
    assert "loud fan" in marks[0]["text"]


def test_a_thousand_short_jobs_are_drawn_as_a_bounded_number_of_series(daemon: Daemon) -> None:
    now, gpu = daemon.service.now(), daemon.gpus[0].id
    recorder = daemon.service.timeline
    with recorder._lock:
        for n in range(1, 1001):
            use = ProcessUse(n, 10, job=JobId(n))
            sample = GpuSample(gpu, now - 3600 + n * 3.5, 10, 1, 0.5, processes=(use,))
            recorder._read([sample])
    since = datetime.fromtimestamp(now - 3600, UTC).isoformat().replace("+00:00", "Z")
    (out,) = timeline(daemon, f"?gpu={gpu}&since={since}")["gpus"]
    assert len(out["jobs"]) <= MOST_JOBS + 1
    assert all(len(series["used_mib"]) <= 61 for series in out["jobs"])


def test_a_real_daemon_goes_on_with_its_timeline_after_a_restart(tmp_path: Path) -> None:
    with carmad.running(tmp_path, "2xA100-40GB", **carmad.NO_KERNELS) as real:
        id = real.submit(*carmad.train(memory_mib=4000, seconds=0.5, warmup=0.1), name="mine")
        real.ended(id)
        (before,) = [each for gpu in real.get("/v1/timeline")["gpus"] for each in gpu["jobs"]]
        real.stop()
        real.start()
        real.await_ready()
        after = real.get("/v1/timeline")
        (series,) = [each for gpu in after["gpus"] for each in gpu["jobs"]]
        assert (series["id"], series["name"]) == (id, "mine")
        marks = [mark["kind"] for gpu in after["gpus"] for mark in gpu["marks"]]
        assert marks[0] == "started" and marks[-1] == "succeeded"
        assert max(known(series["used_max_mib"])) == max(known(before["used_max_mib"])) > 0
