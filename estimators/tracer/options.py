"""The tracer's options, passed as one argument of its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Options:
    within_s: float  # of a processor, without imports: then say how far it came
    longest_s: float  # by the clock, imports included: likewise
    host_memory_mib: int
    gpu: str = ""  # the model, as NVML names it; "": an A100
    gpus: int = 1  # the job's
    processes: int = 0  # that a launcher would start, over all nodes; 0: there is no launcher
    explain: bool = False  # with what, where, and what would help
    env: dict[str, str] = field(default_factory=dict)  # set on top of the job's own
    skipped: str = ""  # of the command, what is left out and might prevent the script's failure

    def dumps(self) -> str:
        return json.dumps(asdict(self))


def loads(text: str) -> Options:
    return Options(**json.loads(text))
