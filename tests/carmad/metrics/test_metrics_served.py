"""Real daemons whose figures are served over TCP: to promtool, to Prometheus, and on bad days."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import textwrap
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from prometheus_client import CollectorRegistry, start_http_server

from carmad import units
from carmad.config import Metrics, Settings
from carmad.edge import Chore
from carmad.errors import CarmaError
from carmad.metrics import exporter
from carmad.metrics.keeper import Keeper
from tests.carmad.metrics.test_metrics import Page
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.waiting import PATIENCE_S, until

SECRET = "s3cret"


@pytest.fixture
def folder() -> Iterator[Path]:
    """That nobody can enter, too: so the exporter of a daemon that is root can."""
    with tempfile.TemporaryDirectory(prefix="carma-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def got(url: str) -> bytes | None:
    """None: nobody answers there."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())
    except (OSError, http.client.HTTPException):
        return None


def serving(folder: Path, port: int, **settings: str) -> contextlib.AbstractContextManager[Carmad]:
    listen = f"127.0.0.1:{port}"
    return running(folder, "2xA100-40GB", CARMA_METRICS__LISTEN=listen, **settings)


def exporters(daemon: Carmad) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(daemon.pid).children()
        return [each for each in children if "metrics.exporter" in " ".join(each.cmdline())]
    return []


# -- Prometheus


def needs(program: str) -> pytest.MarkDecorator:
    reason = f"{program} is not installed (Debian: prometheus)"
    return pytest.mark.skipif(shutil.which(program) is None, reason=reason)


@contextlib.contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """The distribution's, scraping that port: the address of its API."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        textwrap.dedent(f"""
            scrape_configs:
              - job_name: carma
                scrape_interval: 250ms
                scrape_timeout: 250ms
                static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
        """)
    )
    process = subprocess.Popen(
        [
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.kill()
        process.wait()


def queried(api: str, expr: str) -> dict[str, float]:
    """Values by the label that is not `instance`, `job` or `uuid`."""
    raw = got(f"{api}/query?{urllib.parse.urlencode({'query': expr})}")
    found: dict[str, float] = {}
    for each in json.loads(raw)["data"]["result"] if raw else ():
        labels = each["metric"].items()
        rest = [v for k, v in labels if k not in ("__name__", "instance", "job", "uuid")]
        found[",".join(rest)] = float(each["value"][1])
    return found


@needs("prometheus")
@needs("promtool")
def test_prometheus_scrapes_a_real_daemon(folder: Path) -> None:
    port = free_port()
    with serving(folder, port, **NO_KERNELS) as daemon, prometheus(folder, port) as api:
        ended = daemon.submit(*train(memory_mib=4000, seconds=0.1), name=SECRET, memory_mib=5000)
        daemon.ended(ended)
        daemon.ended(daemon.sh("exit 3", name=SECRET))
        running_job = daemon.submit(*train(memory_mib=4000, seconds=600), name=SECRET)
        daemon.await_state(running_job, "running")

        def settled() -> bool:
            used = queried(api, "carma_gpu_memory_used_bytes")
            return sorted(used.values()) == [0, 4000 << 20]

        until(settled, "Prometheus to see the memory of the job")
        for expr, wanted in {
            'up{job="carma"}': {"": 1},
            "carma_up": {"": 1},
            "sum by (state) (carma_jobs) > 0": {"running": 1},
            "carma_jobs_ended_total > 0": {"succeeded": 1, "failed": 1},
            "count(carma_gpu_sm_active_ratio)": {"": 2},
            "carma_estimate_ratio_count": {"declared": 1},
        }.items():
            until(lambda e=expr: queried(api, e), expr, wanted=lambda v, w=wanted: v == w)
        before = queried(api, "sum(carma_gpu_energy_joules_total)")[""]
        until(lambda: queried(api, "sum(carma_gpu_energy_joules_total)")[""] > before, "energy")
        page = got(f"http://127.0.0.1:{port}/metrics") or b""
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE_S
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
        assert SECRET.encode() not in page
        assert b"user=" not in page


# -- the process


def test_the_exporter_has_no_rights_comes_back_when_killed_and_ends_with_its_daemon(
    folder: Path,
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with serving(folder, port) as daemon:
        until(lambda: got(url), "the exporter to answer")
        (first,) = exporters(daemon)
        if os.geteuid() == 0:
            assert first.username() == "nobody"
            status = Path(f"/proc/{first.pid}/status").read_text()
            assert "CapEff:\t0000000000000000" in status
            assert "Groups:\t0 " not in status
        first.kill()
        page = until(lambda: got(url), "another exporter")
        (second,) = exporters(daemon)
        assert second.pid != first.pid
        assert Page(page.decode()).one("carma_up") == 1
        assert "has ended, and is started again" in daemon.log.read_text()
        daemon.kill()
        second.wait(PATIENCE_S)
        assert got(url) is None


def test_it_ends_when_the_daemon_is_stopped_and_a_taken_port_is_said_and_tried_again(
    folder: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(folder, port) as daemon:
            said = f"cannot listen at 127.0.0.1, port {port}: Address already in use"
            until(lambda: said in daemon.log.read_text(), "a line in the log")
            assert daemon.get("/v1/health")["status"] == "ok"
            taken.close()
            until(lambda: got(f"http://127.0.0.1:{port}/metrics"), "the exporter to answer")
            assert daemon.log.read_text().count(said) == 1
            (process,) = exporters(daemon)
            daemon.stop()
            process.wait(PATIENCE_S)


# -- what it answers


@contextlib.contextmanager
def exporting(where: str) -> Iterator[str]:
    registry = CollectorRegistry()
    registry.register(exporter.Daemon(where))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    exporter.endure_clients(server)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def is_down(page: bytes | None) -> bool:
    return page is not None and [
        (sample.name, sample.value) for sample in Page(page.decode()).samples
    ] == [("carma_up", 0)]


@contextlib.contextmanager
def answering(path: Path, raw: bytes) -> Iterator[str]:
    """A daemon that answers so; without anything to say, it hangs."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connection.recv(1 << 16)
                connection.sendall(raw)
                connection.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        yield str(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ncarma_up 1\n",
        b"\x16\x03\x01 no HTTP",
    ],
    ids=["hangs", "stops", "dies over it", "is another"],
)
def test_a_daemon_that_does_not_answer_is_down(
    folder: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "ANSWER_WITHIN_S", 0.2)
    with answering(folder / "sock", raw) as where, exporting(where) as url:
        assert is_down(got(url))


