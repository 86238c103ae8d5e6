"""The peak of one forward and backward pass under FakeTensorMode (CARMA paper, 2.2)."""

from __future__ import annotations

from math import ceil

from carmad.plugin import Estimate, Server, Settings
from estimators.look import Reader
from estimators.tracer.report import Report

NAME = "faketensor"
NOTE = "live tensors of one pass: no CUDA context, optimizer state, workspace or fragmentation"


def read(report: Report, settings: Settings) -> Estimate:
    """The plain reading, which is nearly always too low; `high` adds the paper's margin, which
    makes it usable for placement."""
    mib = max(1, ceil(report.faketensor / 2**20))
    high = mib + settings.estimation.faketensor_margin_mib
    return Estimate(mib, NAME, mib, high, notes=(NOTE,))


def faketensor(settings: Settings, server: Server) -> Reader:
    return Reader(NAME, settings, server, read)
