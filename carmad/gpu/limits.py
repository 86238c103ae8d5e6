"""Sets what jobs may have of GPUs' memory (`MemoryLimits`): by NVIDIA's driver, from R615 on, or
on emulated cards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pynvml

from carmad.core.jobs.attempt import GpuId, MemoryLimits
from carmad.gpu import card
from carmad.gpu.card import Card
from carmad.gpu.driver import MIB, Lanes, in_words

NO_LIMIT = 2**64 - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX, in bytes
NOT_ROOT = "the driver lets only root set memory limits"
NO_CGROUP = "it has no cgroup of its own"
OLD_BINDING = "the installed nvidia-ml-py does not know memory limits: it is older than 13.615"


class Limiter(Protocol):
    """Used by one thread at a time. Everything may be repeated."""

    @property
    def by_cgroup(self) -> bool:
        """Whether limits are those of a cgroup. Otherwise they can be set before there is one."""
        ...

    def limit(self, attempt: str, cgroup: str | None, limits: Iterable[MemoryLimits]) -> str:
        """Set the limits of an attempt, by the directory that its processes are marked with, or by
        its cgroup. Returns why they could not all be set; "": they are."""
        ...

    def forget(self, attempt: str) -> None:
        """Lift all limits of an attempt that is over."""
        ...


class NvmlLimiter:
    """A call to a driver that hangs is left alone, so a GPU's limits cannot keep others waiting."""

    by_cgroup = True

    def __init__(self) -> None:
        self._lanes = Lanes()

    def limit(self, attempt: str, cgroup: str | None, limits: Iterable[MemoryLimits]) -> str:
        if cgroup is None:
            return NO_CGROUP
        return "; ".join(filter(None, (self._limit(cgroup, each) for each in limits)))

    def _limit(self, cgroup: str, limits: MemoryLimits) -> str:
        lane, call = f"limits-{limits.gpu}", partial(set_limits, cgroup, limits)
        answer = self._lanes.ask(f"{cgroup} {limits}", {lane: call}).get(lane)
        return f"the driver does not answer {self._lanes.hangs(lane)}" if answer is None else answer

    def forget(self, attempt: str) -> None:
        """The driver lifts them when the cgroup is removed."""


def set_limits(cgroup: str, limits: MemoryLimits) -> str:
    """Returns why that could not be done, or ""."""
    most_mib = limits.most_mib
    most = NO_LIMIT if most_mib is None else most_mib * MIB
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(limits.gpu)
        its = pynvml.c_nvmlSetMemoryLimits_v1_t(
            os.fsencode(cgroup), limits.guaranteed_mib * MIB, most
        )
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, its)
    except AttributeError:
        return OLD_BINDING
    except pynvml.NVMLError as error:
        if not Path(cgroup).exists():
            return ""  # the attempt has just ended
        return NOT_ROOT if error.value == pynvml.NVML_ERROR_NO_PERMISSION else in_words(error)
    return ""


class EmulatedLimiter:
    """On the cards in this directory."""

    by_cgroup = False

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def limit(self, attempt: str, cgroup: str | None, limits: Iterable[MemoryLimits]) -> str:
        group = card.group_of(attempt)
        wanted = {each.gpu: each for each in limits}
        try:
            with self._cards() as cards:
                for each in cards:
                    its = wanted.get(GpuId(each.uuid))
                    if its and its.most_mib is not None:
                        each.limit(group, its.guaranteed_mib, its.most_mib)
                    elif its:
                        each.lift(group)
        except (OSError, ValueError, RuntimeError) as error:
            return str(error)
        return ""

    def forget(self, attempt: str) -> None:
        with self._cards() as cards:
            for each in cards:
                each.lift(card.group_of(attempt))

    @contextmanager
    def _cards(self) -> Iterator[list[Card]]:
        """All of them, locked in the order in which everybody locks them."""
        with ExitStack() as stack:
            cards = [Card(path) for path in card.paths(self._directory)]
            for each in cards:
                stack.callback(each.close)
            cards.sort(key=lambda each: each.index)
            for each in cards:
                stack.enter_context(each.lock())
            yield cards
