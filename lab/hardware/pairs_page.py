"""The page of stage `pairs`, from its entries and the loads of stage `loads`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from benchmarks.harness import bullets, columns, percentile
from carma_simulator.experiment import Load
from carma_simulator.interference import Additive, Conserving, Interference, Unslowed
from carmad.core.jobs.attempt import Mode
from lab.data import SEEDS, folds
from lab.hardware import loads
from lab.hardware.visit import Entry, Visit
from lab.simulator import interference
from lab.simulator.interference import Sample, fit

THIRDS = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that shared the GPU, and their speeds relative to alone with the whole of it."""

    setting: str
    names: tuple[str, ...]
    speeds: tuple[float, ...]

    @property
    def mode(self) -> Mode:
        return _mode(self.setting)


def blocks(visit: Visit) -> list[str]:
    entries = visit.entries("pairs")
    found = groups(entries.values())
    failures = [f"{key}: {entry['failed']}" for key, entry in entries.items() if "failed" in entry]
    return [
        f"{sum(len(group.names) == 2 for group in found)} pairs and "
        f"{sum(len(group.names) > 2 for group in found)} larger groups, counted in each setting. A "
        "speed is the mean step alone over the mean step in the time in which all train; "
        "under MPS, also with percentages, alone is under MPS without. Alone is measured before "
        "the groups and after them, and the median of both counts.",
        *([_summary(found)] if found else []),
        *_noise(entries.values()),
        *_judged(found, loads.loads(visit)),
        *(["## Groups", _groups(found)] if found else []),
        *(["## Not measured", bullets(failures)] if failures else []),
    ]


def groups(entries: Iterable[Entry]) -> list[Group]:
    """Those of which each run was measured alone, too."""
    good = [entry for entry in entries if "failed" not in entry]
    alone = {key: median(steps) for key, steps in _alone(good).items()}
    found = []
    for entry in good:
        bare = str(_mode(entry["setting"]))
        names, steps = entry["names"], entry["step_s"]
        if len(names) > 1 and all((bare, name) in alone for name in names):
            speeds = (alone[bare, name] / s for name, s in zip(names, steps, strict=True))
            found.append(Group(entry["setting"], tuple(names), tuple(speeds)))
    return found


def _alone(entries: Iterable[Entry]) -> dict[tuple[str, str], list[float]]:
    """The steps of each measurement alone, by setting and run."""
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        if "failed" not in entry and len(entry["names"]) == 1:
            found.setdefault((entry["setting"], entry["names"][0]), []).append(entry["step_s"][0])
    return found


def _noise(entries: Iterable[Entry]) -> list[str]:
    """How far measurements of the same run alone are apart, by setting."""
    spreads: dict[str, list[float]] = {}
    for (setting, _), steps in _alone(entries).items():
        if len(steps) > 1:
            spreads.setdefault(setting, []).append(max(steps) / min(steps) - 1)
    if not spreads:
        return ["The noise floor is unknown: nothing was measured alone twice."]
    said = "; ".join(
        f"{setting}: median {median(each):.1%}, most {max(each):.1%} of {len(each)} runs"
        for setting, each in spreads.items()
    )
    return [
        f"Noise floor, by how far the two measurements of a run alone are apart: {said}. "
        "Differences in speed below that mean nothing."
    ]


def _mode(setting: str) -> Mode:
    """`mps 50 %` is a way of MPS. Both modes are called as the settings without percentages."""
    return Mode(setting.split()[0])


def samples(groups: Iterable[Group], loads: Mapping[str, Load]) -> list[Sample]:
    """Each group seen from all of its sides, where all loads are known."""
    found = []
    for group in groups:
        if all(name in loads for name in group.names):
            its = [loads[name] for name in group.names]
            for n, speed in enumerate(group.speeds):
                found.append(Sample(its[n], (*its[:n], *its[n + 1 :]), speed))
    return found


def _settings(found: Iterable[Group], size: int) -> dict[str, list[Group]]:
    by_setting: dict[str, list[Group]] = {}
    for group in found:
        if len(group.names) == size:
            by_setting.setdefault(group.setting, []).append(group)
    return by_setting


