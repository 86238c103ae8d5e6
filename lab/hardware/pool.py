"""Training processes that are held: loaded and warm on the GPU, and training only when told to.

So that hundreds of combinations fit into minutes: an idle context takes memory and no time slices.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, TypeVar

from carmad.attempt.environment import NO_MPS
from lab.hardware.training import Trained, Window, command, event, parse, window

START_S = 30.0  # that two dozen take to load, by estimate
EACH_MIB = 7_000  # of the GPU for each of those held at once: a full one changes what cuDNN chooses
READY_WITHIN_S = 150.0
REST_WITHIN_S = 60.0  # on top of the window
END_WITHIN_S = 20.0
KILLED_WITHIN_S = 10.0

Env = Mapping[str, str]
Answer = TypeVar("Answer")


class Lost(Exception):
    """A training process ended, or is silent; the message says what it said last."""


class Worker:
    """One `train.py --held`, or another script that is told to go on by lines."""

    def __init__(self, argv: Sequence[str], env: Env) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: list[str] = []
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended: whoever waits for it is told
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def next(self, within_s: float) -> dict[str, Any]:
        """The next event. Raises Lost."""
        try:
            found = self._events.get(timeout=within_s)
        except queue.Empty:
            raise Lost(f"silent for {within_s:g} s") from None
        if found is None:
            raise Lost(self._last_words())
        return found

    def hear(self, what: str, within_s: float) -> dict[str, Any]:
        """The next event, which must be `what`. Raises Lost."""
        found = self.next(within_s)
        if found["event"] != what:
            raise Lost(f"said {found['event']} before {what}")
        return found

    def rest(self, seconds: float) -> Window:
        """The window of `seconds` that it was told to train for. Raises Lost."""
        return window(self.hear("steps", seconds + REST_WITHIN_S))

    def end(self) -> Trained:
        """Let it come to its end. Raises Lost."""
        assert self._process.stdin
        self._process.stdin.close()
        self.hear("done", END_WITHIN_S)
        return parse("\n".join(self._lines))

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver
            self._process.wait(KILLED_WITHIN_S)
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.append(line)
            if found := event(line):
                self._events.put(found)
        self._events.put(None)

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        return said[-1][:300] if said else "it ended without a word"


def held(name: str, env: Env, rehearse: bool) -> Worker:
    return Worker([*command(name, rehearse=rehearse), "--held"], env)


def on(gpu: str, pipe: str = NO_MPS, percentage: int = 100) -> dict[str, str]:
    """Environment of a training process: its GPU, and its MPS daemon if there is one."""
    return {
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{percentage}",
    }


class Pool:
    """Held workers by name, all on one GPU. Those that did not come up are in `lost`, with why."""

    def __init__(self, names: Iterable[str], env: Env, rehearse: bool) -> None:
        self._names, self._env, self._rehearse = tuple(names), env, rehearse
        self.workers: dict[str, Worker] = {}
        self.lost: dict[str, str] = {}

    def __enter__(self) -> Pool:
        try:
            for name in self._names:
                self.workers[name] = held(name, self._env, self._rehearse)
            deadline = time.monotonic() + READY_WITHIN_S
            for name in self._names:
                left = max(1.0, deadline - time.monotonic())
                self._ask(name, partial(Worker.hear, what="ready", within_s=left))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    def _kill(self) -> None:
        for worker in self.workers.values():
            worker.kill()

    def train(self, names: Sequence[str], seconds: float) -> dict[str, Window]:
        """Windows of these, trained at the same time; {} if one of them is lost."""
        if any(name in self.lost for name in names):
            return {}
        for name in names:
            self.workers[name].tell(json.dumps(seconds))
        windows: dict[str, Window] = {}
        for name in names:
            if found := self._ask(name, partial(Worker.rest, seconds=seconds)):
                windows[name] = found
        return windows if len(windows) == len(names) else {}

    def _ask(self, name: str, do: Callable[[Worker], Answer]) -> Answer | None:
        """What the worker answers; None if it is lost."""
        try:
            return do(self.workers[name])
        except Lost as error:
            self.lost[name] = str(error)
            return None


def most(gpu_mib: int) -> int:
    """How many may be held at once on a GPU of that memory."""
    return max(1, gpu_mib // EACH_MIB)


def common(windows: Iterable[Window]) -> list[list[float]]:
    """The seconds of each one's steps that lie wholly in the time in which all train. A window's
    first step is left out."""
    found = list(windows)
    begin = max(each.began for each in found)
    end = min(each.ended[-1] if each.ended else each.began for each in found)
    return [
        [
            seconds
            for ended, seconds in zip(each.ended[1:], each.steps[1:], strict=True)
            if begin <= ended - seconds and ended <= end
        ]
        for each in found
    ]
