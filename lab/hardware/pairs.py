"""Stage `pairs`: step times of training runs that share the GPU, time-sliced and under MPS, beside
those alone: the truth about interference."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import psutil

from benchmarks import ROOT
from carmad.attempt.proc import own_environment
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps
from lab.hardware import loads, pool
from lab.hardware.pool import KILLED_WITHIN_S, Pool, common
from lab.hardware.telemetry import Watch
from lab.hardware.visit import Entry, Portion, Stage, Visit
from lab.hardware.workloads import WAITING

FAKE_MPS = ROOT / "tests" / "fake_mps" / "nvidia-cuda-mps-control"
WINDOW_S, REHEARSED_S = 0.7, 0.3  # alone; longer for more
APART = (1, 2, 3, 5)  # of two in the list that are paired: with 16, each is in eight of 64 pairs


@dataclass(frozen=True, slots=True)
class Setting:
    """How processes share the GPU. `percentage`: of the SMs, for each client of MPS."""

    name: str
    mps: bool = False
    percentage: int = 100
    sizes: tuple[int, ...] = (1, 2, 3, 4, 8)  # of the groups that are measured so; 1: alone
    groups: tuple[tuple[str, ...], ...] = ()  # (): as `groups` makes them


_RESNET, _MOBILENET, _BERT, _MLP, _VIT, _, _GPT = loads.PAIRED[:7]
_LATE_RESNET, _LATE_MLP = (each.name for each in WAITING)
# Six that an H100 has measured on streams, and four in which a data loader is waited for.
FIRST = (
    (_RESNET, _MOBILENET),
    (_RESNET, _BERT),
    (_MOBILENET, _MLP),
    (_BERT, _VIT),
    (_VIT, _GPT),
    (_VIT, _GPT, _RESNET),
    (_LATE_RESNET, _RESNET),
    (_LATE_RESNET, _BERT),
    (_LATE_RESNET, _LATE_MLP),
    (_LATE_MLP, _MOBILENET),
)
SETTINGS = (
    Setting("mps", mps=True, groups=FIRST),
    Setting("streams"),
    Setting("mps", mps=True),
    Setting("mps 50 %", mps=True, percentage=50, sizes=(2,)),
    Setting("mps 33 %", mps=True, percentage=33, sizes=(3,)),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Runs that train at the same time."""

    setting: Setting
    names: tuple[str, ...]
    again: bool = False  # alone once more, after the groups: the GPU is warm then

    @property
    def key(self) -> str:
        again = ", again" if self.again else ""
        return f"{self.setting.name}: {' + '.join(self.names)}{again}"


