"""Measures the stages of a training iteration with PyTorch's profiler, reports them once, and
removes itself.

An iteration ends with a step of the optimizer that steps first. After a warm-up, some iterations
are timed, then a few are profiled. On a GPU, forward and backward are the time of their
kernels, communication that of NCCL's, and load how long the script waits for its DataLoader:
what its workers do in advance is not seen. Updating the weights counts as forward, since both
come after the gradients. Without kernels (training on the CPU, or no permission to see them) the
host's own time is divided instead.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from statistics import median
from typing import Any

WARM_UP, TIMED, PROFILED = 5, 10, 4
MARK = "carma: an iteration ends"
BACKWARD = "autograd::engine::evaluate_function"
COLLECTIVES = ("c10d::", "gloo:", "nccl:", "mpi:", "ucc:")
BRIDGED_US = 1000.0  # longest gap between two nodes of one backward pass
ANSWER_WITHIN_S = 10.0
US = 1e6


def watch() -> None:
    """Call this once torch has been imported."""
    Watch()


class Watch:
    """Removes itself once it has reported, or failed."""

    def __init__(self) -> None:
        from torch.autograd.profiler import profile
        from torch.compiler import is_compiling
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def on_step(optimizer: Any, *_: Any) -> None:
            """Skips torch.compile's tracing of this function, which could fail."""
            if not is_compiling():
                self._on_step(optimizer)

        self._ends: list[float] = []
        self._optimizer = 0  # the id of the one that stepped first
        self._thread = 0
        self._profile: Any = None
        self._starting = False
        self._kind, self._init = profile, profile.__init__
        profile.__init__ = self._others()
        self._hook = register_optimizer_step_post_hook(on_step)

    def _others(self) -> Any:
        """Gives up if the job starts a profiler of its own: only one can run at a time."""
        watch = self

        def init(profile: Any, *args: Any, **kwargs: Any) -> None:
            if not watch._starting:
                watch._give_up("the job uses PyTorch's profiler itself")
            watch._init(profile, *args, **kwargs)

        return init

    def _on_step(self, optimizer: Any) -> None:
        try:
            self._step(optimizer)
        except Exception as error:  # noqa: BLE001 - the job must continue whatever happens
            self._give_up(repr(error))

    def _step(self, optimizer: Any) -> None:
        from torch import cuda

        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # not an iteration; and starting or stopping a profiler would break the graph
        if not self._ends:
            if _rank():
                self._remove()  # the first process reports for all
                return
            self._optimizer, self._thread = id(optimizer), threading.get_ident()
        if (id(optimizer), threading.get_ident()) != (self._optimizer, self._thread):
            return
        self._ends.append(time.monotonic())
        count = len(self._ends) - 1 - WARM_UP - TIMED
        if count == 0:
            self._begin()
        if count >= 0:
            _mark()
        if count == PROFILED + 1:  # the first one includes the profiler's startup
            self._finish()

    def _begin(self) -> None:
        from torch import cuda
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda.is_initialized()
        self._starting = True
        atexit.register(self._stop)
        self._profile = profile(activities=activities)
        self._profile.start()
        self._starting = False

    def _finish(self) -> None:
        profile, self._profile = self._profile, None
        self._remove()
        profile.stop()
        ends = self._ends[WARM_UP : WARM_UP + TIMED + 1]
        seconds = median(after - before for before, after in zip(ends, ends[1:]))
        tell(seconds, divide(list(profile.events()), seconds))

    def _give_up(self, why: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, or the disk is full
            print(f"carma: stages were not measured: {why}", file=sys.stderr)
        self._stop()

    def _stop(self) -> None:
        """Also called at exit: the interpreter crashes if it exits while a profiler is on."""
        profile, self._profile = self._profile, None
        self._remove()
        if profile is not None:
            with contextlib.suppress(Exception):  # it may not have started
                profile.stop()

    def _remove(self) -> None:
        atexit.unregister(self._stop)
        self._hook.remove()
        self._kind.__init__ = self._init


def _rank() -> int:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)


def _mark() -> None:
    from torch.profiler import record_function

    with record_function(MARK):
        pass


def divide(events: list[Any], seconds: float) -> dict[str, Any]:
    """Stage times of one iteration, from the events of profiled ones and the duration without.

    The profiler slows down the host but not the kernels, so the host's times are scaled back.
    """
    host = [event for event in events if event.device_type.name == "CPU"]
    marks = sorted(event.time_range.start for event in host if event.name == MARK)[1:]
    if len(marks) < 2:
        raise ValueError("the profiler has not recorded the iterations")
    count, begin, end = len(marks) - 1, marks[0], marks[-1]
    wall_us = end - begin
    scale = seconds * count / wall_us

    def spans(belongs: Any) -> list[tuple[float, float]]:
        found = ((e.time_range.start, e.time_range.end) for e in host if belongs(e.name))
        return [(max(a, begin), min(b, end)) for a, b in found if a < end and b > begin]

    load = spans(lambda name: "DataLoader" in name and "__next__" in name)
    backward = spans(lambda name: name.startswith(BACKWARD))
    gathered = _merge(backward, BRIDGED_US)
    told = spans(lambda name: name.startswith(COLLECTIVES))
    kernels = _kernels(host, gathered, begin, end)
    if any(kernels):
        forward_s, backward_s, communication_s = (us / US / count for us in kernels)
    else:
        busy = _length(_merge([*load, *gathered, *told]))
        forward_us = wall_us - busy
        parts = forward_us, _length(gathered), _length(_merge(told))
        forward_s, backward_s, communication_s = (us * scale / count for us in parts)
    return {
        "load_s": _length(_merge(load)) * scale / count,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "communication_s": communication_s,
        # PyTorch's own optimizers step once the gradients are there, within the iteration.
        "sync": "backward" if communication_s else "forward",
    }


def _kernels(
    host: list[Any], backward: list[tuple[float, float]], begin: float, end: float
) -> tuple[float, float, float]:
    """Total time of the forward, backward and communication kernels, in µs."""
    spoken = {event.name for event in host}  # a range that is also shown on the GPU is not a kernel
    forward_us = backward_us = communication_us = 0.0
    for event in host:
        at = event.time_range.start
        if not begin <= at < end:
            continue
        for kernel in event.kernels:
            if kernel.name in spoken:
                continue
            if "nccl" in kernel.name.lower():
                communication_us += kernel.duration
            elif any(a <= at <= b for a, b in backward):
                backward_us += kernel.duration
            else:
                forward_us += kernel.duration
    return forward_us, backward_us, communication_us


def _merge(spans: list[tuple[float, float]], bridged: float = 0.0) -> list[tuple[float, float]]:
    """The union of the spans, with gaps of up to `bridged` filled."""
    made: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if made and begin <= made[-1][1] + bridged:
            made[-1] = made[-1][0], max(end, made[-1][1])
        else:
            made.append((begin, end))
    return made


def _length(spans: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


def tell(seconds: float, stages: dict[str, Any]) -> None:
    """As `carma report --step`. Raises OSError, and ValueError with carmad's message."""
    body = json.dumps({"seconds": seconds, "stages": stages})
    with closing(HTTPConnection("carma")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(ANSWER_WITHIN_S)
        connection.sock.connect(os.environ["CARMA_SOCKET"])
        path = f"/v1/jobs/{os.environ['CARMA_JOB_ID']}/step"
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
    if answer.status != 200:
        raise ValueError(json.loads(said or b"{}").get("error", "carmad gave no answer"))
