"""What DCGM's background health checks find wrong with GPUs, asked of a running DCGM by `dcgmi`.

They change nothing on a GPU. DCGM makes them once somebody has switched its watches on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from carmad import beats
from carmad.core.gpus.gpu import Condition
from carmad.core.jobs.attempt import GpuId
from carmad.gpu.dcgm import LATE_S, Dcgmi, parse_discovery

EVERY_S = 60.0
SILENT_EVERY_S = 600.0  # DCGM is not running, perhaps
_CLOSE_S = 2.0
_OFF = "watches not enabled"
_FAILURE = "Failure"
MOST_LETTERS = 300


class DcgmHealth:
    """Asks in a thread, from `open` to `close`. What was found stays until DCGM says otherwise: its
    silence does not mean that a condition is over."""

    def __init__(self, command: str = "dcgmi") -> None:
        self._command = command
        self._dcgmi = Dcgmi(command)
        self._stopping = threading.Event()  # one for each thread, as is the command
        self._thread: threading.Thread | None = None
        self._conditions: Mapping[GpuId, tuple[Condition, ...]] = {}

    def open(self) -> None:
        self._stopping, self._dcgmi = threading.Event(), Dcgmi(self._command)
        ask = partial(self._keep_asking, self._stopping, self._dcgmi)
        self._thread = beats.thread("dcgm-health", LATE_S, ask)
        self._thread.start()

    def conditions(self, gpu: GpuId) -> tuple[Condition, ...]:
        """Of a physical GPU, as of the last answer. Does not block."""
        return self._conditions.get(gpu, ())

    def close(self) -> None:
        """Leaves a thread alone that a dcgmi keeps which cannot be killed."""
        self._stopping.set()
        self._dcgmi.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._thread = None

    # --- in the thread ---

    def _keep_asking(self, stopping: threading.Event, dcgmi: Dcgmi) -> None:
        while not stopping.is_set():
            beats.at("DCGM's health checks")
            found, off = None, False
            with suppress(OSError):
                text = dcgmi.ask("health", "-g", "0", "-c", "-j")
                if off := _OFF in text:
                    dcgmi.ask("health", "-g", "0", "-s", "a")
                found = _find(dcgmi, text)
            beats.idle()
            if found is not None and not stopping.is_set():
                self._conditions = found
            stopping.wait(EVERY_S if off or found is not None else SILENT_EVERY_S)


def _find(dcgmi: Dcgmi, text: str) -> Mapping[GpuId, tuple[Condition, ...]] | None:
    """None if DCGM has not answered. Raises OSError if dcgmi cannot be run."""
    found = parse_health(text)
    if not found:
        return None if found is None else {}
    places = parse_discovery(dcgmi.ask("discovery", "-l"))
    gpus = {its.number: place.gpu for place, its in places.items() if its.kind == "GPU"}
    if not found.keys() <= gpus.keys():
        return None
    return {gpus[number]: conditions for number, conditions in found.items()}


def parse_health(text: str) -> dict[int, tuple[Condition, ...]] | None:
    """Conditions by DCGM's number of the GPU, from the output of `dcgmi health -c -j`; those of MIG
    instances and switches are left out. None for any other text."""
    start = text.find("{")
    try:
        body = json.JSONDecoder().raw_decode(text, start)[0]["body"] if start >= 0 else None
        gpus = _children(body.get("GPU", {})) if isinstance(body, dict) else None
        if gpus is None:
            return None
        return {int(number): tuple(_conditions(its)) for number, its in gpus.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _conditions(gpu: Mapping[str, Any]) -> Iterator[Condition]:
    for system, its in _children(_children(gpu).get("Errors", {})).items():
        kind = "dcgm_" + system.removesuffix(" system").lower()
        details = " ".join(its.get("overflow", ()))[:MOST_LETTERS]
        verdict = its.get("value", "")
        message = f"DCGM reports {verdict} for the {system}: {details}"
        yield Condition(kind, message, drains=verdict == _FAILURE)


def _children(node: Mapping[str, Any]) -> Mapping[str, Any]:
    children = node.get("children") or {}
    return children if isinstance(children, dict) else {}