def _summary(found: Sequence[Group]) -> str:
    rows = [
        (f"{setting}, {size}", [speed for each in some for speed in each.speeds], some)
        for size in sorted({len(group.names) for group in found})
        for setting, some in _settings(found, size).items()
    ]
    return columns(
        rows,
        ("setting, runs", "{0[0]}"),
        ("groups", lambda row: str(len(row[2]))),
        ("speed, median", lambda row: f"{median(row[1]):.2f}"),
        ("P10", lambda row: f"{percentile(sorted(row[1]), 0.1):.2f}"),
        ("least", lambda row: f"{min(row[1]):.2f}"),
        ("speeds together, mean", lambda row: f"{fmean(sum(g.speeds) for g in row[2]):.2f}"),
        ("groups above 1", lambda row: f"{fmean(sum(g.speeds) > 1 for g in row[2]):.0%}"),
    )


def _judged(found: Sequence[Group], known: Mapping[str, Load]) -> list[str]:
    rows, coefficients = [], {}
    for setting, some in _settings(found, 2).items():
        sides = samples(some, known)
        models = sorted(set().union(*(side.models for side in sides)))
        if len(models) < THIRDS:
            continue
        held_out = [fold for seed in SEEDS for fold in folds(models, seed, THIRDS)]
        if not all(any(not side.models & fold for side in sides) for fold in held_out):
            continue  # too few pairs: nothing to fit to
        rows += interference.compare(setting, _mode(setting), sides, held_out=held_out)
        coefficients[setting] = fit(sides)
    if not rows:
        return ["No interference model is judged: the loads of too few models are known."]
    fitted = ", ".join(f"{setting} {value:.3f}" for setting, value in coefficients.items())
    return [
        "## Interference models, on networks that the fit has not seen",
        "Fitted to two thirds of the models, judged on the pairs with one of the rest, each third "
        f"in turn, seeds {SEEDS.start}–{SEEDS[-1]}.",
        interference.table(rows),
        f"The coefficient of `conserving` from all pairs: {fitted}. Shipped: see "
        "`extras/carma_simulator/coefficients/interference.json`.",
        *_larger(found, known, coefficients),
    ]


def _larger(
    found: Sequence[Group], known: Mapping[str, Load], coefficients: Mapping[str, float]
) -> list[str]:
    """How well what pairs taught predicts larger groups, whose models it has seen."""
    cells = []
    sizes = sorted({len(group.names) for group in found} - {2})
    settings = [(n, *each) for n in sizes for each in _settings(found, n).items()]
    for size, setting, some in settings:
        mode = _mode(setting)
        groups = [group for group in some if all(name in known for name in group.names)]
        coefficient = coefficients.get(setting, coefficients.get(str(mode)))
        if not groups or coefficient is None:
            continue
        models: dict[str, Interference] = {
            "none": Unslowed(),
            "additive": Additive(),
            "conserving, from pairs": Conserving({mode: coefficient}),
        }
        for name, model in models.items():
            errors = _errors(groups, known, model, mode)
            rmse = sqrt(fmean(error**2 for error in errors))
            cells.append((f"{setting}, {size}", len(errors), name, rmse))
    if not cells:
        return []
    return [
        "Larger groups, of models that the fit has seen in pairs:",
        columns(
            cells,
            ("setting, runs", "{0[0]}"),
            ("speeds", "{0[1]}"),
            ("model", "{0[2]}"),
            ("RMSE of the speed", "{0[3]:.3f}"),
            text=(0, 2),
        ),
    ]


def _errors(
    groups: Iterable[Group], known: Mapping[str, Load], model: Interference, mode: Mode
) -> list[float]:
    return [
        told - min(1.0, speed)
        for group in groups
        for told, speed in zip(
            model.speeds([known[name] for name in group.names], mode), group.speeds, strict=True
        )
    ]


def _groups(found: Sequence[Group]) -> str:
    """A row for each, with the speeds in every setting."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for group in found:
        speeds = " ".join(f"{speed:.2f}" for speed in group.speeds)
        rows.setdefault(group.names, {})[group.setting] = speeds
    settings = dict.fromkeys(group.setting for group in found)
    return columns(
        rows.items(),
        ("runs", lambda row: " + ".join(row[0])),
        *((setting, _cell(setting)) for setting in settings),
    )


def _cell(setting: str) -> Callable[[tuple[tuple[str, ...], dict[str, str]]], str]:
    return lambda row: row[1].get(setting, "–")
