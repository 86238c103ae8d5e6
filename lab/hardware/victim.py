"""A job that meets a fault: it holds a share of its GPU's memory and runs kernels there.

    python -m lab.hardware.victim crash --share 0.3 --seconds 5

On an emulated card where the daemon has one, else with torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from carmad.attempt.cgroup import own_cgroup

HOW = ("train", "storm", "crash", "deaf", "host-oom", "host-alloc", "ballast")
FIRST = 0.1  # of the GPU's memory: what each of a storm holds before they all grow
MEET_WITHIN_S = 60.0
SHOWN_S = 2.0
LOOK_S = 0.02
HOST_MIB = 1024  # what the cgroup of a job that exhausts it is given
UNTOLD = 3  # the exit code of one that cannot do what it was asked for on this machine
CUDA_ERROR = "CUDA error: an illegal memory access was encountered"  # torch's own words


class Device(Protocol):
    def hold(self, share: float) -> None:
        """Allocate until the job holds that share of the GPU's memory."""

    def fill(self, leave_mib: int) -> int:
        """Allocate all of the GPU's memory but that much. Returns the MiB allocated."""

    def work(self, done: Callable[[], bool]) -> None:
        """Run kernels until `done`."""

    def crash(self) -> None:
        """Fault on the GPU."""


class Cuda:
    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._total = torch.cuda.mem_get_info()[1]
        self._matrix = torch.rand(2048, 2048, device="cuda")
        self._held = [torch.empty(0, dtype=torch.uint8, device="cuda")]

    def hold(self, share: float) -> None:
        missing = int(share * self._total) - sum(each.numel() for each in self._held)
        self._held.append(self._torch.empty(missing, dtype=self._torch.uint8, device="cuda"))

    def fill(self, leave_mib: int) -> int:
        free = self._torch.cuda.mem_get_info()[0]
        size = max(0, free - (leave_mib << 20))
        self._held.append(self._torch.empty(size, dtype=self._torch.uint8, device="cuda"))
        return size >> 20

    def work(self, done: Callable[[], bool]) -> None:
        while not done():
            for _ in range(20):
                self._matrix @ self._matrix
            self._torch.cuda.synchronize()

    def crash(self) -> None:
        """An index far outside of the tensor: the kernel asserts, and the context is lost."""
        beyond = self._torch.full((1,), 1 << 40, device="cuda")
        self._matrix.view(-1)[beyond]
        self._torch.cuda.synchronize()


class Driver:
    """By the driver's API alone: a rehearsal's fake driver knows no more."""

    def __init__(self) -> None:
        from lab.selftest.probe import Cuda

        self._cuda = Cuda()
        self._held_mib = 0

    def hold(self, share: float) -> None:
        _, total_mib = self._cuda.memory_mib()
        missing = int(share * total_mib) - self._held_mib
        self._cuda.allocate(missing)
        self._held_mib += missing

    def fill(self, leave_mib: int) -> int:
        free_mib, _ = self._cuda.memory_mib()
        missing = max(0, free_mib - leave_mib)
        self._cuda.allocate(missing)
        return missing

    def work(self, done: Callable[[], bool]) -> None:
        while not done():
            self._cuda.spin(LOOK_S)

    def crash(self) -> None:
        self._cuda.fault()


class Emulated:
    def __init__(self) -> None:
        from carmad.gpu import emulated_job

        self._job = emulated_job
        self._cards = emulated_job.visible_cards()
        self._held_mib = 0
        for card in self._cards:
            card.attach()

    def hold(self, share: float) -> None:
        missing = int(share * self._cards[0].memory_mib) - self._held_mib
        self._job.allocate(self._cards, missing)
        self._held_mib += missing

    def fill(self, leave_mib: int) -> int:
        reading = self._cards[0].read()
        taken_mib = sum(tenant.memory_mib for tenant in reading.tenants)
        missing = max(0, self._cards[0].memory_mib - taken_mib - leave_mib)
        self._job.allocate(self._cards, missing)
        return missing

    def work(self, done: Callable[[], bool]) -> None:
        for card in self._cards:
            card.launch(0.3, 0.1, 0.1)
        while not done():
            time.sleep(LOOK_S)

    def crash(self) -> None:
        raise RuntimeError(CUDA_ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description="Meet a fault on a GPU.")
    parser.add_argument("how", choices=HOW)
    parser.add_argument("--share", type=float, default=0.1, help="of the GPU's memory")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--until", type=Path, help="train until this file is there")
    parser.add_argument("--company", type=int, default=1, help="how many meet before they grow")
    parser.add_argument("--leave-mib", type=int, default=0, help="what a ballast leaves free")
    parser.add_argument("--meet", type=Path, help="the directory in which they meet")
    parser.add_argument("--driver", action="store_true", help="by the driver's API, without torch")
    given = parser.parse_args()
    if given.how == "host-oom":
        exhaust()
    if given.how == "host-alloc":
        import torch

        torch.empty(1 << 60, dtype=torch.uint8)
    if given.how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    device = here(given.driver)
    if given.how == "ballast":
        print(f"holds {device.fill(given.leave_mib)} MiB", flush=True)
        sys.stdin.read()  # until whoever asked for it has ended
        return
    device.hold(min(FIRST, given.share))
    if given.how == "storm":
        device.work(met(given.meet, given.company))
    device.hold(given.share)
    print("trains", flush=True)
    device.work(given.until.exists if given.until else after(given.seconds))
    if given.how == "crash":
        device.crash()
    print("done", flush=True)


def here(driver: bool) -> Device:
    if driver:
        return Driver()
    return Emulated() if "CARMA_EMULATED_DIR" in os.environ else Cuda()


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def met(folder: Path, company: int) -> Callable[[], bool]:
    """Whether all of a storm have come, and a reading of the GPU has shown them; nobody waits for
    one that never will."""
    (folder / os.environ["CARMA_JOB_ID"]).touch()
    late = after(MEET_WITHIN_S)
    shown: list[Callable[[], bool]] = []

    def done() -> bool:
        if not shown and (late() or len(list(folder.iterdir())) >= company):
            shown.append(after(SHOWN_S))
        return bool(shown) and shown[0]()

    return done


def exhaust() -> None:
    """Take more host memory than CARMA's cgroup has, so that the kernel kills this process and no
    other. Not in a cgroup that may be the whole machine's."""
    own = Path(own_cgroup() or "/")
    bounded = [each for each in (own, *own.parents) if (each / "memory.max").exists()]
    if not bounded or not bounded[0].name.startswith(("carma-job-", "carma-visit-")):
        print("there is no cgroup v2 of CARMA's whose memory can be limited", flush=True)
        sys.exit(UNTOLD)
    Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(OSError):  # there is no swap
        (bounded[0] / "memory.swap.max").write_text("0")
    (bounded[0] / "memory.max").write_text(f"{HOST_MIB << 20}")
    held = []
    for _ in range(2 * HOST_MIB):
        held.append(os.urandom(1 << 20))
    print("the kernel did not kill it", flush=True)
    sys.exit(UNTOLD)


if __name__ == "__main__":
    main()
