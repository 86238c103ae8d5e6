"""The figures for Prometheus: how they are counted, what is read off a scene, how they look."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from carma_testing import FakeServer, a_gpu, a_gpu_view, a_job, a_spec, a_view
from carmad import configfile
from carmad.config import Metrics, Monitor, Settings
from carmad.core.happenings import happenings
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.findings import Estimate, Usage
from carmad.core.jobs.tasks import JobsById
from carmad.core.messages import DrainRequested, HoldRequested, RequeueRequested, Submitted
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.metrics import figures
from carmad.metrics.declared import METRICS, MOST_LABEL
from carmad.metrics.figures import MOST_ESTIMATORS, OTHER, Counts
from carmad.metrics.figures import page as page_of
from carmad.store.database import StoreFull
from tests.api_server import Connection, as_user, running
from tests.attack.users import HOSTILE, needs_root
from tests.waiting import PATIENCE_S

GIB = 1 << 30
OOM = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory")
Values = dict[tuple[str, ...], float]


class Page:
    """A page of metrics, as Prometheus' own library reads it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def of(self, name: str) -> Values:
        """By the values of its labels, in the order of their names."""
        return {
            tuple(label for _, label in sorted(each.labels.items())): each.value
            for each in self.samples
            if each.name == name
        }

    def one(self, name: str, *labels: str) -> float:
        return self.of(name)[labels]


def page(counts: Counts, figures: Iterable[figures.Figure] = ()) -> Page:
    return Page(page_of(figures, counts).decode())


class Counted(FakeServer):
    """A server whose steps are counted."""

    def __init__(self, **options: Any) -> None:
        self.counts = Counts()
        super().__init__(**options)

    def commit(self, step: Any) -> None:
        super().commit(step)
        self.counts.on_happenings(list(happenings(step)), {})

    @property
    def page(self) -> Page:
        return page(self.counts, figures.of_scene(self.scene, users=False, jobs=True))


# -- counted


def test_ends_are_counted_once_by_outcome_and_cause() -> None:
    server = Counted()
    server.exit(server.submit())
    server.exit(server.submit(), Exit(Cause.FAILURE, 3))
    server.submit(gpus=8)  # never starts
    assert server.page.of("carma_jobs_ended_total") == {
        ("succeeded",): 1,
        ("failed",): 1,
        ("cancelled",): 0,
        ("timed_out",): 0,
        ("out_of_memory",): 0,
    }
    assert server.page.one("carma_jobs_submitted_total") == 3
    assert server.page.one("carma_attempts_ended_total", "success") == 1
    assert server.page.one("carma_attempts_ended_total", "failure") == 1


def test_running_out_of_memory_is_counted_by_what_became_of_the_job() -> None:
    settings = Settings()
    server = Counted(gpus=1, settings=settings)
    for recovers in (True, False):
        beside = server.submit(memory_mib=1000)
        server.run_kernel(beside)
        server.pass_time(2 * settings.monitor.window_s)
        id = server.submit(memory_mib=1000)
        server.run_kernel(id)
        server.sample()
        server.exit(id, OOM)  # it had a neighbour, and is retried alone
        server.exit(beside)
        server.sample(1.0)
        server.exit(id, None if recovers else OOM)
    assert server.page.of("carma_ooms_total") == {("retried",): 2, ("given_up",): 1}
    assert server.page.one("carma_jobs_recovered_total") == 1
    assert server.page.one("carma_attempts_ended_total", "gpu_oom") == 3
    assert server.page.one("carma_jobs_ended_total", "out_of_memory") == 1


def test_a_requeue_by_its_owner_is_no_end_of_an_attempt() -> None:
    server = Counted()
    id = server.submit()
    server.exit(id)
    server.tell(RequeueRequested(server.now, server.last(id), "ada"))
    assert server.page.one("carma_attempts_ended_total", "success") == 1
    assert sum(server.page.of("carma_attempts_ended_total").values()) == 1


def test_the_wait_for_the_first_start_is_counted_and_no_other() -> None:
    server = Counted(gpus=1)
    first = server.submit(exclusive=True)
    second = server.submit(exclusive=True)
    server.sample(100.0)
    server.exit(first)
    server.exit(second, Exit(Cause.LOST))  # it starts once more
    found = server.page
    assert found.one("carma_job_wait_seconds_count") == 2
    assert 100.0 <= found.one("carma_job_wait_seconds_sum") < 101.0
    assert found.one("carma_job_wait_seconds_bucket", "60.0") == 1
    assert found.one("carma_job_wait_seconds_bucket", "300.0") == 2


