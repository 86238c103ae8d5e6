"""How a stage starts `train.py`, and reads what it printed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

TRAIN = Path(__file__).with_name("train.py")


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that were trained without a pause. Times by the system's monotonic clock."""

    began: float
    ended: tuple[float, ...]  # when each step ended on the device

    @property
    def steps(self) -> list[float]:
        """Seconds that each took."""
        return [after - before for before, after in pairwise((self.began, *self.ended))]


@dataclass(frozen=True, slots=True)
class Trained:
    """A run of `train.py`, as far as it came. MiB are None where there was no GPU, or no end."""

    name: str
    ready_s: float  # from its first line until it was warm
    windows: tuple[Window, ...]
    done: bool = False
    allocated_mib: float | None = None
    reserved_mib: float | None = None

    @property
    def steps(self) -> list[float]:
        """Seconds that each step took, of all windows; the first of a window, which the host
        begins with an empty queue, is left out."""
        return [seconds for window in self.windows for seconds in window.steps[1:]]

    @property
    def step_s(self) -> float:
        """The median. Raises ValueError if there are too few steps."""
        return median(self.steps)


def command(
    name: str, *, steps: int | None = None, seconds: float | None = None, rehearse: bool = False
) -> list[str]:
    """What trains the workload `name`; by default for 20 steps. `rehearse`: on the CPU, small."""
    words = [sys.executable, str(TRAIN), name]
    words += [f"--steps={steps}"] if steps is not None else []
    words += [f"--seconds={seconds:g}"] if seconds is not None else []
    return words + (["--small", "--device=cpu"] if rehearse else [])


def parse(output: str) -> Trained:
    """What a run printed. Raises ValueError if it never became ready."""
    found = [line for line in map(event, output.splitlines()) if line]
    ready = next((line for line in found if line["event"] == "ready"), None)
    if ready is None:
        raise ValueError(f"it never became ready: {output[-500:]}")
    done = next((line for line in found if line["event"] == "done"), None)
    return Trained(
        ready["name"],
        ready["seconds"],
        tuple(window(line) for line in found if line["event"] == "steps"),
        done is not None,
        (done or {}).get("allocated_mib"),
        (done or {}).get("reserved_mib"),
    )


def window(line: dict[str, Any]) -> Window:
    return Window(line["began"], tuple(line["ended"]))


def event(line: str) -> dict[str, Any]:
    """What a line of the output says; {} for one of somebody else's, or cut off."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "event" in found else {}
