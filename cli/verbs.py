"""Every verb of `carma`, what it is for, and how its words are read. Imports stay light: each
command starts here.

CARMA's own verbs are in `SECTIONS`; packages add theirs by entry points of the group
`carma.commands`, each named as what is typed: a `Verb`, a `Group` of them, or a `Word`.
"""

from __future__ import annotations

from cli.plain import read

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoint
    from typing import Any

    from cli.parser import Parser
    from cli.plain import Options

ARGPARSE = "argparse"  # `NAME_options` declares its options, and `NAME` gets them
TYPER = "typer"  # from the annotations of `NAME`, for what people do not type all day (`cli.app`)
ITSELF = "itself"  # `NAME` gets all words: a command of the user's follows its own options


class Verb:
    """A verb is the function of its name in its module: of `daemon start`, `daemon_start`. Its help
    begins with its summary; what follows is the function's docstring."""

    def __init__(
        self,
        name: str,
        module: str,
        summary: str,
        reads: str = ARGPARSE,
        aliases: tuple[str, ...] = (),
        section: str = "More",
    ) -> None:
        """`module`: "package.module", or one of `cli.commands`. `section`: of all verbs' help, for
        verbs that are not in `SECTIONS`."""
        self.name = name
        self.module = self.options_module = module if "." in module else f"cli.commands.{module}"
        self.summary = summary
        self.reads = reads
        self.aliases = aliases
        self.section = section

    def in_module(self, module: str, summary: str = "") -> Verb:
        """The same verb, with the same options, as another module does it. `summary`: if it is not
        the usual one."""
        from copy import copy

        other = copy(self)
        other.module, other.summary = module, summary or self.summary
        return other

    def about(self) -> str:
        """What its help says of it, in paragraphs."""
        lines = (self.function().__doc__ or "").splitlines()
        return "\n".join((self.summary, "", *map(str.strip, lines))).strip()

    def function(self) -> Callable[..., Any]:
        """What it does."""
        found: Callable[..., Any] = _find(self.module, self._own_name)
        return found

    def read(self, words: list[str]) -> Any:
        """The options of a verb that argparse reads, unless they are so plain that it need not."""
        return read(self._declare, words) or self.parser().parse_args(words)

    def parser(self) -> Parser:
        """Of a verb that does not read its words itself."""
        if self.reads == TYPER:
            from cli.app import parser_of

            return parser_of(self)
        from cli.parser import Parser

        parser = Parser(
            prog=f"carma {self.name}", description=self.about(), allow_abbrev=False, add_help=False
        )
        self._declare(parser)
        if not parser.knows("--help"):
            names = ("--help",) if parser.knows("-h") else ("-h", "--help")
            parser.add_argument(*names, action="help", help="show this help")
        return parser

    def _declare(self, parser: Options) -> None:
        _find(self.options_module, f"{self._own_name}_options")(parser)

    @property
    def _own_name(self) -> str:
        return self.name.replace("-", "_").replace(" ", "_")


class Group:
    """Verbs of two words that begin with the same one, such as `daemon start`."""

    def __init__(
        self, name: str, summary: str, verbs: tuple[Verb, ...], section: str = "More"
    ) -> None:
        self.name = name
        self.summary = summary
        self.verbs = verbs
        self.section = section

    def find(self, below: str) -> Verb | None:
        return next((verb for verb in self.verbs if verb.name == f"{self.name} {below}"), None)


class Word:
    """Another program's name, for links to `carma`: what it does is a function that gets the name
    and the words after it, and returns the exit code."""

    def __init__(self, name: str, function: str) -> None:
        """`function`: "package.module:function"."""
        self.name = name
        self._function = function

    def run(self, words: list[str]) -> int:
        code: int = _find(*self._function.split(":"))(self.name, words)
        return code


def _find(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=(name,)), name)  # importlib takes longer


