"""Every verb of `carma`: its module and its line in the help. Imports stay light: each call starts
here.

CARMA's own verbs are in `OWN`; packages add theirs by entry points of the group `carma.commands`,
each named as what is typed: a `Command` or a `Word`; and checks to `carma doctor`, by entry points
of the group `carma.checks`, each named as the option that asks for it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cli.problems import Problem, Usage, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from carmad.api.checks import CheckOut

T = TypeVar("T")

JOBS, MONITORING, ADMINISTRATION, MORE = "Jobs", "Monitoring", "Administration", "More"
PANELS = (JOBS, MONITORING, ADMINISTRATION, MORE)


class Command(NamedTuple):
    """A verb is the function of its name in its module: of `daemon start`, `daemon_start`. Its help
    begins with its summary; what follows is the function's docstring."""

    name: str
    module: str  # "package.module", or one of `cli.commands`
    summary: str
    panel: str = MORE  # of the help
    below: tuple[Command, ...] = ()  # the verbs of a group, which begin with its name

    def function(self) -> Callable[..., int]:
        """What it does."""
        module = self.module if "." in self.module else f"cli.commands.{self.module}"
        found: Callable[..., int] = _find(module, self.name.replace("-", "_").replace(" ", "_"))
        return found


class Word(NamedTuple):
    """Another program's name, for links to `carma`: what it does is a function that gets the name
    and the words after it, and returns the exit code."""

    name: str
    function: str  # "package.module:function"

    def run(self, words: list[str]) -> int:
        code: int = _find(*self.function.split(":"))(self.name, words)
        return code


class Checks(NamedTuple):
    summary: str  # the help of the option
    run: Callable[[], Iterable[CheckOut]]  # does the checks, one after the other
    take_over: Callable[[], bool] = lambda: False  # on a machine without a daemon


def takes_over(its: Checks) -> bool:
    """Whether they are what to check on this machine, which has no daemon; False, too, if that
    cannot be told."""
    try:
        return its.take_over()
    except (Exception, SystemExit):  # noqa: BLE001 - foreign code
        return False


