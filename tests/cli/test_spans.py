"""`carma watch --spans`: attempts of jobs as an OpenTelemetry collector gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import NO_KERNELS, Carmad, running

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """Reads what it gets by OpenTelemetry's own schema."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_address[1]}",
            "no_proxy": "*",
        }


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        read = ExportTraceServiceRequest()
        read.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        for group in read.resource_spans:
            self.server.resources.append(values(group.resource.attributes))
            for scope in group.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def values(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def carmad(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as daemon:
        yield daemon


def test_each_attempt_is_a_span_below_that_of_its_job(carmad: Carmad, collector: Collector) -> None:
    good, bad = carmad.sh("true", name="good"), carmad.sh("exit 3", name="bad")
    for id in (good, bad):
        carmad.ended(id)
    carmad.env |= collector.environment
    carmad.carma("watch", f"{good},{bad}", "--spans", "--since", "1h")
    spans = {each.name: each for each in collector.spans}
    assert set(spans) == {"good", "good attempt", "bad", "bad attempt"}
    for name, job, ok, error in (("good", good, 1, 0), ("bad", bad, 0, 2)):
        whole, attempt = spans[name], spans[f"{name} attempt"]
        assert attempt.parent_span_id == whole.span_id and attempt.trace_id == whole.trace_id
        assert whole.parent_span_id == b""
        assert whole.start_time_unix_nano <= attempt.start_time_unix_nano
        assert attempt.start_time_unix_nano <= attempt.end_time_unix_nano
        assert attempt.status.code == whole.status.code == (ok or error)
        assert values(attempt.attributes)["carma.job.id"] == str(job)
    assert values(spans["bad attempt"].attributes)["carma.attempt.cause"] == "failure"
    assert spans["good"].trace_id != spans["bad"].trace_id
    assert collector.resources[0]["service.name"] == "carma"

    before = {each.span_id for each in collector.spans}
    carmad.carma("watch", str(good), "--spans", "--since", "1h")
    assert {each.span_id for each in collector.spans} == before, "told twice, it is the same span"


def test_a_job_that_never_ran_is_a_span_without_attempts(
    carmad: Carmad, collector: Collector
) -> None:
    id = carmad.sh("true", held=True, name="never")
    carmad.cancel(id)
    carmad.ended(id)
    carmad.env |= collector.environment
    carmad.carma("watch", str(id), "--spans", "--since", "1h")
    assert [each.name for each in collector.spans] == ["never"]


def test_watching_goes_on_where_no_collector_answers(carmad: Carmad, tmp_path: Path) -> None:
    id = carmad.sh("true")
    carmad.ended(id)
    carmad.env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "no_proxy": "*",
    }
    said = carmad.carma("watch", str(id), "--spans", "--since", "1h")
    assert "succeeded" in said