def groups(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Each alone, then pairs, triples, fours and eights, so that each is in about as many of a
    size; of few names, there are fewer groups, and none twice."""
    count = len(names)

    def apart(every: int, *others: int) -> list[tuple[str, ...]]:
        return [
            (names[n], *(names[(n + other) % count] for other in others))
            for n in range(0, count, every)
        ]

    found = [
        *apart(1),
        *(group for other in APART for group in apart(1, other)),
        *apart(4, 4, 9),
        *apart(2, 2, 7),
        *apart(4, 1, 4, 7),
        *apart(8, *range(1, 8)),
    ]
    distinct: dict[frozenset[str], tuple[str, ...]] = {}
    for group in found:
        if len(set(group)) == len(group):
            distinct.setdefault(frozenset(group), group)
    return list(distinct.values())


def cases(setting: Setting, rehearse: bool, most: int = len(loads.PAIRED)) -> list[Case]:
    """Of `most` runs. A rehearsal has two and one pair: each process takes seconds to start. What
    is alone is the denominator of many speeds, so it is measured before the groups and after
    them."""
    pair = loads.REHEARSED
    some: list[tuple[str, ...]]
    if rehearse:
        some = [(name,) for name in pair] + [pair]
        some += [(_LATE_MLP,), (_LATE_MLP, pair[0])] if setting.groups else []
    elif setting.groups:
        some = _first(setting.groups, most)
    else:
        some = groups(loads.PAIRED[:most])
    wanted = [Case(setting, each) for each in some if len(each) in setting.sizes]
    return wanted + [replace(case, again=True) for case in wanted if len(case.names) == 1]


def _first(groups: Iterable[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    """Each alone, then the groups, of `most` runs."""
    names, found = dict[str, None](), list[tuple[str, ...]]()
    for group in groups:
        if len(more := names | dict.fromkeys(group)) <= most:
            names, found = more, [*found, group]
    return [*((name,) for name in names), *found]


def measure(visit: Visit) -> None:
    with Watch(visit) as watch, _mps(visit, watch.gpu.id) as mps:
        for setting in SETTINGS:
            wanted = cases(setting, visit.rehearse, pool.most(watch.gpu.memory_mib))
            todo = list(visit.todo(wanted, lambda case: case.key, pool.START_S))
            if todo:
                _measure(setting, todo, visit, watch, mps)


def _measure(setting: Setting, todo: Sequence[Case], visit: Visit, watch: Watch, mps: Mps) -> None:
    """With all runs of `todo` loaded, each group in turn."""
    seconds = REHEARSED_S if visit.rehearse else WINDOW_S
    names = dict.fromkeys(name for case in todo for name in case.names)
    env = pool.on(watch.gpu.id)
    if setting.mps:
        try:
            mps.start(watch.gpu.id)
        except CarmaError as error:
            visit.keep(f"{setting.name}: not measured", {"failed": error.message})
            return
        env = pool.on(watch.gpu.id, str(mps.daemon(watch.gpu.id).pipe), setting.percentage)
    with Pool(names, env, visit.rehearse) as held:
        for case in visit.todo(todo, lambda case: case.key, partial(lasts_s, seconds)):
            visit.keep(case.key, _together(case, seconds, held, watch))


def _together(case: Case, seconds: float, held: Pool, watch: Watch) -> Entry:
    """The mean step of each in the time in which all of them train: under time slices, a step that
    is shorter than a slice is either as fast as alone or waits for all the others, so a median
    would tell one of the two."""
    known = {"setting": case.setting.name, "names": case.names}
    windows = held.train(case.names, lasts_s(seconds, case))
    if not windows:
        whys = (f"{name}: {held.lost[name]}" for name in case.names if name in held.lost)
        return known | {"failed": "; ".join(whys)}
    steps = common(windows.values())
    if not all(steps):
        return known | {"failed": "too few steps while all trained"}
    began = max(window.began for window in windows.values())
    ended = min(window.ended[-1] for window in windows.values())
    return {
        **known,
        "step_s": [round(fmean(each), 6) for each in steps],
        "steps": [len(each) for each in steps],
        **watch.means(began, ended),
    }


def lasts_s(alone_s: float, case: Case) -> float:
    """How long a group trains, where one alone does for `alone_s`."""
    return alone_s * len(case.names) ** 0.5


def minutes(setting: Setting) -> float:
    """By estimate, on a GPU."""
    trained_s = sum(lasts_s(WINDOW_S, case) for case in cases(setting, rehearse=False))
    return math.ceil((pool.START_S + trained_s) / 6) / 10


@contextlib.contextmanager
def _mps(visit: Visit, gpu: GpuId) -> Iterator[Mps]:
    """Daemons in a directory of their own, which is gone with them afterwards."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        control = "nvidia-cuda-mps-control"
        if visit.rehearse:  # it writes beside itself
            control = shutil.copy(FAKE_MPS, folder)
        mps = Mps(Path(folder), multiuser=False, systemd=False, control=control)
        try:
            yield mps
        finally:
            _stop(mps, gpu)


def _stop(mps: Mps, gpu: GpuId) -> None:
    """A daemon that stays is killed, with its server and clients: its directory will be gone. An
    error here would replace that of the stage."""
    try:
        said = "" if mps.stop(gpu) else "it has clients, or does not stop"
    except CarmaError as error:
        said = error.message
    if not said:
        return
    print(f"pairs: the MPS daemon is killed: {said}", file=sys.stderr, flush=True)
    pipe = str(mps.daemon(gpu).pipe)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if own_environment(process.pid).get("CUDA_MPS_PIPE_DIRECTORY") == pipe:
                process.kill()
                process.wait(KILLED_WITHIN_S)


def blocks(visit: Visit) -> list[str]:
    from lab.hardware import pairs_page

    return pairs_page.blocks(visit)


STAGE = Stage(
    "pairs",
    "Training runs that share a GPU, beside alone",
    tuple(
        Portion(
            f"{each.name}, {len(each.groups)} groups" if each.groups else each.name, minutes(each)
        )
        for each in SETTINGS
    ),
    ("torch", "timm", "transformers"),
    measure,
    blocks,
)
