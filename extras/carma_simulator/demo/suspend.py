"""`carma demo suspend`: an urgent job, an idle notebook and a job that grows, on two emulated GPUs
that others use. Nobody is killed: who has to make room is suspended, and goes on later."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from carma_simulator.demo.sharing import PATIENCE_S, SETTINGS, Replay
from carmad import paths
from carmad.gpu.card import Card
from carmad.gpu.emulated_job import visible_cards
from carmad.paths import python
from carmad.states import ENDED_CODES
from cli import client, output
from cli.problems import Problem, Refused

GPUS = "2xA100-40GB"
SUSPENDS = {
    "CARMA_SUSPEND__HOST_MEMORY_MIB": "200000",
    "CARMA_SUSPEND__MOVES": "true",
    "CARMA_SUSPEND__OUT_MIB_S": "60000",  # as compressed as the jobs are
    "CARMA_SUSPEND__IN_MIB_S": "60000",
    "CARMA_SUSPEND__FIXED_S": "0.4",
    "CARMA_LIMITS__PREEMPTION": "suspend",
    "CARMA_INTERACTIVE__IDLE_S": "2",
}
COLUMN_S = 0.5  # of the picture
# What happens (a method of `Story`), and when: so long after this job got into this state.
SCRIPT = (
    ("open_the_notebook", "", "", 0.0),
    ("train", "notebook", "running", 0.5),
    ("train_alone", "bob's training", "running", 0.5),
    ("be_urgent", "eve's training", "running", 2.0),
    ("grow", "ann's, urgent", "running", 0.5),
    ("use_the_notebook", "joe's, growing", "running", 7.0),
)
MARKS = {"suspended": "z", "suspending": "z", "resuming": "z"}
WORDS = {
    "open_the_notebook": "ada opens a notebook, computes, and goes to lunch",
    "train": "bob trains",
    "train_alone": "eve trains, alone on a GPU: the notebook is idle, and makes room",
    "be_urgent": "ann has a deadline: her urgent job gets a GPU at once",
    "grow": "joe's job joins bob's, and grows: one of them makes room before memory runs out",
    "use_the_notebook": "ada is back, and resumes it: the next cell has its GPU and variables",
}


@dataclass(slots=True)
class Story:
    replay: Replay
    names: list[str] = field(default_factory=list)  # of the jobs, in order
    frames: list[list[str]] = field(default_factory=list)  # a mark for each of them, over time
    seen: set[tuple[str, str]] = field(default_factory=set)  # jobs' names and states
    notebook: subprocess.Popen[str] | None = None

    def open_the_notebook(self) -> None:
        words = [*python("cli.main"), "run", "--quiet", "--name", "notebook"]
        self.notebook = subprocess.Popen(
            [*words, *python(__name__), "notebook"],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "CARMA_SOCKET": self.replay.socket},
            cwd=self.replay.directory,
        )
        self.names.append("notebook")

    def train(self) -> None:
        self._submit("bob's training", "train", "9000", "18")

    def train_alone(self) -> None:
        self._submit("eve's training", "train", "6000", "5", exclusive=True)

    def be_urgent(self) -> None:
        self._submit("ann's, urgent", "train", "30000", "3", urgent=True, exclusive=True)

    def grow(self) -> None:
        self._submit("joe's, growing", "grow", "2000", "6")

    def use_the_notebook(self) -> None:
        assert self.notebook and self.notebook.stdin
        number = self.names.index("notebook") + 1
        with contextlib.suppress(Refused):  # nobody needed its GPU
            client.post("/v1/resume", {"select": str(number), "user": None})
        print("model(batch)", file=self.notebook.stdin, flush=True)
        self.notebook.stdin.close()

    def look(self) -> None:
        self.replay.look()
        frame = [""] * len(self.names)
        for job in self.replay.jobs:
            frame[job["id"] - 1] = _mark(job)
            self.seen.add((job["name"], job["state"]))
        self.frames.append(frame)

    def was_in(self, name: str, state: str) -> bool:
        """Or is over."""
        return not name or not self.seen.isdisjoint({(name, state), (name, "succeeded")})

    @property
    def over(self) -> bool:
        jobs = self.replay.jobs
        return len(jobs) == len(WORDS) - 1 and all(job["code"] in ENDED_CODES for job in jobs)

    def _submit(self, name: str, *words: str, **options: object) -> None:
        body = {
            "argv": [*python(__name__), *words],
            "name": name,
            "cwd": str(self.replay.directory),
            "env": dict(os.environ),
            **options,
        }
        client.post("/v1/jobs", body)
        self.names.append(name)


def _mark(job: dict[str, Any]) -> str:
    if job["code"] in ENDED_CODES:
        return " "
    if job["state"] in MARKS:
        return MARKS[job["state"]]
    return "".join(str(gpu["index"]) for gpu in job["gpus"]) or "."


def demo_suspend() -> int:
    screen = output.console()
    home = Path(paths.user_state_dir()) / "demo" / "suspend"
    replay = Replay("magm", home, GPUS, SETTINGS | SUSPENDS)
    screen.print(f"Two emulated GPUs of 40 GiB. Logs: {home}\n")
    with contextlib.ExitStack() as stack:
        stack.callback(replay.await_end)
        stack.callback(replay.stop)
        replay.start()
        replay.await_health()
        story = Story(replay)
        for now, what in play(story):
            screen.print(f"{now:5.1f} s  {WORDS[what]}")
        screen.print()
        screen.print(picture(story, output.is_ascii()))
        screen.print(f"\n{sentence(story)}", style="bold")
    return 0


def play(story: Story) -> Iterator[tuple[float, str]]:
    """Yields what happens, when it does."""
    begun, script, due = time.monotonic(), list(SCRIPT), math.inf
    while not story.over:
        now = time.monotonic() - begun
        what, name, state, after_s = script[0] if script else ("", "", "", math.inf)
        if due == math.inf and story.was_in(name, state):
            due = now + after_s
        if due <= now:
            yield now, what
            getattr(story, what)()
            del script[0]
            due = math.inf
        if now >= len(story.frames) * COLUMN_S:
            story.look()
        if now > PATIENCE_S:
            raise Problem("the demo hangs", f"see {story.replay.log}")
        time.sleep(0.05)


def picture(story: Story, plain: bool) -> Text:
    """A row for each job, over time."""
    marks = {"z": "z", ".": "."} if plain else {"z": "░", ".": "·"}
    styles = {"0": "cyan", "1": "magenta", "z": "yellow", ".": "dim"}
    wide, text = max(map(len, story.names)), Text()
    seconds = "".join(
        f"{n:<10}" for n in range(0, int(len(story.frames) * COLUMN_S) + 1, int(10 * COLUMN_S))
    )
    text.append(f"{'':{wide}}  {seconds.rstrip()} s\n", "dim")
    for number, name in enumerate(story.names):
        text.append(f"{name:{wide}}  ")
        for frame in story.frames:
            mark = frame[number] if number < len(frame) else " "
            text.append(marks.get(mark, mark or " "), styles.get(mark, ""))
        text.append("\n")
    text.append(f"{'':{wide}}  0, 1: runs on that GPU   {marks['z']}: suspended   ", "dim")
    text.append(f"{marks['.']}: waits", "dim")
    return text


def sentence(story: Story) -> str:
    ended = [job["state"] for job in story.replay.jobs]
    attempts = [story.replay.get(f"/v1/jobs/{job['id']}")["attempt"] for job in story.replay.jobs]
    moves = (story.replay.get(f"/v1/jobs/{job['id']}")["history"] for job in story.replay.jobs)
    times = sum(move["after"] == "suspended" for its in moves for move in its)
    if set(ended) != {"succeeded"}:
        return f"Not as it should be: the jobs ended as {', '.join(ended)}"
    if again := sum(attempt > 1 for attempt in attempts):  # this machine was too busy to see it
        return f"All {len(ended)} jobs ended well, after {times} suspensions; {again} ran twice."
    return (
        f"Nobody was killed: {len(ended)} jobs, {times} suspensions, and each job ended well at its"
        " first attempt."
    )


# -- the jobs' programs


def program(kind: str, memory_mib: str = "16000", seconds: str = "1") -> None:
    (card, *_) = visible_cards()
    card.attach()
    if kind == "grow":
        grow(card, int(memory_mib), float(seconds))
    elif kind == "train":
        card.allocate(int(memory_mib))
        compute(card, float(seconds))
    else:
        card.allocate(int(memory_mib))
        compute(card, float(seconds))
        input()  # nobody is there
        compute(card, 2 * float(seconds))
    card.close()


def compute(card: Card, seconds: float) -> None:
    """Work that takes so long alone."""
    card.launch(0.5, 0.3, 0.2)
    before = time.monotonic()
    while seconds > 0:
        time.sleep(0.02)
        seconds -= (time.monotonic() - before) * card.rate()
        before = time.monotonic()  # not the time in which it was suspended
    card.launch(0.0, 0.0, 0.0)


def grow(card: Card, memory_mib: int, seconds: float) -> None:
    """More than there is beside bob's job, and less than a GPU has."""
    card.allocate(memory_mib)
    for _ in range(100):
        compute(card, seconds / 100)
        card.allocate(340)


if __name__ == "__main__":
    program(*sys.argv[1:])
