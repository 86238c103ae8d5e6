"""Fit the interference models and say how far off they are.

Also writes the coefficients that CARMA ships. Models are judged on pairs with a neural network the
fit never saw.

Lucid's scripts start two processes and no MPS, so its pairs stand for streams (time-slicing).
Gavel's dispatcher starts MPS where it is told to; its pairs on V100 are taken to have run so, for
together they get up to twice as much done as alone, which no time-slicing does. From pairs that
both fill the GPU no coefficient can be told: the sum of their demands explains them as well as
their mean does. So that of streams is used under MPS, too, where jobs wait no longer for each
other. Groups of two to eight that the hardware campaign measured judge the models, and are not
fitted: their loads are DCGM's, Lucid's follow from NVML's utilisation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import fsum, sqrt
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.harness import Report, bullets, columns
from carma_simulator import catalogue
from carma_simulator.experiment import Load
from carma_simulator.interference import Additive, Conserving, Interference, Unslowed
from carmad.core.jobs.attempt import Mode
from lab.data import DATA, FOLDS, SEEDS, Row, folds, read
from lab.main import main
from lab.pairs import (
    GAVEL,
    GUESSED,
    LUCID,
    LUCID_LICENCE,
    Rates,
    gavel_name,
    gavel_rates,
    lucid_alone,
    lucid_pairs,
)

SHIPPED = ROOT / "extras" / "carma_simulator" / "coefficients" / "interference.json"
COMMAND = "python -m lab.simulator.interference"

SATURATED = 0.85  # of the best rate over all batch sizes
GPU_BOUND = 3.0  # times as fast on V100 as on K80
# SMACT of training that NVML calls 100 % busy: the mean of nine runs on an H100, 0.63 to 0.95
# (`lab/results/hardware/nvidia-h100-80gb-hbm3/loads.md`).
FULL_SM = 0.87
COEFFICIENTS = np.arange(0.0, 4.0, 0.001)  # that are tried


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of one job beside its neighbours, on pairs one."""

    own: Load
    others: tuple[Load, ...]
    measured: float  # its speed relative to alone

    @property
    def speed(self) -> float:
        """In company nobody is faster than alone: what was measured above 1 is taken for 1."""
        return min(1.0, self.measured)

    @property
    def loads(self) -> tuple[Load, ...]:
        return self.own, *self.others

    @property
    def models(self) -> set[str]:
        return {self.own.model, *(other.model for other in self.others)}


# Said of the rows of all pairs.
WORSE = (
    "Where no demand is known but that of filling the GPU, `conserving` has no coefficient of its"
    " own: it is that of streams. On all of Gavel's pairs it is worse than their mean, which tells"
    " nothing of other jobs: most of them wait for the CPU, which no model here knows."
)

Samples = list[Sample]
Predict = Callable[[Sample], float]
Train = Callable[[Samples], Predict]


def lucid() -> tuple[Samples, Counter[str]]:
    """The sound pairs, each seen from both sides, and why the others were dropped."""
    samples, dropped = [], Counter[str]()
    for pair in lucid_pairs():
        if pair.unsound:
            dropped[pair.unsound] += 1
            continue
        loads = [_lucid_load(lucid_alone()[job]) for job in pair.jobs]
        for load, other, speed in zip(loads, loads[::-1], pair.speeds, strict=True):
            if load.model in GUESSED:
                dropped[f"sides of {' and '.join(GUESSED)}, never other than 1.000"] += 1
            else:
                samples.append(Sample(load, (other,), speed))
    return samples, dropped


def _lucid_load(row: Row) -> Load:
    sm, occupancy, dram = catalogue.activity(
        float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100
    )
    return Load(
        model=row["model"],
        batch_size=int(row["batchsize"]),
        sm_active=sm,
        sm_occupancy=occupancy,
        dram_active=dram,
    )


def gavel(gpu: str) -> tuple[Samples, Counter[str]]:
    """All single-GPU pairs that ran.

    Gavel tells of no utilisation. What a job asks of the SMs is taken to be `FULL_SM` times its
    rate in samples/s over that of its best batch size; with one batch size only, it is known where
    the job is GPU-bound: then it asks for all. DRAM remains unknown, and 0.
    """
    rates, loads = gavel_rates(gpu), _gavel_loads(gpu)
    samples, dropped = [], Counter[str]()
    for job, row in rates.items():
        for other, pair in row.items():
            if other == "null":
                continue
            if job not in loads or other not in loads:
                dropped["sides of pairs with a job of unknown demand"] += 1
            elif min(pair) <= 0:
                dropped["sides of pairs that did not run (out of memory)"] += 1
            else:
                samples.append(Sample(loads[job], (loads[other],), pair[0] / row["null"]))
    return samples, dropped


