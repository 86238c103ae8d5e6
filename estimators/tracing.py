"""Runs two steps of the job's own script without a GPU, and replays its allocations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate, pairwise
from math import ceil

from carmad.plugin import Estimate, JobSpec, Refusal, Server, Settings
from estimators.experience import (
    Past,
    context_mib,
    correction_mib,
    past,
    shortfall_mib,
)
from estimators.look import look
from estimators.tracer.report import PARTS, Explanation, Report

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Trace:
    """What the caching allocator will hold, plus the CUDA context and its libraries.

    Corrected by how wrong it was about jobs like this one: the user's own, or else at least three
    other users'. `low` has only the live bytes, `high` what experience says must be free. The
    context cannot be traced: it depends on GPU, driver and torch, and is learned from the user's
    runs on the same three, or from several other users', or set by `estimation.context_mib` while
    there are too few.
    """

    settings: Settings
    server: Server
    name: str = "trace"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        report = look(spec, self.settings, self.server)
        if isinstance(report, Refusal):
            return replace(report, source=self.name)
        if report.reserved <= 0:
            return Refusal("it put nothing on a GPU", self.name, report.seconds)
        stack = f"{self.server.gpu} / driver {self.server.driver} / torch {report.torch}"
        earlier = past(self.server, spec.uid, self.name, stack)
        learned = context_mib(earlier)
        context = learned[0] if learned else self.settings.estimation.context_mib
        traced, floor = ceil(report.reserved / MIB), report.floor // MIB
        shape = _shape(report)
        like = earlier.like(shape, spec) if learned else Past(())
        # However wrong it was about others, this job's tensors need their bytes.
        correction, by = correction_mib(like, context, traced) or (0, "")
        body = max(min(traced, floor), traced + correction)
        short = shortfall_mib(earlier, context, traced)
        parts = _parts(report, body)
        notes = [*report.notes, _origin(context, learned, len(earlier.own))]
        notes += [f"{correction:+d} MiB learned from {_whose(by)}"] if correction else []
        return Estimate(
            body + context,
            self.name,
            low=min(body, floor) + context,
            high=max(traced + short, ceil(report.safe / MIB) + max(0, correction)) + context,
            seconds=report.seconds,
            notes=tuple(notes),
            parts=(*parts, ("context", context)),
            stack=stack,
            batch_mib=dict(parts)["activations"],
            shape=shape,
            traced_mib=traced + context if correction else None,
        )


def explanation(spec: JobSpec, settings: Settings, server: Server) -> Explanation | None:
    """Of a job's trace, if there is one and `server` wants it explained."""
    report = look(spec, settings, server)
    return None if isinstance(report, Refusal) else report.explanation


def _shape(report: Report) -> str:
    """Equal for the same model, whatever the batch; "" without layers."""
    layers = repr([(layer.kind, layer.parameters) for layer in report.layers])
    return sha256(layers.encode()).hexdigest()[:16] if report.layers else ""


def _parts(report: Report, body_mib: int) -> tuple[tuple[str, int], ...]:
    """The parts in whole MiB, rounded cumulatively so that they add up to `body_mib`. What was live
    was traced: a correction is about what the allocator and libraries hold beyond it."""
    ends = [ceil(end / MIB) for end in accumulate(report.parts.get(part, 0) for part in PARTS)]
    mib = {
        part: end - begin for part, (begin, end) in zip(PARTS, pairwise([0, *ends]), strict=True)
    }
    left = body_mib - sum(mib.values())
    for part in ("cached", "workspace", "activations"):
        change = max(left, -mib[part])
        mib[part] += change
        left -= change
    return tuple(mib.items())


def _whose(by: str) -> str:
    return f"similar jobs of {by}" if by.endswith("users") else f"{by} of similar jobs"


def _origin(context_mib: int, learned: tuple[int, str] | None, runs: int) -> str:
    if learned is None:
        return f"context {context_mib} MiB as set: {runs} of 3 runs on this GPU, driver and torch"
    return f"context {context_mib} MiB learned from {learned[1]} on this GPU, driver and torch"


def trace(settings: Settings, server: Server) -> Trace:
    return Trace(settings, server)