SECTIONS: dict[str, tuple[Verb | Group, ...]] = {
    "Jobs": (
        Verb("submit", "submit", "Put a command or a job script in the queue.", ITSELF, ("sub",)),
        Verb("run", "run", "Wait for GPUs, then run a command in this terminal, as a job.", ITSELF),
        Verb("shell", "run", "Wait for GPUs, then start a shell here, as a job.", ITSELF),
        Verb(
            "attach",
            "join",
            "Start a shell in the environment of a running job, on its GPUs.",
            ITSELF,
        ),
        Verb(
            "exec",
            "join",
            "Run a command in the environment of a running job, on its GPUs.",
            ITSELF,
        ),
        Verb("adopt", "join", "Make a job of a process of yours that already runs on a GPU."),
        Verb("queue", "queue", "List running and waiting jobs.", aliases=("ps",)),
        Verb("show", "queue", "Show everything about one of your jobs."),
        Verb(
            "why",
            "queue",
            "Explain why a job waits, or what became of it, with numbers.",
            aliases=("explain",),
        ),
        Verb("logs", "logs", "Print the output of all attempts of a job; -f follows it."),
        Verb(
            "wait",
            "steer",
            "Wait for jobs to end. Exits with the exit code of the first that failed, or 0.",
        ),
        Verb(
            "cancel",
            "steer",
            "Cancel jobs. Running ones get SIGTERM, then SIGKILL.",
            aliases=("kill",),
        ),
        Verb("hold", "steer", "Keep waiting jobs from starting."),
        Verb("release", "steer", "Release held jobs."),
        Verb(
            "suspend",
            "steer",
            "Take running jobs off their GPUs until they are resumed; nothing is lost.",
        ),
        Verb("resume", "steer", "Let suspended jobs go on, as soon as there are GPUs for them."),
        Verb(
            "move", "steer", "Move a running job to other GPUs of the same kind; nothing is lost."
        ),
        Verb("requeue", "steer", "Run ended jobs again, under their old ids."),
        Verb(
            "update",
            "steer",
            "Change options of waiting jobs; of running ones, --time and --requeue.",
        ),
        Verb(
            "notify",
            "logs",
            "Check where messages about your jobs go (--notify), and send one as a test.",
        ),
        Verb("book", "shares", "Book GPUs for your own jobs, or list what is booked and reserved."),
        Verb(
            "report-step",
            "results",
            "Report how long a training step of a running job takes, and its parts.",
        ),
        Verb(
            "report-metric",
            "results",
            "Report metrics of a running job, such as its accuracy, for `carma results`.",
        ),
        Verb(
            "results",
            "results",
            "Show the parameters of a sweep's tasks, and the metrics that they reported.",
        ),
        Verb(
            "estimate",
            "estimate",
            "Predict how much GPU memory a command needs. It runs on no GPU.",
            ITSELF,
        ),
    ),
    "Monitoring": (
        Verb("status", "gpus", "Show the GPUs, the jobs on them, and the queue."),
        Verb("top", "gpus", "Watch the GPUs, the jobs on them, and the queue, live."),
        Verb(
            "watch",
            "logs",
            "Print what happens, as it happens: jobs that start, run, end, are "
            "retried; GPUs that are lost or drained.",
        ),
        Verb("gpus", "gpus", "Show each GPU's collocation risk, and the limits that apply to it."),
        Verb("history", "past", "List ended jobs, newest first."),
        Verb("stats", "past", "Add up jobs, GPU hours, energy and waiting, by user or by month."),
        Verb(
            "report",
            "past",
            "Report what the last whole week or month was used for, as one page of Markdown.",
        ),
        Verb(
            "share",
            "shares",
            "Show each user's recent use of the server. Users who have used far less go first.",
        ),
        Verb(
            "estimators",
            "models",
            "Compare each memory estimator with what jobs were measured to use.",
        ),
        Verb(
            "models",
            "models",
            "List the models that policies and predictors use, and their accuracy.",
        ),
    ),
    "Administration": (
        Verb(
            "drain",
            "gpus",
            "Start no more jobs on these GPUs; running jobs continue, or move. For administrators.",
        ),
        Verb("undrain", "gpus", "Start jobs on drained GPUs again. For administrators."),
        Verb(
            "limit",
            "shares",
            "List limits, or set one: in force at once, and kept. Setting is for administrators.",
        ),
        Verb("reserve", "shares", "Reserve GPUs (administrators), or list the reservations."),
        Verb(
            "doctor",
            "doctor",
            "Check this machine and, if one is running, the daemon. Exits with 1 if a check fails.",
        ),
        Verb("extras", "extras", "List CARMA's optional parts, or install some where CARMA runs."),
        Group(
            "daemon",
            "Start, stop and install carmad.",
            (
                Verb(
                    "daemon start", "server", "Start a daemon for your own jobs, in the background."
                ),
                Verb("daemon run", "server", "Run the daemon in the foreground."),
                Verb(
                    "daemon stop",
                    "server",
                    "Stop the daemon. Running jobs continue; the next daemon takes them over.",
                ),
                Verb("daemon status", "server", "Show whether the daemon is running, and where."),
                Verb("daemon install", "server", "Install the systemd units of carmad. For root."),
                Verb(
                    "daemon replay",
                    "server",
                    "Replay a daemon's journal, and check that every decision comes out the same.",
                ),
            ),
        ),
        Group(
            "config",
            "Show the daemon's settings, or check a settings file.",
            (
                Verb("config show", "doctor", "Print the settings in effect."),
                Verb(
                    "config check",
                    "doctor",
                    "Check a settings file, together with the CARMA_… variables set here. "
                    "Starts nothing.",
                ),
                Verb(
                    "config set",
                    "doctor",
                    "Change a setting, in the settings file and at once. For administrators.",
                ),
            ),
        ),
    ),
    "More": (
        Verb(
            "completion",
            "completion",
            'Print a completion script: eval "$(carma completion bash)" in ~/.bashrc.',
        ),
    ),
}