def _find(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


_TABLE = {  # by panel: a verb, its module, its line; below a group, that of its verbs
    JOBS: (
        ("submit", "submit", "Put a command or a job script in the queue."),
        ("run", "run", "Wait for GPUs, then run a command in this terminal, as a job."),
        ("shell", "run", "Wait for GPUs, then start a shell here, as a job."),
        ("attach", "attach", "Start a shell or a command beside a running job, on its GPUs."),
        ("queue", "queue", "List running and waiting jobs."),
        ("show", "show", "Show everything about one of your jobs."),
        ("why", "show", "Explain why a job waits, or what became of it, with numbers."),
        ("logs", "logs", "Print the output of all attempts of a job; -f follows it."),
        ("wait", "cli.hot", "Wait for jobs to end; exit with the first failure's exit code, or 0."),
        ("cancel", "cli.hot", "Cancel jobs. Running ones get SIGTERM, then SIGKILL."),
        ("hold", "steer", "Keep waiting jobs from starting."),
        ("release", "steer", "Release held jobs."),
        ("suspend", "steer", "Take running jobs off their GPUs until resumed; nothing is lost."),
        ("resume", "steer", "Let suspended jobs go on, as soon as there are GPUs for them."),
        ("requeue", "steer", "Run ended jobs again, under their old ids."),
        ("update", "steer", "Change options of waiting jobs, some of running ones; or move these."),
        ("estimate", "estimate", "Predict how much GPU memory a command needs. It runs on no GPU."),
        ("report", "results", "Report metrics or the duration of a training step of a job."),
        ("results", "results", "Show the parameters of a sweep's tasks, and their metrics."),
    ),
    MONITORING: (
        ("status", "gpus", "Show the GPUs, the jobs on them, and the queue."),
        ("top", "gpus", "Watch the GPUs, the jobs on them, and the queue, live."),
        ("gpus", "gpus", "Show each GPU's collocation risk, and the limits that apply to it."),
        ("history", "past", "List ended jobs, newest first."),
        ("stats", "past", "Add up jobs, GPU hours, energy and waiting, by user or by month."),
        ("share", "shares", "Show each user's recent use: who has used least goes first."),
    ),
    ADMINISTRATION: (
        ("reserve", "shares", "Reserve GPUs (--me: for your own jobs), or list reservations."),
        ("limit", "shares", "List limits, or set one: in force at once, and kept."),
        ("drain", "gpus", "Start no more jobs on these GPUs; running jobs continue, or move."),
        ("doctor", "doctor", "Check this machine and the daemon. Exits with 1 if a check fails."),
        ("daemon", "server", "Start, stop and install carmad."),
        ("config", "config", "Show the daemon's settings, or check a settings file."),
    ),
    "daemon": (
        ("daemon start", "server", "Start a daemon for your own jobs, in the background."),
        ("daemon stop", "server", "Stop the daemon. Running jobs continue under the next one."),
        ("daemon status", "server", "Show whether the daemon is running, and where."),
        ("daemon install", "server", "Install the systemd units of carmad. For root."),
    ),
    "config": (
        ("config show", "config", "Print the settings in effect."),
        ("config check", "config", "Check a settings file with the CARMA_… variables set here."),
        ("config set", "config", "Change a setting, in the settings file and at once."),
    ),
}
OWN: dict[str, Command] = {
    name: Command(
        name, module, summary, panel, tuple(Command(*below) for below in _TABLE.get(name, ()))
    )
    for panel in PANELS[:3]
    for name, module, summary in _TABLE[panel]
}

# What most people need: all that `carma` alone lists.
FIRST = ("submit", "run", "queue", "why", "logs", "cancel", "status", "top", "estimate", "demo")
NO_DAEMON = "no-daemon"  # names, in that group, what `elsewhere` asks

# Verbs that went after version 0.1, and what other programs call ours.
INSTEAD = {
    "exec": "attach JOB COMMAND",
    "adopt": "run --pid PID",
    "book": "reserve --me",
    "completion": "--install-completion",
    "estimators": "doctor --estimators",
    "models": "doctor --models",
    "move": "update JOB --to GPU",
    "notify": "doctor --notify",
    "report-metric": "report NAME=VALUE",
    "report-step": "report --step TIME",
    "undrain": "drain --undo GPU",
    "watch": "status --follow",
    "what-if": "simulate --what-if DAYS",
    **dict.fromkeys(("sub", "add", "start", "enqueue", "push", "qsub", "sbatch"), "submit"),
    **dict.fromkeys(("ps", "list", "ls", "jobs", "qstat", "squeue"), "queue"),
    **dict.fromkeys(("kill", "rm", "remove", "del", "delete", "stop", "abort"), "cancel"),
    **dict.fromkeys(("qdel", "scancel"), "cancel"),
    **dict.fromkeys(("explain",), "why"),
    **dict.fromkeys(("info", "describe", "inspect", "get"), "show"),
    **dict.fromkeys(("log", "tail", "output", "cat"), "logs"),
    **dict.fromkeys(("nodes", "smi", "nvidia-smi", "sinfo"), "gpus"),
    **dict.fromkeys(("past", "sacct"), "history"),
    **dict.fromkeys(("retry", "rerun", "restart"), "requeue"),
    **dict.fromkeys(("edit", "modify"), "update"),
    **dict.fromkeys(("pause", "freeze"), "suspend"),
    **dict.fromkeys(("continue", "unpause"), "resume"),
    **dict.fromkeys(("srun", "salloc"), "run"),
}
GONE = {  # with more than a verb instead
    "cron": "put `carma submit -Q --unless-running NAME …` into `crontab -e`",
    "extras": "pip install the packages that `carma doctor` names, where CARMA is installed",
    "client-wheel": "it is in share/carma of CARMA's environment: docs/guides/python.md",
    "daemon run": "use `carmad`, with the same options",
    "gpumemnet": "use `python -m lab.gpumemnet`, of CARMA's repository",
}


def find(name: str) -> Command | None:
    """What the first word of a command line names. Raises Problem if a package fails."""
    found = OWN.get(name) or _load(name)
    return found if isinstance(found, Command) else None


def find_word(name: str) -> Word | None:
    """Raises Problem if a package fails."""
    found = _load(name)
    return found if isinstance(found, Word) else None


def unknown(name: str, known: list[str], command: str = "carma") -> Usage:
    """That there is no such verb, and what there is instead."""
    hint = f"see `{command} --help`"
    word = f"{command} {name}".partition(" ")[2].lower()
    if word in GONE or word in INSTEAD:
        hint = GONE.get(word) or f"use `carma {INSTEAD[word]}`"
    elif near := nearest(name, known):
        hint = f"did you mean `{command} {near}`?"
    return Usage(f"there is no command `{command} {name}`", hint)


def elsewhere(command: Command) -> Command:
    """What a verb is on a machine without a daemon: the same, unless a package says otherwise. One
    that is broken says nothing: it must not take `carma doctor`, which names it."""
    from carmad import paths
    from carmad.errors import CarmaError

    if paths.is_served():
        return command
    try:
        change = _load(NO_DAEMON)
    except CarmaError:
        return command
    return change(command) if change else command


def every() -> list[Command]:
    """All verbs, with those of packages that can be loaded, in the order of the help."""
    others = (its for name, its in load_added("commands", Command).items() if its.name == name)
    found = [*OWN.values(), *(its for its in others if its.name not in OWN)]
    order = dict.fromkeys((*PANELS, *(each.panel for each in found)))
    return [each for panel in order for each in found if each.panel == panel]


def leaves() -> list[Command]:
    """As `every`, with the verbs of groups instead of these."""
    return [verb for each in every() for verb in each.below or (each,)]


def load_added(group: str, kind: type[T]) -> dict[str, T]:
    """What packages add of a kind, by name, without what cannot be loaded: `carma doctor` names
    that."""
    from carmad import installed  # takes longer to import than most verbs

    found = dict(installed.load_each(f"carma.{group}", quietly=True))
    return {name: its for name, its in sorted(found.items()) if isinstance(its, kind)}


def _load(name: str) -> Any:
    from carmad import installed  # takes longer to import than most verbs

    if (point := installed.by_name("carma.commands").get(name)) is None:
        return None
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # foreign code
        raise Problem(f"{name} cannot be loaded from {point.value}: {error}") from error