def succeeded(*estimates: Estimate, peak_mib: int = 1000) -> Counts:
    counts = Counts()
    server = FakeServer()
    id = server.submit(memory_mib=2000)
    server.exit(id)
    (end,) = [each for step in server.steps[-1:] for each in happenings(step)]
    for each in estimates:
        job = replace(server.last(id), estimate=each, usage=Usage(peak_mib=peak_mib))
        counts.on_happenings([replace(end, job=job)], {})
    return counts


def test_estimates_are_compared_with_the_peak_by_estimator() -> None:
    other = Estimate(500, "horus")
    found = page(succeeded(Estimate(1250, "trace", others=(other,))))
    assert found.of("carma_estimate_ratio_sum") == {("trace",): 1.25, ("horus",): 0.5}
    assert found.one("carma_estimate_ratio_bucket", "trace", "1.1") == 0
    assert found.one("carma_estimate_ratio_bucket", "trace", "1.25") == 1
    unmeasured = page(succeeded(Estimate(1250, "trace"), peak_mib=0))
    assert unmeasured.of("carma_estimate_ratio_sum") == {}


def test_a_plugin_that_names_its_answers_at_will_makes_few_series() -> None:
    many = [Estimate(1000, f"plugin {n}") for n in range(100)]
    found = page(succeeded(*many)).of("carma_estimate_ratio_count")
    assert len(found) == MOST_ESTIMATORS + 1
    assert found[OTHER,] == 100 - MOST_ESTIMATORS


# -- read off a scene


def test_gpus_are_told_in_base_units() -> None:
    server = Counted(gpus=1)
    id = server.submit(memory_mib=4096)
    server.run_kernel(id, 2048)
    (gpu,) = server.gpus
    server.sm_active[gpu.id], server.used_mib[gpu.id] = 0.5, 1024
    server.sample(10.0)
    found, its = server.page, ("0", gpu.id)
    for name, value in {
        "memory_size_bytes": 40 * GIB,
        "memory_used_bytes": 3 * GIB,
        "memory_promised_bytes": 4 * GIB,
        "memory_external_bytes": GIB,
        "sm_active_ratio": 0.5,
        "energy_joules_total": 10 * 100,
        "jobs": 1,
        "drained": 0,
        "faulty": 0,
        "stale": 0,
    }.items():
        assert found.one(f"carma_gpu_{name}", *its) == value, name
    assert found.of("carma_gpu_power_watts") == {}, "it is not known"
    assert found.of("carma_gpu_info") == {("0", gpu.name, gpu.id): 1}


def test_a_gpu_that_is_drained_faulty_or_unread_says_so_and_its_readings_are_left_out() -> None:
    server = Counted(gpus=3)
    first, second, third = ((str(gpu.index), gpu.id) for gpu in server.gpus)
    server.fault[server.gpus[0].id] = "fell off the bus"
    server.tell(DrainRequested(server.now, server.gpus[1].id, "a new fan", "root"))
    server.sample()
    found = server.page
    assert found.of("carma_gpu_faulty") == {first: 1, second: 0, third: 0}
    assert found.of("carma_gpu_drained") == {first: 0, second: 1, third: 0}
    assert found.of("carma_gpu_memory_used_bytes").keys() == {second, third}
    server.now += 2 * Monitor().stale_s
    assert set(server.page.of("carma_gpu_stale").values()) == {1}
    assert server.page.of("carma_gpu_memory_used_bytes") == {}
    assert server.page.of("carma_gpu_memory_size_bytes").keys() == {first, second, third}


def test_jobs_are_told_by_state_and_the_queue_by_who_may_start() -> None:
    server = Counted(gpus=1)
    server.submit(exclusive=True)
    server.submit(exclusive=True)
    held = server.submit()
    server.tell(HoldRequested(server.now, held, True, "ada"))
    server.sample(60.0)
    found = server.page
    assert found.of("carma_jobs") == {
        ("pending",): 0,
        ("queued",): 2,
        ("starting",): 1,
        ("running",): 0,
        ("suspending",): 0,
        ("suspended",): 0,
        ("resuming",): 0,
        ("stopping",): 0,
    }
    assert found.one("carma_jobs_held") == 1
    assert found.one("carma_queue_length") == 1
    assert found.one("carma_queue_longest_wait_seconds") == 60.0
    assert found.one("carma_queue_stuck") == 0