OWN: dict[str, Verb | Group] = {
    name: each
    for section in SECTIONS.values()
    for each in section
    for name in (each.name, *(each.aliases if isinstance(each, Verb) else ()))
}

# What most people need: all that `carma` alone lists.
FIRST = ("submit", "run", "queue", "why", "logs", "cancel", "top", "estimate")
NO_DAEMON = "no-daemon"  # names, in that group, what `elsewhere` asks


def find(name: str) -> Verb | Group | None:
    """What the first word of a command line names. Raises Problem if a package fails."""
    found = OWN.get(name) or _load(name)
    if isinstance(found, (Verb, Group)):
        return found
    verbs = (each for each in _load_others() if isinstance(each, Verb))
    return next((verb for verb in verbs if name in verb.aliases), None)


def find_word(name: str) -> Word | None:
    """Raises Problem if a package fails."""
    found = _load(name)
    return found if isinstance(found, Word) else None


def elsewhere(verb: Verb) -> Verb:
    """What a verb is on a machine without a daemon: the same, unless a package says otherwise. One
    that is broken says nothing: it must not take `carma doctor`, which names it."""
    from carmad.errors import CarmaError

    try:
        change = _load(NO_DAEMON)
    except CarmaError:
        return verb
    return change(verb) if change else verb


def sections() -> dict[str, list[Verb | Group]]:
    """All verbs, with those of packages that can be loaded, by the section of the help."""
    found = {section: list(verbs) for section, verbs in SECTIONS.items()}
    for each in _load_others():
        found.setdefault(each.section, []).append(each)
    return found


def every() -> Iterator[Verb]:
    """All verbs, those of groups, too, in the order of the help."""
    for section in sections().values():
        for each in section:
            yield from each.verbs if isinstance(each, Group) else (each,)


def _load_others() -> Iterator[Verb | Group]:
    """Those that can be loaded, and are called as their entry points are."""
    for name, point in sorted(_points().items()):
        if name == NO_DAEMON or name in OWN:
            continue
        try:
            found = point.load()
        except (Exception, SystemExit):  # noqa: BLE001 - foreign code: `carma doctor` names it
            continue
        if isinstance(found, (Verb, Group)) and found.name == name:
            yield found


def _load(name: str) -> Any:
    if (point := _points().get(name)) is None:
        return None
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # foreign code
        from cli.problems import Problem

        raise Problem(f"{name} cannot be loaded from {point.value}: {error}") from error


def _points() -> dict[str, EntryPoint]:
    from carmad import installed  # takes longer to import than most verbs

    return installed.by_name("carma.commands")
