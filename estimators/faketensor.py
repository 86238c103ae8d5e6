"""The peak of one forward and backward pass under FakeTensorMode (CARMA paper, 2.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from carmad.plugin import Estimate, JobSpec, Refusal, Server, Settings
from estimators.look import look

NOTE = "live tensors of one pass: no CUDA context, optimizer state, workspace or fragmentation"


@dataclass(frozen=True, slots=True)
class FakeTensor:
    """The plain reading, which is nearly always too low; `high` adds the paper's margin, which
    makes it usable for placement."""

    settings: Settings
    server: Server
    name: str = "faketensor"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        report = look(spec, self.settings, self.server)
        if isinstance(report, Refusal):
            return replace(report, source=self.name)
        mib = max(1, ceil(report.faketensor / 2**20))
        high = mib + self.settings.estimation.faketensor_margin_mib
        return Estimate(mib, self.name, mib, high, seconds=report.seconds, notes=(NOTE,))


def faketensor(settings: Settings, server: Server) -> FakeTensor:
    return FakeTensor(settings, server)
