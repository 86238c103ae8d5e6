"""What DCGM's background health checks find wrong with GPUs, asked of a running DCGM by `dcgmi`.

They change nothing on a GPU. DCGM makes them once somebody has switched its watches on.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from carmad import beats
from carmad.core.types import Condition, GpuId
from carmad.gpu.dcgm import parse_discovery

EVERY_S = 60.0
SILENT_EVERY_S = 600.0  # DCGM is not running, perhaps
_ANSWER_S = 20.0
_CLOSE_S = 2.0
_LATE_S = 4 * _ANSWER_S
_OFF = "watches not enabled"
_FAILURE = "Failure"
MOST_LETTERS = 300


class DcgmHealth:
    """Asks in a thread, from `open` to `close`. What was found stays until DCGM says otherwise: its
    silence does not mean that a condition is over."""

    def __init__(self, command: str = "dcgmi") -> None:
        self._command = command
        self._stopping = threading.Event()  # one for each thread
        self._thread: threading.Thread | None = None
        self._conditions: Mapping[GpuId, tuple[Condition, ...]] = {}

    def open(self) -> None:
        self._stopping = threading.Event()
        ask = partial(self._keep_asking, self._stopping)
        self._thread = beats.thread("dcgm-health", _LATE_S, ask)
        self._thread.start()

    def conditions(self, gpu: GpuId) -> tuple[Condition, ...]:
        """Of a physical GPU, as of the last answer. Does not block."""
        return self._conditions.get(gpu, ())

    def close(self) -> None:
        """Leaves a thread alone that a dcgmi keeps which cannot be killed."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._thread = None

    # --- in the thread ---

    def _keep_asking(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            beats.at("DCGM's health checks")
            said = self._ask(stopping, "health", "-g", "0", "-c", "-j")
            if _OFF in said:
                self._ask(stopping, "health", "-g", "0", "-s", "a")
            found = self._find(stopping, said)
            beats.idle()
            if found is not None and not stopping.is_set():
                self._conditions = found
            stopping.wait(SILENT_EVERY_S if found is None and _OFF not in said else EVERY_S)

    def _find(
        self, stopping: threading.Event, said: str
    ) -> Mapping[GpuId, tuple[Condition, ...]] | None:
        """None if DCGM has not said."""
        found = parse_health(said)
        if not found:
            return None if found is None else {}
        places = parse_discovery(self._ask(stopping, "discovery", "-l"))
        gpus = {its.number: place.gpu for place, its in places.items() if its.kind == "GPU"}
        if not found.keys() <= gpus.keys():
            return None
        return {gpus[number]: conditions for number, conditions in found.items()}

    def _ask(self, stopping: threading.Event, *words: str) -> str:
        """What it printed; "" if it cannot be run, or takes too long."""
        process = None
        with suppress(OSError):
            process = subprocess.Popen(
                [self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        if process is None:
            return ""
        waited = 0.0
        while waited < _ANSWER_S and not stopping.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=0.5)[0]
            waited += 0.5
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0.5)
        return ""


def parse_health(said: str) -> dict[int, tuple[Condition, ...]] | None:
    """Conditions by DCGM's number of the GPU, from the output of `dcgmi health -c -j`; those of MIG
    instances and switches are left out. None for any other text."""
    start = said.find("{")
    try:
        body = json.loads(said[start:])["body"] if start >= 0 else None
        gpus = _children(body.get("GPU", {})) if isinstance(body, dict) else None
        if gpus is None:
            return None
        return {int(number): tuple(_conditions(its)) for number, its in gpus.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _conditions(gpu: Mapping[str, Any]) -> Iterator[Condition]:
    for system, its in _children(_children(gpu).get("Errors", {})).items():
        kind = "dcgm_" + system.removesuffix(" system").lower()
        said = " ".join(its.get("overflow", ()))[:MOST_LETTERS]
        verdict = its.get("value", "")
        message = f"DCGM reports {verdict} for the {system}: {said}"
        yield Condition(kind, message, drains=verdict == _FAILURE)


def _children(node: Mapping[str, Any]) -> Mapping[str, Any]:
    children = node.get("children") or {}
    return children if isinstance(children, dict) else {}
