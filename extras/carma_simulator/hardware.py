"""The GPUs of a simulated cluster: how many of which kind (`carmad.gpu.kinds`) on which node, and
how MIG divides them. The speed of a job on a MIG instance is in `carma_simulator.workload`.

MIG profiles: memory as `nvidia-smi mig -lgip` prints it, in GiB (published listings: H200 in issue
120 of NVIDIA/mig-parted; another driver may have 1/8 GiB more or less); slices by the MIG User
Guide, "Supported MIG Profiles".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from carmad.errors import CarmaError
from carmad.gpu.kinds import KINDS, GpuKind


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: GpuKind
    gpus: int
    instances: tuple[GpuKind, ...] = ()  # into which MIG divides each GPU; (): not divided

    @property
    def units(self) -> tuple[GpuKind, ...]:
        """What jobs can be given: the whole GPU, or its instances."""
        return self.instances or (self.kind,)


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[Node, ...]


# Memory slices: their name in GB, and their size in MiB; the largest is the whole GPU.
_MIG_SIZES = {
    "A100-40GB": {1: (5, 4_864), 2: (10, 9_984), 4: (20, 20_096), 8: (40, 40_320)},
    "A100-80GB": {1: (10, 9_728), 2: (20, 19_968), 4: (40, 40_192), 8: (80, 80_896)},
    "H100-80GB": {1: (10, 9_984), 2: (20, 20_096), 4: (40, 40_320), 8: (80, 81_024)},
    "H200-141GB": {1: (18, 16_384), 2: (35, 33_024), 4: (71, 71_168), 8: (141, 143_104)},
    "A30-24GB": {1: (6, 5_952), 2: (12, 11_968), 4: (24, 24_000)},
}
_MIG_SIZES["DGX-Station-A100-40GB"] = _MIG_SIZES["A100-40GB"]
# Compute and memory slices of each profile, by the GPU's number of memory slices.
_MIG_SLICES = {
    8: ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)),
    4: ((1, 1), (2, 2), (4, 4)),
}
# Compute slices, memory slices and MiB; the last profile is the whole GPU. Profiles whose slices
# do not exceed it in total can be placed together.
_MIG_PROFILES = {
    name: {f"{c}g.{sizes[m][0]}gb": (c, m, sizes[m][1]) for c, m in _MIG_SLICES[max(sizes)]}
    for name, sizes in _MIG_SIZES.items()
}

_BY_LOWER_NAME = {name.lower(): kind for name, kind in KINDS.items()}
_PART = re.compile(r"(?:(\d{1,5})x)?(\d{1,3})x([^/]+)(?:/(.*))?", re.IGNORECASE)
_INSTANCES = re.compile(r"(?:([1-9])x)?(.+)")


def parse(text: str) -> Cluster:
    """`3xA100-40GB` is one node with three GPUs, `250x8xV100-32GB` is 250 nodes with eight each.

    Commas separate different parts. In `2xA100-40GB/3g.20gb+2x2g.10gb` each GPU is divided
    into those MIG instances. Raises CarmaError for any other form, or an impossible division.
    """
    shapes = [shape for part in text.split(",") for shape in _nodes(part.strip(), text)]
    return Cluster(tuple(Node(f"node{i}", *shape) for i, shape in enumerate(shapes)))


def _nodes(part: str, text: str) -> list[tuple[GpuKind, int, tuple[GpuKind, ...]]]:
    match = _PART.fullmatch(part)
    kind = _BY_LOWER_NAME.get(match[3].lower()) if match else None
    if match and kind is None:
        raise _unknown(match[3])
    nodes, gpus = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if kind is None or not nodes or not gpus:
        raise CarmaError(
            f"{part!r} in {text!r} does not name GPUs that can be simulated",
            "write 3xA100-40GB, for many nodes 250x8xV100-32GB, for MIG 1xA100-40GB/7x1g.5gb; "
            f"kinds: {', '.join(KINDS)}",
        )
    instances = () if not match or match[4] is None else _instances(kind, match[4])
    return [(kind, gpus, instances)] * nodes


def _unknown(name: str) -> CarmaError:
    """Suggests kinds that begin alike, ignoring dashes; otherwise those spelt similarly."""
    plain = {lower.replace("-", ""): kind.name for lower, kind in _BY_LOWER_NAME.items()}
    asked = name.lower().replace("-", "")
    meant = [kind for lower, kind in plain.items() if lower.startswith(asked)]
    meant = meant or [plain[near] for near in get_close_matches(asked, plain, n=2)]
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    return CarmaError(f"no GPU is called {name!r}", f"{hint}kinds: {', '.join(KINDS)}")


def _instances(kind: GpuKind, text: str) -> tuple[GpuKind, ...]:
    """The instances in a text like `3g.20gb+2x2g.10gb`, for one GPU."""
    profiles = _MIG_PROFILES.get(kind.name)
    if profiles is None:
        kinds = ", ".join(_MIG_PROFILES)
        raise CarmaError(f"{kind.name} does not support MIG", f"kinds that do: {kinds}")
    names: list[str] = []
    for some in text.lower().split("+"):
        match = _INSTANCES.fullmatch(some.strip())
        names += [match[2]] * int(match[1] or 1) if match else [some]
    *_, (all_compute, all_memory, _) = profiles.values()
    known = [profiles[name] for name in names if name in profiles]
    compute, memory = (sum(slices[i] for slices in known) for i in (0, 1))
    if len(known) < len(names) or compute > all_compute or memory > all_memory:
        each = ", ".join(f"{name} ({c}, {m})" for name, (c, m, _) in profiles.items())
        raise CarmaError(
            f"{kind.name} cannot be divided into {text!r}",
            f"its profiles take, of {all_compute} compute and {all_memory} memory slices: {each}",
        )
    return tuple(
        _instance(kind, name, c / compute, c / all_compute, m / all_memory, mib)
        for name, (c, m, mib) in zip(names, known, strict=True)
    )


def _instance(
    kind: GpuKind, profile: str, idle_share: float, sm_share: float, dram_share: float, mib: int
) -> GpuKind:
    """Idle power is shared by the instances, including that of unused slices.

    Power beyond that is split by SMs, as if it were proportional to activity. In reality
    the first job costs the most: a divided GPU with few busy instances draws more.
    """
    idle_w = kind.idle_w * idle_share
    return replace(
        kind,
        name=f"{kind.name}/{profile}",
        memory_mib=mib,
        idle_w=idle_w,
        max_w=idle_w + (kind.max_w - kind.idle_w) * sm_share,
        sm_share=sm_share,
        dram_share=dram_share,
    )
