"""Every verb of `carma`, and how its words are read. Imports stay light: each command starts here.

A verb is the function of its name in its module: of `daemon start`, `daemon_start`. Its help begins
with its line in `cli.summaries`; what follows is the function's docstring.
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
TYPER = "typer"  # from the annotations of `NAME`, for what people do not type all day (`cli.app`)
ITSELF = "itself"  # `NAME` gets all words: a command of the user's follows its own options


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
        from cli.summaries import summary

        return self._summary or summary(self.name)

    def about(self) -> str:
        """What its help says of it, in paragraphs."""
        lines = (self.function().__doc__ or "").splitlines()
        return "\n".join((self.summary(), "", *map(str.strip, lines))).strip()

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
    Verb("cron", "cron", ITSELF),
    Verb("report-step", "results", ARGPARSE),
    Verb("report-metric", "results", ARGPARSE),
    Verb("results", "results", ARGPARSE),
    Verb("estimate", "estimate", ITSELF),
    Verb("status", "gpus", ARGPARSE),
    Verb("top", "gpus", ARGPARSE),
    Verb("watch", "logs", ARGPARSE),
    Verb("web", "command", ARGPARSE, package="carma_web"),
    Verb("gpus", "gpus", ARGPARSE),
    Verb("history", "past", ARGPARSE),
    Verb("stats", "past", ARGPARSE),
    Verb("report", "past", ARGPARSE),
    Verb("share", "shares", ARGPARSE),
    Verb("estimators", "models", ARGPARSE),
    Verb("models", "models", ARGPARSE),
    Verb("drain", "gpus", ARGPARSE),
    Verb("undrain", "gpus", ARGPARSE),
    Verb("limit", "shares", ARGPARSE),
    Verb("reserve", "shares", ARGPARSE),
    Verb("doctor", "doctor", ARGPARSE),
    Verb("extras", "extras", ARGPARSE),
    Verb("daemon start", "server", ARGPARSE),
    Verb("daemon run", "server", ARGPARSE),
    Verb("daemon stop", "server", ARGPARSE),
    Verb("daemon status", "server", ARGPARSE),
    Verb("daemon install", "server", ARGPARSE),
    Verb("daemon replay", "server", ARGPARSE),
    Verb("config show", "doctor", ARGPARSE),
    Verb("config check", "doctor", ARGPARSE),
    Verb("config set", "doctor", ARGPARSE),
    Verb("slurm-commands install", "slurm_commands", ARGPARSE),
    Verb("slurm-commands remove", "slurm_commands", ARGPARSE),
    Verb("simulate", "simulate", TYPER),
    Verb("demo", "demo", ITSELF),
    Verb("mcp", "command", ARGPARSE, package="carma_agents"),
    Verb("client-wheel", "client_wheel", ARGPARSE),
    Verb("completion", "completion", ARGPARSE),
    Verb("gpumemnet generate", "models", ARGPARSE),
    Verb("gpumemnet train", "models", ARGPARSE),
    Verb("gpumemnet evaluate", "models", ARGPARSE),
)
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.aliases)}
GROUPS = frozenset(verb.name.partition(" ")[0] for verb in VERBS if " " in verb.name)
