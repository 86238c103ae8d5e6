"""Every verb of `carma`, and how its words are read. Imports stay light: each command starts here.

A verb is the function of its name in its module. Its help begins with its line in `cli.summaries`;
what follows is the function's docstring. `reads` says what reads its words: typer costs 75 ms, so
what people type all day does without it.
"""

from __future__ import annotations

from cli.plain import read

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cli.parser import Parser
    from cli.plain import Options

ARGPARSE = "argparse"  # `NAME_options` declares its options, and `NAME` gets them
ITSELF = "itself"  # `NAME` gets all words: a command of the user's follows its own options
TYPER = "typer"  # from the annotations of `NAME`, or a group with commands of its own


class Verb:
    def __init__(
        self,
        name: str,
        module: str,
        reads: str,
        aliases: tuple[str, ...] = (),
        package: str = "cli.commands",
    ) -> None:
        self.name = name
        self.module = self.options_module = f"{package}.{module}"
        self.reads = reads
        self.aliases = aliases
        self._summary = ""  # if not the table's

    def in_module(self, module: str, summary: str = "") -> Verb:
        """The same verb, with the same options, as another module does it. `summary`: if it is not
        the usual one."""
        from copy import copy

        other = copy(self)
        other.module, other._summary = module, summary
        return other

    def summary(self) -> str:
        """The first line of its help."""
        from cli.summaries import SUMMARIES

        return self._summary or next(
            each[self.name] for each in SUMMARIES.values() if self.name in each
        )

    def about(self) -> str:
        """What its help says of it, in paragraphs. For a verb that is a function."""
        lines = (self.function().__doc__ or "").splitlines()
        return "\n".join((self.summary(), "", *map(str.strip, lines))).strip()

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
        return self.name.replace("-", "_")


def _find(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=(name,)), name)  # importlib takes longer


VERBS = (
    Verb("submit", "submit", ITSELF, ("sub",)),
    Verb("run", "run", ITSELF),
    Verb("shell", "run", ITSELF),
    Verb("attach", "join", ITSELF),
    Verb("exec", "join", ITSELF),
    Verb("adopt", "join", ARGPARSE),
    Verb("queue", "queue", ARGPARSE, ("ps",)),
    Verb("show", "queue", ARGPARSE),
    Verb("why", "queue", ARGPARSE, ("explain",)),
    Verb("logs", "logs", ARGPARSE),
    Verb("wait", "steer", ARGPARSE),
    Verb("cancel", "steer", ARGPARSE, ("kill",)),
    Verb("hold", "steer", ARGPARSE),
    Verb("release", "steer", ARGPARSE),
    Verb("suspend", "steer", ARGPARSE),
    Verb("resume", "steer", ARGPARSE),
    Verb("move", "steer", ARGPARSE),
    Verb("requeue", "steer", ARGPARSE),
    Verb("update", "steer", ARGPARSE),
    Verb("notify", "logs", ARGPARSE),
    Verb("book", "shares", ARGPARSE),
    Verb("cron", "cron", ARGPARSE),
    Verb("report-step", "results", ARGPARSE),
    Verb("report-metric", "results", ARGPARSE),
    Verb("results", "results", ARGPARSE),
    Verb("estimate", "estimate", ITSELF),
    Verb("status", "gpus", ARGPARSE),
    Verb("top", "gpus", ARGPARSE),
    Verb("watch", "logs", ARGPARSE),
    Verb("web", "command", ARGPARSE, package="web"),
    Verb("gpus", "gpus", ARGPARSE),
    Verb("history", "past", ARGPARSE),
    Verb("stats", "past", ARGPARSE),
    Verb("report", "past", ARGPARSE),
    Verb("share", "shares", ARGPARSE),
    Verb("estimators", "models", TYPER),
    Verb("models", "models", TYPER),
    Verb("drain", "gpus", ARGPARSE),
    Verb("undrain", "gpus", ARGPARSE),
    Verb("limit", "shares", ARGPARSE),
    Verb("reserve", "shares", ARGPARSE),
    Verb("doctor", "doctor", TYPER),
    Verb("daemon", "server", TYPER),
    Verb("config", "doctor", TYPER),
    Verb("simulate", "simulate", TYPER),
    Verb("demo", "demo", ITSELF),
    Verb("mcp", "mcp", ARGPARSE),
    Verb("completion", "completion", ARGPARSE),
    Verb("gpumemnet", "models", TYPER),
)
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.aliases)}
