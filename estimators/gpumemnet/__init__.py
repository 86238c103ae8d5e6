"""GPUMemNet (CARMA paper, 2.3): classifiers, trained on synthesised networks, say in which step of
a staircase a network's memory need falls.

`features` and `network` (numpy) judge; `synthesis`, `networks` (torch), `labels` and `training`
make the weights; `card` and `dataset` are what they keep in files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from carmad.plugin import Estimate, JobSpec, Refusal, Server, Settings
from estimators.gpumemnet.answer import SOURCE, answer
from estimators.look import look


@dataclass(frozen=True, slots=True)
class GpuMemNet:
    settings: Settings
    server: Server
    name: str = SOURCE

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        report = look(spec, self.settings, self.server)
        if isinstance(report, Refusal):
            return replace(report, source=self.name)
        context = self.settings.estimation.context_mib
        return replace(answer(report.layers, report.batch, context), seconds=report.seconds)


def gpumemnet(settings: Settings, server: Server) -> GpuMemNet:
    return GpuMemNet(settings, server)
