"""What the benchmarks of memory estimators share: measured MLPs, halves to fit on and to judge,
accuracy."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.harness import Row, markdown_table, percentile
from lab.data import DATA, read

MLPS, TIMM = DATA / "memory" / "mlp_runs.csv", DATA / "memory" / "timm_runs.csv"
GIB = 1024  # MiB
MIB = 2**20  # bytes
SCALE = {"MiB": 1, "GiB": GIB}
PERCENTILES = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Network:
    """A multilayer perceptron that GPUMemNet's authors measured."""

    name: str
    layers: tuple[tuple[str, int, int], ...]  # kind, outputs, parameters
    batch: int
    peak_mib: int

    @property
    def fitted(self) -> bool:
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 0


def networks() -> list[Network]:
    return [
        Network(
            row["Filename"],
            tuple(ast.literal_eval(row["Activations-Params"])),
            int(row["Batch Size"]),
            int(row["Max GPU Memory (MiB)"]),
        )
        for row in read(MLPS)
        if row["Max GPU Memory (MiB)"]
    ]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of n estimates: absolute errors in MiB by PERCENTILES, and shares of the estimates, 0–1."""

    n: int
    absolute: tuple[float, ...]
    within_gib: float
    under: float
    under_gib: float  # by more than that
    bias: float  # the median error: above 0 it says too much


def accuracy(errors: Sequence[float]) -> Accuracy:
    """`errors`: estimate − truth, in MiB; at least one."""
    sizes = [abs(error) for error in errors]

    def share(some: Sequence[bool]) -> float:
        return sum(some) / len(some)

    return Accuracy(
        len(errors),
        tuple(percentile(sizes, q) for q in PERCENTILES),
        share([size <= GIB for size in sizes]),
        share([error < 0 for error in errors]),
        share([error < -GIB for error in errors]),
        percentile(errors, 0.5),
    )


def error_rows(one: Accuracy, unit: str, bounds: Sequence[float | None]) -> list[Row]:
    """`unit`: MiB or GiB, also of the bounds, by PERCENTILES."""
    return [
        Row("expected", f"absolute error P{round(100 * q)}", size / SCALE[unit], unit, bound)
        for q, size, bound in zip(PERCENTILES, one.absolute, bounds, strict=True)
    ]


def comparison(named: Sequence[tuple[str, Accuracy]], unit: str, published: Sequence[str]) -> str:
    """Markdown; `unit`: MiB or GiB. `published`: cells of a row from elsewhere, name first."""
    scale, digits = SCALE[unit], {"MiB": 0, "GiB": 2}[unit]
    head = ["", "n", *(f"P{round(100 * q)}" for q in PERCENTILES)]
    head += ["within 1 GiB", "under", "under by > 1 GiB", "bias"]
    rows = [
        [
            name,
            str(one.n),
            *(f"{value / scale:.{digits}f}" for value in one.absolute),
            *(f"{share:.1%}" for share in (one.within_gib, one.under, one.under_gib)),
            f"{one.bias / scale:+.{digits}f}",
        ]
        for name, one in named
    ]
    if published:
        rows.append([*published, *[""] * (len(head) - len(published))])
    return markdown_table(head, rows, numbers=range(1, len(head)))


def halves(count: Counter[str]) -> Collection[str]:
    """The names to fit on. Of two names of about the same count, chance takes one: a hash, so that
    it is the same one every time."""
    ranked = sorted(count, key=lambda name: (-count[name], name))
    pairs = zip(ranked[::2], ranked[1::2], strict=False)
    return {min(pair, key=lambda name: hashlib.sha256(name.encode()).digest()) for pair in pairs}


Sides = Mapping[str, Mapping[str, Accuracy]]  # judged and fitted; by what was said


def kept(sides: Sides) -> dict[str, dict[str, dict[str, object]]]:
    """For machines."""
    return {side: {n: asdict(a) for n, a in some.items()} for side, some in sides.items()}