def a_scene(*users: str) -> Scene:
    jobs = [a_job(n, spec=a_spec(user=user)) for n, user in enumerate(users, 1)]
    view = a_view([a_gpu_view()], jobs)
    gpus = {a_gpu().id: a_gpu()}
    return Scene(view, gpus, JobsById(jobs), {}, tuple(jobs))


def test_a_queue_whose_first_job_waits_beside_an_idle_gpu_is_stuck() -> None:
    assert (
        page(Counts(), figures.of_scene(a_scene("ada"), False, False)).one("carma_queue_stuck") == 1
    )


def test_users_are_told_only_if_wanted() -> None:
    scene = a_scene("ada", "ada", "bob")
    assert page(Counts(), figures.of_scene(scene, False, False)).of("carma_user_jobs") == {}
    assert page(Counts(), figures.of_scene(scene, True, False)).of("carma_user_jobs") == {
        ("running", "ada"): 0,
        ("running", "bob"): 0,
        ("waiting", "ada"): 2,
        ("waiting", "bob"): 1,
    }


@pytest.mark.parametrize(
    "name",
    [
        *('a"b', "a\\b", "a\nb", "\u202eadA", "\udcff\udc80", "\0\x1b[2J", "x" * 10_000),
        "a} 1\ncarma_up 0\n#",
    ],
    ids=range(8),
)
def test_no_name_of_a_user_breaks_the_page(name: str) -> None:
    found = page(Counts(), figures.of_scene(a_scene(name), True, False))
    (shown,) = [user for state, user in found.of("carma_user_jobs") if state == "waiting"]
    assert shown == name[:MOST_LABEL].encode(errors="replace").decode()
    assert found.of("carma_up") == {}


def test_of_many_users_the_rest_is_one() -> None:
    users = [f"user{n}" for n in range(500)]
    found = page(Counts(), figures.of_scene(a_scene(*users, "user7"), True, False)).of(
        "carma_user_jobs"
    )
    waiting = {user: jobs for (state, user), jobs in found.items() if state == "waiting"}
    assert len(waiting) == figures.MOST_USERS + 1
    assert (waiting["user7"], waiting[""]) == (2, 400)


def test_the_disk_is_told_and_nothing_of_one_that_is_gone(tmp_path: Path) -> None:
    database = tmp_path / "carma.db"
    database.write_bytes(bytes(1000))
    tmp_path.joinpath("carma.db-wal").write_bytes(bytes(24))
    found = page(Counts(), figures.of_disk(database))
    assert found.one("carma_database_size_bytes") == 1024
    assert 0 < found.one("carma_disk_free_bytes") <= found.one("carma_disk_size_bytes")
    assert list(figures.of_disk(tmp_path / "gone/carma.db")) == []


# -- declared


def test_names_and_units_are_as_prometheus_wants_them() -> None:
    assert len({each.name for each in METRICS}) == len(METRICS)
    for each in METRICS:
        assert each.name.startswith("carma_")
        assert each.help.endswith("."), each.name
        assert each.name.endswith("_total") == (each.kind == "counter"), each.name
        assert not {"mib", "mb", "percent", "ms", "kwh"} & set(each.name.split("_")), each.name
        assert bool(each.buckets) == (each.kind == "histogram")
        assert list(each.buckets) == sorted(set(each.buckets))
        assert not {"job", "instance", "id", "le"} & set(each.labels), "Prometheus' own, or a job's"


# -- asked for


def scraped(path: str) -> tuple[int, str, str]:
    """The status, the content type and the text."""
    connection = Connection(path)
    connection.request("GET", "/v1/metrics")
    response = connection.getresponse()
    found = response.status, response.headers["content-type"], response.read().decode()
    connection.close()
    return found