def test_no_daemon_is_down_and_no_other_path_leads_to_it(folder: Path) -> None:
    with exporting(str(folder / "none")) as url:
        for path in ("/metrics", "/metrics/../v1/status", "/v1/status"):
            assert is_down(got(url.replace("/metrics", path)))


def test_who_breaks_off_or_says_nothing_leaves_no_line_and_no_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter, "READ_WITHIN_S", 0.2)
    before = threading.active_count()
    with exporting(str(folder / "none")) as url:
        address = ("127.0.0.1", urllib.parse.urlsplit(url).port)
        silent = socket.create_connection(address)
        with socket.create_connection(address) as reset:
            reset.sendall(b"GET /met")
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert is_down(got(url))
        assert silent.recv(1) == b"", "it is closed"
        silent.close()
        until(lambda: threading.active_count() <= before + 1, "their threads to end")
    assert capfd.readouterr().err == ""


# -- its keeper


def test_under_systemd_it_has_a_unit_of_its_own_that_starts_itself_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def start(unit: str, what: str, bounds: dict[str, str], argv: list[str]) -> str:
        started.append((unit, bounds, argv))
        return "no such thing" if len(started) == 1 else ""

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(units, "start", start)
    settings = Settings(metrics=Metrics(listen=f"127.0.0.1:{free_port()}"))
    chores: list[Chore] = []
    host = SimpleNamespace(
        settings=lambda: settings,
        socket=str(folder / "sock"),
        has_units=True,
        add_chore=chores.append,
    )
    its = Keeper(host)  # type: ignore[arg-type]
    (chore,) = chores
    with pytest.raises(CarmaError, match="systemd did not start the unit: no such thing"):
        chore.do()
    chore.do()
    chore.do()
    assert len(started) == 2, "once it is started, systemd keeps it"
    unit, bounds, argv = started[-1]
    assert unit == f"carma-metrics-{os.getpid()}" and bounds["Restart"] == "on-failure"
    assert argv[:2] == units.program("carmad.metrics.exporter")[:2]
    its.stop()
