"""GPUMemNet (CARMA paper, 2.3): classifiers, trained on generated networks, which predict the bin
of a network's memory need.

`features` and `network` (numpy) evaluate them; `synthesis`, `networks` (torch), `labels` and
`training` make the weights; `card` and `dataset` are the file formats.
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
