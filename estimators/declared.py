"""The user's own word (`--gpu-mem`), and no estimate without one: the paper's default (3.6)."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.plugin import Estimate, JobSpec, Settings


@dataclass(frozen=True, slots=True)
class Declared:
    name: str = "declared"

    def estimate(self, spec: JobSpec) -> Estimate | None:
        if spec.memory_mib is None:
            return None
        return Estimate(spec.memory_mib, self.name, firm=True)


def declared(settings: Settings) -> Declared:
    return Declared()
