"""`carma` without a verb: its help and version."""

from __future__ import annotations

from carmad import DISTRIBUTION
from cli import output
from cli.parser import Parser
from cli.problems import Usage
from cli.summaries import BELOW, FIRST, SUMMARIES, summary
from cli.verbs import BY_NAME, GROUPS

ABOUT = (
    "CARMA runs jobs on the GPUs of a server, several on one GPU where they fit and do not slow"
    " each other down too much."
)
ALL = f"list all {sum(map(len, SUMMARIES.values()))} verbs"


def run_without_verb(words: list[str]) -> int:
    """Raises Usage for a verb that does not exist."""
    if words and words[0] in GROUPS:
        return _run_without_command(words[0], words[1:])
    if words and not words[0].startswith("-"):
        raise Usage(
            f"no such command '{words[0]}'", _nearest(words[0], [*BY_NAME, *GROUPS], "carma")
        )
    parser = build_parser()
    options = parser.parse_args(words)
    if options.version:
        from importlib.metadata import version

        print(f"carma {version(DISTRIBUTION)}")
        return 0
    print((_every_verb(parser) if options.all else _first_screen()).format_help(), end="")
    return 0 if options.help or options.all else Usage.exit_code


def _run_without_command(group: str, words: list[str]) -> int:
    """`carma daemon`, perhaps with a command that does not exist."""
    if words and not words[0].startswith("-"):
        hint = _nearest(words[0], list(BELOW[group]), f"carma {group}")
        raise Usage(f"no such command 'carma {group} {words[0]}'", hint)
    parser = Parser(
        f"carma {group}",
        usage=f"carma {group} COMMAND [WORD…]",
        description=summary(group),
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    options = parser.parse_args(words)
    list_verbs(parser, "commands", BELOW[group])
    parser.print_help()
    return 0 if options.help else Usage.exit_code


# What other programs call our verbs.
ELSEWHERE = {
    "queue": "list ls jobs qstat squeue",
    "cancel": "rm remove del delete stop abort qdel scancel",
    "show": "info describe inspect get",
    "submit": "add start enqueue push qsub sbatch",
    "logs": "log tail output cat",
    "gpus": "nodes smi nvidia-smi sinfo",
    "history": "past sacct",
    "requeue": "retry rerun restart",
    "update": "edit modify",
    "suspend": "pause freeze",
    "resume": "continue unpause",
    "run": "srun salloc",
    "daemon start": "start up",
    "daemon stop": "stop down",
}


def _nearest(word: str, names: list[str], command: str) -> str:
    """A hint. An alias stands for its verb, which is what there is help for."""
    from difflib import get_close_matches

    own = [verb for verb, others in ELSEWHERE.items() if word.lower() in others.split()]
    if own and command == "carma":
        return f"use {'; or '.join(map(_explain, own))}"
    near = get_close_matches(word, names, n=1)
    if not near:
        return f"see `{command} --help`"
    verb = BY_NAME.get(near[0]) if command == "carma" else None
    return f"did you mean `{command} {verb.name if verb else near[0]}`?"


def _explain(verb: str) -> str:
    said = summary(verb).partition(".")[0]
    return f"`carma {verb}`: {said[0].lower()}{said[1:]}"


def build_parser() -> Parser:
    """It reads only options."""
    parser = Parser(
        "carma",
        usage="carma [--color WHEN] VERB [WORD…]\n       carma help [VERB|--all]",
        description=ABOUT,
        allow_abbrev=False,
        add_help=False,
    )
    own = parser.add_argument_group("options")
    own.add_argument("-h", "--help", action="store_true", help="show this help; also after a verb")
    own.add_argument("--all", action="store_true", help=ALL)
    own.add_argument("--version", action="store_true", help="print the version and exit")
    own.add_argument(
        "--color",
        choices=output.COLORS,
        metavar="WHEN",
        help=f"when to colour: {', '.join(output.COLORS)}",
    )
    return parser


def _first_screen() -> Parser:
    """What most people need, on 24 lines."""
    parser = Parser("carma", usage="carma VERB [WORD…]", description=ABOUT, add_help=False)
    list_verbs(parser, "start with", {verb: summary(verb) for verb in FIRST})
    more = {
        "help VERB": "All that VERB can do. `carma VERB --help` is the same.",
        "help --all": f"{ALL[0].upper()}{ALL[1:]}, with those for administrators.",
        "demo": "See what CARMA does, on emulated GPUs.",
    }
    list_verbs(parser, "more", more)
    return parser


def _every_verb(parser: Parser) -> Parser:
    for section, verbs in SUMMARIES.items():
        list_verbs(parser, section, verbs)
    return parser


def list_verbs(parser: Parser, section: str, verbs: dict[str, str]) -> None:
    """Verbs become arguments so that its help lists them."""
    group = parser.add_argument_group(section)
    for verb, said in verbs.items():
        group.add_argument(verb, nargs="?", help=said.replace("%", "%%"))
