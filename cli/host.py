"""The host's CPUs and memory, as the kernel counts them here: for `carma top`, which runs on the
server."""

from __future__ import annotations

from pathlib import Path

MEMINFO, STAT = "/proc/meminfo", "/proc/stat"


class Host:
    """`cpu`: the share of all CPUs that was busy since the last look; None at first."""

    def __init__(self) -> None:
        self.cpu: float | None = None
        self.used_mib = self.total_mib = 0
        self._busy = self._all = 0
        self.look()

    def look(self) -> None:
        with Path(STAT).open("rb") as file:
            times = [int(word) for word in file.readline().split()[1:9]]  # without guests' time
        whole, busy = sum(times), sum(times) - sum(times[3:5])  # idle, and waiting for a disk
        if whole > self._all > 0:
            self.cpu = min(1.0, max(0.0, (busy - self._busy) / (whole - self._all)))
        self._busy, self._all = busy, whole
        with Path(MEMINFO).open("rb") as file:
            lines = [line.split() for line in file]
        kib = {words[0]: int(words[1]) for words in lines if words}
        self.total_mib = kib[b"MemTotal:"] >> 10
        self.used_mib = (kib[b"MemTotal:"] - kib[b"MemAvailable:"]) >> 10