def saturating() -> tuple[Samples, Counter[str]]:
    """The pairs on V100 of which it is certain that both jobs want the whole GPU, and get it.

    V100 is the one of Gavel's GPUs on which MPS runs kernels of two processes side by side. Kept
    are GPU-bound jobs of models that lose nothing to the CPU: two of them together never get less
    done than one alone.
    """
    rates = gavel_rates("v100")
    losers = {
        gavel_name(job)[0]
        for job, row in rates.items()
        if 0 < sum(row.get(job, [])) < 0.95 * row["null"]
    }
    samples, dropped = gavel("v100")
    kept = []
    for sample in samples:
        if sample.models & losers:
            dropped["sides of pairs with a model that contends for the CPU"] += 1
        elif min(load.sm_active for load in sample.loads) < FULL_SM * SATURATED:
            dropped[f"sides of pairs with a job below {SATURATED} of its best rate"] += 1
        else:
            kept.append(sample)
    return kept, dropped


def _gavel_loads(gpu: str) -> dict[str, Load]:
    rates, v100, k80 = (gavel_rates(kind) for kind in (gpu, "v100", "k80"))
    loads = {}
    for model, jobs in _models(rates).items():
        best = max(rates[job]["null"] * size for job, size in jobs)
        for job, size in jobs:
            gpu_bound = v100[job]["null"] >= GPU_BOUND * k80[job]["null"]
            if len(jobs) > 1 or gpu_bound:
                share = rates[job]["null"] * size / best
                loads[job] = Load(model, size, sm_active=FULL_SM * share, dram_active=0.0)
    return loads


def _models(rates: Rates) -> dict[str, list[tuple[str, int]]]:
    models: dict[str, list[tuple[str, int]]] = {}
    for job in rates:
        model, size = gavel_name(job)
        models.setdefault(model, []).append((job, size))
    return models


def fit(samples: Samples) -> float:
    """The coefficient of `Conserving`, ≥ 0: least squares on the speeds."""
    own = np.array([sample.own.sm_active for sample in samples])
    sm = np.array([fsum(load.sm_active for load in sample.loads) for sample in samples])
    dram = np.array([fsum(load.dram_active for load in sample.loads) for sample in samples])
    speeds = np.array([sample.speed for sample in samples])
    regression = 1 + COEFFICIENTS[:, None] * own * (sm - own)
    slowdowns = np.maximum(regression, np.maximum(sm, dram))
    errors = np.square(1 / slowdowns - speeds).sum(axis=1)
    return float(COEFFICIENTS[errors.argmin()])


def _fixed(model: Interference, mode: Mode) -> Train:
    return lambda samples: lambda s: model.speeds(s.loads, mode)[0]


def _fitted(mode: Mode) -> Train:
    return lambda samples: _fixed(Conserving({mode: fit(samples)}), mode)(samples)


def _mean(samples: Samples) -> Predict:
    mean = float(np.mean([sample.speed for sample in samples]))
    return lambda s: mean


def judge(samples: Samples, train: Train, folds: Sequence[set[str]]) -> tuple[float, float, int]:
    """RMSE and R² over all pairs with a held-out model, and how many predictions that were."""
    errors, truths = [], []
    for held_out in folds:
        seen = [sample for sample in samples if not sample.models & held_out]
        unseen = [sample for sample in samples if sample.models & held_out]
        predict = train(seen)
        errors += [predict(sample) - sample.speed for sample in unseen]
        truths += [sample.speed for sample in unseen]
    squares = sum(error**2 for error in errors)
    spread = len(truths) * float(np.var(truths))
    return sqrt(squares / len(errors)), 1 - squares / spread, len(errors)


def _folds(samples: Samples) -> list[set[str]]:
    """By model, over several shuffles; with few models, each one by itself."""
    models = sorted(set().union(*(sample.models for sample in samples)))
    if len(models) < 2 * FOLDS:
        return [{model} for model in models]
    return [fold for seed in SEEDS for fold in folds(models, seed)]


