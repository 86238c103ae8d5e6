"""The measured peaks of the user's recurring jobs.

A run counts if it has the same user, directory, Python environment and number of GPUs, and the same
command apart from arguments that do not affect memory (see `carmad.core.jobs.recurrence`).

The estimate is the 95th percentile of the peaks, with an interval by the usual factor either way
(`carmad.core.rules.promises.margin`). Runs that ended early, before they had grown, neither lower
the estimate nor widen the interval as long as they are a minority.

Runs from before the last change of a file that the command names (its script, a configuration)
are ignored. If there are no others, `history` uses them with twice the h, and `current_history`
refuses, since something that reads the code itself may know better. Changes in modules that the
script imports, or in exported variables, are not noticed. Modification times are read by a process
of the job's user: the daemon, which is root, must not access paths that a user named.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from pathlib import PurePath

from carmad.plugin import (
    Estimate,
    JobSpec,
    Refusal,
    Run,
    Server,
    Settings,
    Template,
    margin,
    template,
)

PERCENTILE = 0.95
SOURCES = frozenset({".py", ".sh", ".yaml", ".yml", ".toml", ".json"})
ASK_WITHIN_S = 2.0
WRITTEN = """
import os, sys
def written(name):
    try:
        return os.stat(name).st_mtime
    except (OSError, ValueError):
        return 0.0
os.write(3, b" ".join(b"%.6f" % written(name) for name in sys.argv[1:]))
"""
PYTHON = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class History:
    server: Server
    outdated: bool  # may it use runs of earlier versions of the script?
    asks: bool = True  # check when the script was changed; if not, all runs count
    name: str = "history"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        wanted = template(spec.argv)
        runs = [run for run in self.server.runs(spec.owner) if _alike(run, spec)]
        same = [run for run in runs if template(run.spec.argv) == wanted]
        if not same:
            return Refusal(_nearest(runs, wanted), self.name)
        changed_at, what = self._last_change(spec, wanted) if self.asks else (0.0, "")
        fresh = [run for run in same if run.started_at > changed_at]
        if not fresh and not self.outdated:
            return Refusal(f"{what} was changed after all {_runs(same)}", self.name)
        used = fresh or same
        peaks = sorted(run.peak_mib for run in used)
        mib = peaks[ceil(PERCENTILE * len(peaks)) - 1]
        factor = margin(peaks) ** (1 if fresh else 2)
        notes = [f"n={len(used)}"]
        if left := len(same) - len(fresh):
            notes.append(f"{what} was changed after {_runs(same[-left:])}")
        return Estimate(mib, self.name, floor(mib / factor), ceil(mib * factor), notes=tuple(notes))

    def measured(self, spec: JobSpec, looks: bool) -> Estimate | Refusal:
        return replace(self, outdated=not looks, asks=looks).estimate(spec)

    def _last_change(self, spec: JobSpec, wanted: Template) -> tuple[float, str]:
        """Modification time and name of the newest file that the command names; 0 for names that
        are not files, or not accessible to the user."""
        names = [name for name in wanted.values() if PurePath(name).suffix in SOURCES]
        if not names:
            return 0.0, ""
        argv = (sys.executable, "-I", "-S", "-c", WRITTEN, *names)
        trial = self.server.trial(replace(spec, conda_env=None, container=None), argv, ASK_WITHIN_S)
        times = trial.answer.split(maxsplit=len(names))[: len(names)]
        try:
            return max(zip((float(time[:32]) for time in times), names, strict=True))
        except ValueError:  # no answer, or an invalid one
            return 0.0, ""


def _runs(runs: Sequence[Run]) -> str:
    return f"{len(runs)} runs" if len(runs) > 1 else "one run"


def _alike(run: Run, spec: JobSpec) -> bool:
    past = run.spec
    return (
        past.cwd == spec.cwd
        and past.gpus == spec.gpus
        and past.batch_size == spec.batch_size
        and past.conda_env == spec.conda_env
        and past.container == spec.container
        and _python(past) == _python(spec)
    )


def _python(spec: JobSpec) -> tuple[str, ...]:
    env = dict(spec.env)
    return tuple(env.get(name, "") for name in PYTHON)


def _nearest(runs: Sequence[Run], wanted: Template) -> str:
    """Why there is no run of this command, in words: how the closest ones differ."""
    others = (template(run.spec.argv) for run in runs)
    apart = Counter(wanted.differs_in(other) for other in others if other.words == wanted.words)
    if not apart:
        return "no earlier run of this command"
    names, n = min(apart.items(), key=lambda item: (len(item[0]), -item[1]))
    closest = "one run differs" if n == 1 else f"{n} runs differ"
    return f"no earlier run with these arguments: {closest} in {', '.join(sorted(names))}"


def history(settings: Settings, server: Server) -> History:
    return History(server, outdated=True)


def current_history(settings: Settings, server: Server) -> History:
    return History(server, outdated=False)


def unchecked_history(settings: Settings, server: Server) -> History:
    """Starts no process: for comparison with declared memory."""
    return History(server, outdated=True, asks=False)
