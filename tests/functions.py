"""Functions that are jobs. The processes that run them import this module, and of it all, only what
they need: importing a module of tests takes a second or two."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def add(a: int, b: int) -> int:
    print("adding")
    return a + b


class OwnError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def search_path() -> list[str]:
    return sys.path


def fail(how: str) -> None:
    raise ValueError(how) if how else OwnError(1, 2)


def first_runs_out_of_memory(trace: str) -> str:
    with Path(trace).open("a") as file:
        file.write("x")
    if Path(trace).read_text() == "x":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return "went on"


def killed_the_second_time(trace: str) -> None:
    with Path(trace).open("a") as file:
        file.write("x")
    if Path(trace).read_text() == "x":
        raise ValueError("of the first attempt")
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_there(go: str) -> str:
    while not Path(go).exists():
        time.sleep(0.05)
    return "there"


# with submitit


def train_with(mib: int) -> int:
    """The attempt that had room for it on its GPU."""
    from carmad.gpu import emulated_job

    cards = emulated_job.visible_cards()
    for card in cards:
        card.attach()
    emulated_job.allocate(cards, mib)
    return int(os.environ["CARMA_RESTART_COUNT"]) + 1


def environment(each: int) -> tuple[int, str, int, int]:
    import submitit

    env = submitit.JobEnvironment()
    return each, env.job_id, env.num_tasks, env.global_rank


def fail_in_task(rank: int) -> int:
    import submitit

    if (own := submitit.JobEnvironment().global_rank) == rank:
        raise ValueError(f"no luck in task {rank}")
    return own


class Counting:
    """Counts the attempts; the first one waits to be stopped."""

    def __init__(self, started: Path, first: bool = True) -> None:
        self.started = started
        self.first = first

    def __call__(self) -> str:
        if not self.first:
            return "went on"
        rank = os.environ.get("SUBMITIT_CARMA_RANK", "0")  # of several tasks, each has a file
        self.started.with_name(self.started.name + rank.replace("0", "")).write_text(
            str(os.getpid())
        )
        time.sleep(600)
        return "was not stopped"

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(Counting(self.started, first=False))


def train_until(go: str, width: int) -> int:
    """On the GPU, if it sees one; and then, in a real run, until this file is there."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(width, width).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(8, width, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    while not Path(go).exists():
        time.sleep(0.05)
    return width
