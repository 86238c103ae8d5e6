"""Every verb of `carma`, and how its words are read. Imports stay light: each command starts here.

A verb is the function of its name in its module; the first lines of its docstring are its help.
`reads` says what reads its words: typer costs 75 ms, so what people type all day does without it.
"""

from __future__ import annotations

from cli.plain import read

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cli.parser import Parser
    from cli.plain import Options

JOBS, WATCH, SERVER, MORE = "Jobs", "Monitoring", "Administration", "More"

ARGPARSE = "argparse"  # `NAME_options` declares its options, and `NAME` gets them
ITSELF = "itself"  # `NAME` gets all words: a command of the user's follows its own options
TYPER = "typer"  # from the annotations of `NAME`, or a group with commands of its own


class Verb:
    def __init__(
        self,
        name: str,
        module: str,
        reads: str,
        section: str,
        aliases: tuple[str, ...] = (),
        package: str = "cli.commands",
    ) -> None:
        self.name = name
        self.module = self.options_module = f"{package}.{module}"
        self.reads = reads
        self.section = section
        self.aliases = aliases

    def in_module(self, module: str) -> Verb:
        """The same verb, with the same options, as another module does it."""
        from copy import copy

        other = copy(self)
        other.module = module
        return other

    def function(self) -> Callable[..., Any]:
        """What it does; for a group, its app."""
        found: Callable[..., Any] = _find(self.module, self._own_name)
        return found

    def read(self, words: list[str]) -> Any:
        """The options of a verb that argparse reads, unless they are so plain that it need not."""
        return read(self._declare, words) or self.parser().parse_args(words)

    def parser(self) -> Parser:
        """Of a verb that argparse reads."""
        from cli.parser import Parser

        about = self.function().__doc__
        parser = Parser(
            prog=f"carma {self.name}", description=about, allow_abbrev=False, add_help=False
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
        return self.name.replace("-", "_")


def _find(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=(name,)), name)  # importlib takes longer


VERBS = (
    Verb("submit", "submit", ITSELF, JOBS, ("sub",)),
    Verb("run", "run", ITSELF, JOBS),
    Verb("shell", "run", ITSELF, JOBS),
    Verb("attach", "join", ITSELF, JOBS),
    Verb("exec", "join", ITSELF, JOBS),
    Verb("adopt", "join", ARGPARSE, JOBS),
    Verb("queue", "queue", ARGPARSE, JOBS, ("ps",)),
    Verb("show", "queue", ARGPARSE, JOBS),
    Verb("why", "queue", ARGPARSE, JOBS, ("explain",)),
    Verb("logs", "logs", ARGPARSE, JOBS),
    Verb("wait", "steer", ARGPARSE, JOBS),
    Verb("cancel", "steer", ARGPARSE, JOBS, ("kill",)),
    Verb("hold", "steer", ARGPARSE, JOBS),
    Verb("release", "steer", ARGPARSE, JOBS),
    Verb("requeue", "steer", ARGPARSE, JOBS),
    Verb("update", "steer", ARGPARSE, JOBS),
    Verb("notify", "logs", ARGPARSE, JOBS),
    Verb("report-step", "results", ARGPARSE, JOBS),
    Verb("report-metric", "results", ARGPARSE, JOBS),
    Verb("results", "results", ARGPARSE, JOBS),
    Verb("estimate", "estimate", ITSELF, JOBS),
    Verb("status", "gpus", ARGPARSE, WATCH),
    Verb("top", "gpus", ARGPARSE, WATCH),
    Verb("watch", "logs", ARGPARSE, WATCH),
    Verb("web", "command", ARGPARSE, WATCH, package="web"),
    Verb("gpus", "gpus", ARGPARSE, WATCH),
    Verb("history", "past", ARGPARSE, WATCH),
    Verb("stats", "past", ARGPARSE, WATCH),
    Verb("report", "past", ARGPARSE, WATCH),
    Verb("share", "shares", ARGPARSE, WATCH),
    Verb("estimators", "models", TYPER, WATCH),
    Verb("models", "models", TYPER, WATCH),
    Verb("drain", "gpus", ARGPARSE, SERVER),
    Verb("resume", "gpus", ARGPARSE, SERVER),
    Verb("limit", "shares", ARGPARSE, SERVER),
    Verb("reserve", "shares", ARGPARSE, SERVER),
    Verb("doctor", "doctor", TYPER, SERVER),
    Verb("daemon", "server", TYPER, SERVER),
    Verb("config", "doctor", TYPER, SERVER),
    Verb("simulate", "simulate", TYPER, MORE),
    Verb("demo", "demo", ITSELF, MORE),
    Verb("mcp", "mcp", ARGPARSE, MORE),
    Verb("completion", "completion", ARGPARSE, MORE),
    Verb("gpumemnet", "models", TYPER, MORE),
)
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.aliases)}
