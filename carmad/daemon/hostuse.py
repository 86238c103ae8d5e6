"""What jobs use of the host, as indicators beside those of their GPUs (Castor paper, table 2).

A job's processor time is that of its cgroup. Networks are counted for the whole server: what they
carry counts as a job's while no other job is on a GPU of the server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from carmad.attempt import cgroup
from carmad.attempt.proc import read_file
from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import JobId

CPU = "cpu_active"  # share of all cores, 0–1
TX, RX = "network_tx_mib_s", "network_rx_mib_s"
MIB = 1 << 20
PORT_BYTES = 4  # that an InfiniBand port counts as one

Counts = Mapping[str | JobId, float]  # by direction of the traffic, and by job


class HostUse:
    """Only the monitor's thread calls it."""

    def __init__(self, sys: Path = Path("/sys")) -> None:
        folders = [*sys.glob("class/infiniband/*/ports/*/counters")]
        names, self._unit_mib = ("port_xmit_data", "port_rcv_data"), PORT_BYTES / MIB
        if not folders:
            folders = [card.parent / "statistics" for card in sys.glob("class/net/*/device")]
            names, self._unit_mib = ("tx_bytes", "rx_bytes"), 1 / MIB
        self._files = {
            direction: [str(folder / name) for folder in folders]
            for direction, name in zip((TX, RX), names, strict=True)
        }
        self._before: tuple[float, Counts] = 0.0, {}

    def add(
        self, samples: Iterable[GpuSample], cgroups: Mapping[JobId, str]
    ) -> tuple[GpuSample, ...]:
        """The readings, each with what the only job on its GPU has used since the last ones."""
        samples = tuple(samples)
        on = [{each.job for each in sample.processes if each.job} for sample in samples]
        before_at, before = self._before
        at, counts = self._before = time.monotonic(), self._count(cgroups)
        rates = {
            of: (count - before[of]) / (at - before_at)
            for of, count in counts.items()
            if of in before and count >= before[of]
        }
        traffic = {TX: TX, RX: RX} if len(set().union(*on)) == 1 else {}
        return tuple(
            _with(sample, rates, {CPU: min(jobs), **traffic}) if len(jobs) == 1 else sample
            for sample, jobs in zip(samples, on, strict=True)
        )

    def _count(self, cgroups: Mapping[JobId, str]) -> Counts:
        """MiB since some time, and seconds that all cores would have taken."""
        counts: dict[str | JobId, float] = {}
        for job, path in cgroups.items():
            if (used_s := cgroup.cpu_s(path)) is not None:
                counts[job] = used_s / (os.cpu_count() or 1)
        for name, files in self._files.items():
            with suppress(OSError):
                if files:
                    counts[name] = self._unit_mib * sum(int(read_file(each)) for each in files)
        return counts


def _with(sample: GpuSample, rates: Counts, names: Mapping[str, str | JobId]) -> GpuSample:
    more = [(name, rates[of]) for name, of in names.items() if of in rates]
    return replace(sample, more=(*sample.more, *more))
