"""What DCGM's background health checks find wrong with GPUs, asked of a running DCGM by `dcgmi`.

They change nothing on a GPU. DCGM makes them once somebody has switched its watches on.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from carmad import beats
from carmad.core.types import Condition, GpuId
from carmad.gpu.dcgm import Entity, parse_discovery

EVERY_S = 60.0
SILENT_EVERY_S = 600.0  # DCGM is not running, perhaps
_ANSWER_S = 20.0
_LATE_S = 4 * _ANSWER_S
_OFF = "watches not enabled"
_FAILURE = "Failure"
MOST_LETTERS = 300


class DcgmHealth:
    """Asks in a thread, from `open` to `close`."""

    def __init__(self, command: str = "dcgmi") -> None:
        self._command = command
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._conditions: Mapping[GpuId, tuple[Condition, ...]] = {}

    def open(self) -> None:
        self._stopping.clear()
        self._thread = beats.thread("dcgm-health", _LATE_S, self._keep_asking)
        self._thread.start()

    def conditions(self, gpu: GpuId) -> tuple[Condition, ...]:
        """Of a physical GPU, as of the last answer. Does not block."""
        return self._conditions.get(gpu, ())

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._conditions = {}

    # --- in the thread ---

    def _keep_asking(self) -> None:
        while not self._stopping.is_set():
            beats.at("DCGM's health checks")
            found = self._look()
            beats.idle()
            self._conditions = found or {}
            self._stopping.wait(SILENT_EVERY_S if found is None else EVERY_S)

    def _look(self) -> Mapping[GpuId, tuple[Condition, ...]] | None:
        """None if DCGM does not answer."""
        said = self._ask("health", "-g", "0", "-c", "-j")
        if _OFF in said:
            self._ask("health", "-g", "0", "-s", "a")
            return {}
        found = parse_health(said)
        if found is None:
            return None
        places = parse_discovery(self._ask("discovery", "-l")) if found else {}
        return {place.gpu: found[its.number] for place, its in places.items() if _has(found, its)}

    def _ask(self, *words: str) -> str:
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
        with process:
            waited = 0.0
            while waited < _ANSWER_S and not self._stopping.is_set():
                with suppress(subprocess.TimeoutExpired):
                    return process.communicate(timeout=0.5)[0]
                waited += 0.5
            process.kill()
        return ""


def _has(found: Mapping[int, object], entity: Entity) -> bool:
    return entity.kind == "GPU" and entity.number in found


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
        message = f"DCGM's check of its {system} says {verdict}: {said}"
        yield Condition(kind, message, drains=verdict == _FAILURE)


def _children(node: Mapping[str, Any]) -> Mapping[str, Any]:
    children = node.get("children") or {}
    return children if isinstance(children, dict) else {}