def test_the_daemon_tells_them_on_its_socket(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        body = {"argv": ["true"], "cwd": "/", "env": {}, "name": "s3cret", "memory_mib": 2000}
        daemon.exit(daemon.call("POST", "/v1/jobs", body)[1]["id"])
        status, kind, text = scraped(daemon.path)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        found = Page(text)
        assert found.one("carma_up") == 1
        assert found.one("carma_degraded") == 0
        assert found.one("carma_jobs_ended_total", "succeeded") == 1
        assert found.one("carma_step_duration_seconds_count") >= 3
        assert found.one("carma_commit_duration_seconds_count") >= 1
        assert found.one("process_resident_memory_bytes") > 1e6
        assert "s3cret" not in text
        known = {each.name for each in METRICS}
        for sample in found.samples:
            name = sample.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            assert name in known or name.startswith("process_"), sample


@needs_root
def test_another_user_may_ask_and_learns_no_names() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        with running(path, Settings(metrics=Metrics(users=True))) as daemon:
            spec = a_spec(user="ada", name="s3cret", argv=("python", "s3cret.py"))
            submitted = Submitted(daemon.inbox.clock(), daemon.inbox.next_ids(1), (spec,))
            daemon.inbox.request(submitted).result(PATIENCE_S)
            status, _, text = as_user(HOSTILE[0], lambda: scraped(daemon.path))
    assert status == 200
    assert "s3cret" not in text
    assert 'user="ada"' in text


class _Full:
    def __init__(self, store: Any) -> None:
        self.commit_real, self.full = store.commit, False

    def commit(self, step: Any) -> None:
        if self.full and step.jobs:
            raise StoreFull("the disk is full", "make room")
        self.commit_real(step)


def test_steps_that_cannot_be_committed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as daemon:
        disk = _Full(daemon.store)
        monkeypatch.setattr(daemon.store, "commit", disk.commit)
        assert page(daemon.service.counts).one("carma_steps_failed_total") == 0
        disk.full = True
        body = {"argv": ["true"], "cwd": "/", "env": {}}
        assert daemon.call("POST", "/v1/jobs", body)[0] == 503
        assert page(daemon.service.counts).one("carma_steps_failed_total") == 1


# -- the setting


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9430", ("127.0.0.1", 9430)),
        ("[::1]:9430", ("::1", 9430)),
        ("localhost:9430", ("localhost", 9430)),
        *((wrong, None) for wrong in ("9430", ":9430", "host", "host:", "host:0", "host:99999")),
        *((wrong, None) for wrong in ("http://host:1", "host:1/metrics", "a@host:1", "::1:9430")),
    ],
)
def test_an_address_to_listen_at(text: str, found: tuple[str, int] | None) -> None:
    assert configfile.address(text) == found


def test_a_wrong_address_is_refused_with_an_example() -> None:
    with pytest.raises(CarmaError, match=r"metrics\.listen should be .*127\.0\.0\.1:9430"):
        configfile.change(Settings(), ["metrics.listen=9430"])
    changed = configfile.change(Settings(), ["metrics.listen=[::]:9430"])
    assert changed.metrics == Metrics("[::]:9430")


# -- of jobs, one by one


def test_each_job_on_a_gpu_has_series_of_its_own() -> None:
    server = Counted(gpus=2)
    alone = server.submit(user="ada", memory_mib=3000)
    server.run_kernel(alone)
    server.pass_time(60)
    wide = server.submit(user="bob", gpus=2, memory_mib=1000)
    server.run_kernel(wide)
    server.pass_time(60)
    server.submit(gpus=8)  # waits
    promised = server.page.of("carma_job_memory_promised_bytes")
    assert {labels[1:3] for labels in promised} == {("1", "ada"), ("2", "bob")}
    assert len(promised) == 3
    assert len(server.page.of("carma_job_memory_used_bytes")) == 3
    server.exit(alone)
    assert {labels[1] for labels in server.page.of("carma_job_memory_used_bytes")} == {"2"}


def test_series_of_jobs_are_bounded_and_only_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_JOBS", 2)
    server = Counted(gpus=4)
    for _ in range(4):
        server.run_kernel(server.submit(exclusive=True))
    server.sample(1.0)
    shown = server.page.of("carma_job_memory_peak_bytes")
    assert {labels[1] for labels in shown} == {"3", "4"}, "the latest"
    unwanted = page(Counts(), figures.of_scene(server.scene, users=False, jobs=False))
    assert unwanted.of("carma_job_memory_peak_bytes") == {}
