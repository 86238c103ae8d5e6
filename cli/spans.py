"""Attempts of jobs as OpenTelemetry spans, for `carma watch --spans`: one for each attempt, below
one for its job. Where they go is said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_…).

Their ids follow from the job, so an attempt that is told twice, as after `--since`, is one span.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from carmad.installed import VERSION
from carmad.states import ENDED
from cli import client
from cli.problems import Problem

SCOPE = InstrumentationScope("carma", VERSION)
OF_AN_END = ("ended", "retried", "requeued")  # events


class Spans:
    """Sends what has become of jobs' attempts."""

    def __init__(self) -> None:
        resource = {"service.name": "carma", "host.name": socket.gethostname()}
        self._resource = Resource.create(resource)
        self._exporter = OTLPSpanExporter()

    def send(self, event: dict[str, Any]) -> None:
        """If the event is the end of an attempt. Raises Problem if it cannot be sent, or the job is
        not known any more."""
        if event["event"] not in OF_AN_END or "count" in event:
            return
        job = client.get(f"/v1/jobs/{event['job']['label']}")
        spans = tuple(self._spans(job))
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise Problem(
                "could not send spans to the OpenTelemetry collector",
                "set OTEL_EXPORTER_OTLP_ENDPOINT to its address, such as http://localhost:4318",
            )

    def _spans(self, job: dict[str, Any]) -> Iterator[ReadableSpan]:
        """Of its attempts that have ended; and of the job itself, if it has."""
        closed = job.get("attempts", ())  # others' jobs have none
        key = f"{socket.gethostname()} {job['id']} {job['submitted_at']}"
        trace = int.from_bytes(_digest(key, 16))
        parent = _context(trace, key)
        name = job["name"]
        its = {"carma.job.id": job["label"], "enduser.id": job["user"]}
        for each in closed:  # all of them: events may come faster than they are read
            about = its | {
                "carma.attempt.gpus": each["gpus"],
                "carma.attempt.mode": each["mode"] or "",
                "carma.attempt.cause": each["cause"],
                "carma.attempt.evidence": each.get("evidence", ""),
            }
            own = _context(trace, f"{key} {each['started_at']}")
            good = each["cause"] == "success"
            times = each["started_at"], each["ended_at"]
            yield self._span(f"{name} attempt", own, parent, about, good, *times)
        if job["state"] in ENDED and job.get("ended_at"):
            about = its | {
                "carma.job.state": job["state"],
                "carma.job.gpus": job["gpus_wanted"],
                "carma.job.peak_mib": job["memory"].get("peak_mib") or 0,
                "carma.job.attempts": len(closed),
            }
            good = job["state"] == "succeeded"
            yield self._span(name, parent, None, about, good, job["submitted_at"], job["ended_at"])

    def _span(
        self,
        name: str,
        own: SpanContext,
        parent: SpanContext | None,
        about: dict[str, Any],
        good: bool,
        since: str,
        until: str,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            own,
            parent,
            self._resource,
            about,
            status=Status(StatusCode.OK if good else StatusCode.ERROR),
            start_time=_nanoseconds(since),
            end_time=_nanoseconds(until),
            instrumentation_scope=SCOPE,
        )


def _context(trace: int, key: str) -> SpanContext:
    own = int.from_bytes(_digest(f"span {key}", 8))
    return SpanContext(trace, own, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _digest(key: str, size: int) -> bytes:
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=size).digest()


def _nanoseconds(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1e6) * 1000
