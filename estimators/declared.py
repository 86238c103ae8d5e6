"""The memory that the user declared (`--gpu-mem`)."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.plugin import Estimate, JobSpec, Refusal, Server, Settings


@dataclass(frozen=True, slots=True)
class Declared:
    name: str = "declared"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        return spec.declared or Refusal("no --gpu-mem was given", self.name)


def declared(settings: Settings, server: Server) -> Declared:
    return Declared()
