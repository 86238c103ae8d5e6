"""Answers about decisions on jobs: the placement policy's verdicts and their reasons."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from carmad.api.responses.jobs import JobOut, OutlookOut, StartOut


class JobRefOut(TypedDict):
    id: int
    label: str


class AheadOut(TypedDict):
    """A job that must start or end first, which may be somebody else's."""

    id: int
    label: str
    user: str
    text: str  # what it is and waits for, after its name


class GpuRefOut(TypedDict):
    id: str
    index: int | None


class ReasonOut(TypedDict):
    code: str
    need: float
    have: float
    unit: str
    detail: str
    text: str


class VerdictOut(TypedDict):
    gpu: GpuRefOut
    refused: list[ReasonOut]
    rank: float | None


class DecisionOut(TypedDict):
    policy: str
    decided_at: str
    chosen: list[str]
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    grounds: list[ReasonOut]  # what spoke for the chosen GPUs


class WhyOut(TypedDict):
    schema: int
    job: JobOut
    headline: str
    position: int | None
    behind: JobRefOut | None
    ahead: list[AheadOut]  # from the one that it waits for to the head of the line
    facts: list[str]  # of a job that has ended: how, and where its logs are
    tail: list[str]  # the last lines of its logs, if it did not succeed
    policy: str | None
    decided_at: str | None
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    grounds: list[ReasonOut]  # what spoke for the chosen GPUs
    remedies: list[str]
    start: NotRequired[StartOut | None]  # of a job that waits
    chosen: list[str]
    past: list[DecisionOut]


class DryRunOut(TypedDict):
    schema: int
    would_start: bool
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    chosen: list[str]
    warnings: list[str]
    outlook: NotRequired[OutlookOut | None]  # of a job with a deadline
