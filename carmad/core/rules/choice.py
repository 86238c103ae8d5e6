"""Which GPUs a job accepts: by kind and size (`--constraint`, `--gpus a100:2`), or by number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.spec import JobSpec

MIB_PER_GB = 10**9 / 2**20
SHORT = 0.97  # of what a card is sold as, at least this is there: 11,441 MiB of a K80's 12 GB
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(?:g|gb|gib)")


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """What a GPU must be. Empty fields accept any."""

    kinds: tuple[tuple[str, ...], ...] = ()  # alternatives, each of words that all hold
    on: frozenset[int] = frozenset()  # numbers of GPUs
    not_on: frozenset[int] = frozenset()

    def accepts(self, gpu: Gpu) -> bool:
        if gpu.index in self.not_on or (self.on and gpu.index not in self.on):
            return False
        return not self.kinds or any(
            all(_holds(word, gpu.name, gpu.memory_mib) for word in words) for words in self.kinds
        )

    def __str__(self) -> str:
        """As in "the job wants GPUs with …"."""
        parts = [" or ".join(" and ".join(words) for words in self.kinds)] if self.kinds else []
        for name, numbers in (("number", self.on), ("any number but", self.not_on)):
            if numbers:
                parts.append(f"{name} {' or '.join(map(str, sorted(numbers)))}")
        return ", ".join(parts)


def choice(spec: JobSpec) -> GpuChoice | None:
    """None: any GPU."""
    return parse_choice(spec.constraint, spec.on, spec.not_on)


@lru_cache(maxsize=1024)
def parse_choice(constraint: str | None, on: str | None, not_on: str | None) -> GpuChoice | None:
    """constraint: words joined by & (all hold) and | (alternatives): a100, rtx3090, a100-40gb, 80g
    (at least that size). on, not_on: numbers joined by commas."""
    alternatives = (constraint or "").lower().split("|")
    kinds = (tuple(re.findall(r"[a-z0-9.]+", one)) for one in alternatives)
    found = GpuChoice(tuple(filter(None, kinds)), _numbers(on), _numbers(not_on))
    return None if found == GpuChoice() else found


def filter_gpus(gpus: Iterable[Gpu], chosen: GpuChoice | None) -> list[Gpu]:
    return [gpu for gpu in gpus if chosen is None or chosen.accepts(gpu)]


def _numbers(text: str | None) -> frozenset[int]:
    return frozenset(int(number) for number in (text or "").split(",") if number)


@lru_cache(maxsize=1024)
def _holds(word: str, name: str, memory_mib: int) -> bool:
    """A size is a lower limit. Other words are one or more successive words of the name, so that a
    V100 is not taken for a V10: "rtx3090" holds for "NVIDIA GeForce RTX 3090"."""
    if size := _SIZE.fullmatch(word):
        return memory_mib >= float(size[1]) * MIB_PER_GB * SHORT
    words = re.findall(r"[a-z0-9]+", name.lower())
    runs = (
        "".join(words[first:end])
        for first in range(len(words))
        for end in range(first + 1, len(words) + 1)
    )
    return word in runs
