"""Creates emulated cards and reads their telemetry. The cards themselves are in `card`."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu import card
from carmad.gpu.card import Card, Reading
from carmad.gpu.kinds import KINDS, GpuKind
from carmad.gpu.source import Capabilities, Health, utilization

ISLANDS = "+"  # separates islands of one server
HINT = (
    "write it like 3xA100-40GB or 2xA100-40GB,1xV100-16GB, with + between islands of nearby GPUs;"
    " kinds: " + " ".join(KINDS)
)


def create(directory: Path, spec: str) -> None:
    """Create the cards of `spec` in `directory`. Existing cards are left as they are."""
    kinds = parse(spec)
    island_of = [n for n, part in enumerate(spec.split(ISLANDS)) for _ in parse(part)]
    try:
        if not directory.exists():
            directory.mkdir(parents=True)
            directory.chmod(0o755)  # jobs of every user need access, whatever the umask
        for index, kind in enumerate(kinds):
            path = directory / f"{uuid_of(kind, index)}{card.SUFFIX}"
            if not path.exists():
                card.create(
                    str(path),
                    index=index,
                    name=name_of(kind),
                    memory_mib=kind.memory_mib,
                    idle_w=kind.idle_w,
                    busy_w=kind.busy_w,
                    island=island_of[index],
                )
        there = len(card.paths(str(directory)))
    except OSError as error:
        raise CarmaError(f"cannot create emulated cards in {directory}: {error}") from error
    if there != len(kinds):
        raise CarmaError(
            f"{directory} has emulated cards other than {spec}", "remove it, or name another"
        )


def parse(spec: str) -> tuple[GpuKind, ...]:
    """The GPUs in a text like `2xA100-40GB,1xV100-16GB`, regardless of islands."""
    kinds: list[GpuKind] = []
    for part in spec.replace(ISLANDS, ",").split(","):
        match = re.fullmatch(r"\s*(?:(\d+)x)?(\S+)\s*", part)
        if match is None or match[2] not in KINDS:
            raise CarmaError(f"no such emulated GPU: {part.strip()!r}", HINT)
        kinds += [KINDS[match[2]]] * int(match[1] or 1)
    if not kinds:
        raise CarmaError(f"no GPU in {spec!r}", HINT)
    return tuple(kinds)


def name_of(kind: GpuKind) -> str:
    return f"Emulated {kind.product or kind.name}"


def uuid_of(kind: GpuKind, index: int) -> GpuId:
    """A deterministic UUID: GPU-e0000001-…, e for emulated and then the index."""
    made_up = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name_of(kind)}/{index}"))
    return GpuId(f"GPU-e{index:07x}{made_up[8:]}")


class EmulatedSource:
    """Reads the cards that a directory had when it was opened."""

    name = "emulated"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cards: dict[GpuId, Card] = {}
        self._lost: set[GpuId] = set()
        self._news: list[Health] = []

    def discover(self) -> tuple[Gpu, ...]:
        self.close()
        hint = "create them with `carma demo`, or point the daemon at another directory"
        try:
            found = [Card(path) for path in card.paths(str(self._directory))]
        except (OSError, ValueError) as error:
            raise CarmaError(f"cannot read emulated cards: {error}", hint) from error
        if not found:
            raise CarmaError(f"no emulated cards in {self._directory}", hint)
        found.sort(key=lambda each: each.index)
        self._cards = {GpuId(each.uuid): each for each in found}
        several = len({each.island for each in found}) > 1
        return tuple(
            Gpu(
                GpuId(each.uuid),
                each.index,
                each.name,
                each.memory_mib,
                island=str(each.island) if several else "",
                guarantees=True,
                cuda_index=each.index,
            )
            for each in found
        )

    def sample(self, at: float) -> tuple[GpuSample, ...]:
        return tuple(self._sample(gpu, each, at) for gpu, each in self._cards.items())

    def _sample(self, gpu: GpuId, each: Card, at: float) -> GpuSample:
        if each.is_lost:
            if gpu not in self._lost:
                self._lost.add(gpu)
                self._news.append(Health(gpu, at, "Xid 79: GPU has fallen off the bus", drain=True))
            return GpuSample(gpu, at, fault="GPU is lost")
        self._lost.discard(gpu)
        reading = each.read()
        gpu_utilization, memory_utilization = utilization(reading.sm_active, reading.dram_active)
        used = sum(tenant.memory_mib for tenant in reading.tenants)
        return GpuSample(
            gpu,
            at,
            memory_used_mib=used,
            memory_free_mib=each.memory_mib - used,
            sm_active=reading.sm_active,
            sm_occupancy=reading.sm_occupancy,
            dram_active=reading.dram_active,
            utilization=gpu_utilization,
            memory_utilization=memory_utilization,
            power_w=reading.power_w,
            energy_mj=reading.energy_mj,
            processes=processes(reading),
        )

    def pids(self, gpu: GpuId) -> frozenset[int] | None:
        each = self._cards.get(gpu)
        if each is None or each.is_lost:
            return None
        return frozenset(tenant.pid for tenant in each.read().tenants)

    def silent(self) -> Mapping[GpuId, str]:
        return {}

    def health(self) -> tuple[Health, ...]:
        news, self._news = tuple(self._news), []
        return news

    def capabilities(self) -> Capabilities:
        return Capabilities(
            self.name,
            provides=(
                "memory",
                "sm_active",
                "sm_occupancy",
                "dram_active",
                "utilization",
                "memory_utilization",
                "power_w",
                "energy_mj",
                "processes",
            ),
            missing=(("temperature_c", "emulated cards do not get warm"),),
            notes=("these GPUs are emulated: no real work runs on them",),
        )

    def close(self) -> None:
        for each in self._cards.values():
            each.close()
        self._cards = {}


def processes(reading: Reading) -> tuple[ProcessUse, ...]:
    """Each process with its share of the SMs; 0 before its first kernel."""
    return tuple(
        ProcessUse(tenant.pid, tenant.memory_mib, sm_util=tenant.rate * tenant.sm)
        for tenant in reading.tenants
    )
