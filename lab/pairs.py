"""Pairs of jobs that others measured on one GPU: Lucid's artifact and Gavel's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from lab.data import DATA, Row, read

LUCID = "Lucid artifact, pairs on RTX 3090 (github.com/S-Lab-System-Group/Lucid)"
LUCID_LICENCE = "S-Lab License 1.0 (non-commercial), © 2022 S-Lab; the data are not redistributed"
GAVEL = "Gavel artifact, pairs on V100 (github.com/stanford-futuredata/gavel)"

GUESSED = ("PPO", "TD3")  # every one of their speeds is exactly 1.000: nobody measured that
SHRUNK, FASTER = 0.6, 1.2  # the bounds of what a sound pair may show, see `Pair.unsound`

Job = tuple[str, str, str]  # network, batch size, mixed precision
Rates = dict[str, dict[str, Any]]  # by job and neighbour; of the neighbour "null", alone


@dataclass(frozen=True, slots=True)
class Pair:
    """Two of Lucid's jobs, and their speeds relative to alone."""

    jobs: tuple[Job, Job]
    speeds: tuple[float, float]
    gpu_util: float  # %, of both together

    @property
    def unsound(self) -> str:
        """Why not to trust it; "" for a sound pair.

        A pair that keeps the GPU much less busy than one of its jobs did alone was not running as a
        pair, and a job that is a fifth faster in company than alone was measured wrongly alone.
        """
        busiest = max(float(lucid_alone()[job]["gpu_util"]) for job in self.jobs)
        if self.gpu_util < SHRUNK * busiest:
            return f"pairs busy less than {SHRUNK} of what one job alone was"
        if max(self.speeds) > FASTER:
            return f"pairs with a job more than {FASTER} times as fast as alone"
        return ""


@cache
def lucid_alone() -> Mapping[Job, Row]:
    """Each of Lucid's jobs as measured alone."""
    return {_job(row): row for row in read("lucid/single_job_profiles_rtx3090.csv")}


@cache
def lucid_pairs() -> tuple[Pair, ...]:
    return tuple(
        Pair(
            (_job(row, "1"), _job(row, "2")),
            (float(row["speed1"]), float(row["speed2"])),
            float(row["gpu_util"]),
        )
        for row in read("lucid/colocated_pairs_rtx3090.csv")
    )


def _job(row: Row, which: str = "") -> Job:
    return row[f"model{which}"], row[f"batchsize{which}"], row[f"amp{which}"]


@cache
def gavel_rates(gpu: str) -> Rates:
    """Iterations/s of the jobs on one GPU. `gpu`: v100, p100 or k80."""
    text = (DATA / "gavel/throughputs_v100_p100_k80.json").read_text()
    single = {job: row for job, row in json.loads(text)[gpu].items() if job.endswith(" 1)")}
    return {
        job: {other: rate for other, rate in row.items() if other == "null" or other in single}
        for job, row in single.items()
    }


def gavel_name(job: str) -> tuple[str, int]:
    """`('ResNet-18 (batch size 16)', 1)` is ResNet-18 at batch size 16."""
    model, _, rest = job.split("'")[1].partition(" (batch size ")
    return model, int(rest.rstrip(")") or 1)