def compare(
    name: str,
    mode: Mode,
    samples: Samples,
    coefficient: float | None = None,
    held_out: Sequence[set[str]] | None = None,
) -> list[dict[str, object]]:
    """Every model on `samples`. `coefficient`: of `conserving`, from other data; None: it is fitted
    on the samples that are not held out. `held_out`: the models that are, in turn; by default
    folds of them."""
    held_out = held_out or _folds(samples)
    told = None if coefficient is None else _fixed(Conserving({mode: coefficient}), mode)
    trains: dict[str, Train] = {
        "mean of the training pairs": _mean,
        "none": _fixed(Unslowed(), mode),
        "additive": _fixed(Additive(), mode),
        "conserving": told or _fitted(mode),
    }
    rows = []
    for model, train in trains.items():
        rmse, r2, predictions = judge(samples, train, held_out)
        row = {"data": name, "mode": str(mode), "sides": len(samples), "model": model}
        rows.append(row | {"predictions": predictions, "rmse": round(rmse, 4), "r2": round(r2, 3)})
    return rows


def mapping() -> dict[str, float]:
    """How well `catalogue.activity` tells SMACT and SMOCC from NVML's utilisation, on an A100."""
    runs = [
        [float(row[name]) for name in ("Avg GPUTL", "Avg SMACT", "Avg SMOCC")]
        for row in read("memory/mlp_runs.csv")
    ]
    told = np.array([catalogue.activity(utilisation / 100, 0.0)[:2] for utilisation, *_ in runs])
    truth = np.array([run[1:] for run in runs])
    sm, occupancy = np.sqrt(np.mean((told - truth) ** 2, axis=0))
    return {"runs": len(runs), "smact_rmse": round(sm, 3), "smocc_rmse": round(occupancy, 3)}


def measure() -> Report:
    streams, lucid_dropped = lucid()
    mps, gavel_dropped = saturating()
    coefficient = round(fit(streams), 3)
    rows = compare("Lucid, RTX 3090", Mode.STREAMS, streams)
    rows += compare("Gavel, V100, saturating pairs", Mode.MPS, mps, coefficient)
    for gpu in ("v100", "p100", "k80"):
        rows += compare(f"Gavel, {gpu.upper()}, all pairs", Mode.MPS, gavel(gpu)[0], coefficient)
    fits = {
        mode: {"sm": coefficient} | _origin(*its)
        for mode, its in {
            "streams": (LUCID, LUCID_LICENCE, streams, lucid_dropped),
            "mps": (GAVEL, "MIT", mps, gavel_dropped),
        }.items()
    }
    split = f"by model: {FOLDS} folds, seeds {SEEDS.start}–{SEEDS[-1]}; few models: each by itself"
    facts = {"fitted": datetime.now(UTC).date().isoformat(), "command": COMMAND, "split": split}
    shipped = json.dumps(facts | {"modes": fits}, indent=2, ensure_ascii=False)
    SHIPPED.write_text(shipped + "\n")
    found = {"modes": fits, "held_out": rows, "mapping": mapping()}
    return Report(
        "Interference models, on neural networks that the fit has not seen",
        _blocks(found),
        found,
        [f"split {split}"],
    )


def _origin(data: str, licence: str, samples: Samples, dropped: Counter[str]) -> dict[str, object]:
    return {
        "data": data,
        "licence": licence,
        "sides_of_pairs": len(samples),
        "taken_for_1": sum(sample.measured > 1 for sample in samples),
        "dropped": dict(dropped),
    }


def table(compared: Sequence[Mapping[str, object]]) -> str:
    """Of what `compare` found."""
    return columns(
        compared,
        ("data", "{0[data]}"),
        ("mode", "{0[mode]}"),
        ("sides of pairs", "{0[sides]}"),
        ("model", "{0[model]}"),
        ("RMSE of the speed", "{0[rmse]:.3f}"),
        ("R²", "{0[r2]:.2f}"),
        text=(0, 1, 3),
    )


def _blocks(found: Mapping[str, Any]) -> list[str]:
    mapped = found["mapping"]
    blocks = [table(found["held_out"]), WORSE]
    for mode, fitted in found["modes"].items():
        blocks += [
            f"## Shipped for {mode}: {fitted['sm']}",
            f"From {fitted['data']}. Licence: {fitted['licence']}. "
            f"{fitted['sides_of_pairs']} sides of pairs were used, {fitted['taken_for_1']} of them "
            "with a speed above 1 that is taken for 1. Of the others:",
            bullets(f"{count} {why}" for why, count in fitted["dropped"].items()),
        ]
    return [
        *blocks,
        "## From NVML's utilisation to SMACT and SMOCC",
        f"On {mapped['runs']} MLP training runs on an A100 (GPUMemNet, no licence stated): RMSE "
        f"{mapped['smact_rmse']} of SMACT, {mapped['smocc_rmse']} of SMOCC.",
    ]


if __name__ == "__main__":
    main("interference", measure, DATA)
