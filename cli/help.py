"""`carma` without a verb: its help and version."""

from __future__ import annotations

from carmad import DISTRIBUTION
from cli import output
from cli.parser import Parser
from cli.problems import Usage
from cli.verbs import FIRST, OWN, Group, Verb, find, sections

ABOUT = (
    "CARMA runs jobs on the GPUs of a server, several on one GPU where they fit and do not slow"
    " each other down too much."
)


def run_without_verb(words: list[str]) -> int:
    """Raises Usage for a verb that does not exist."""
    if words and not words[0].startswith("-"):
        if isinstance(group := find(words[0]), Group):
            return _run_without_command(group, words[1:])
        names = [*OWN, *(each.name for verbs in sections().values() for each in verbs)]
        raise Usage(f"no such command '{words[0]}'", _nearest(words[0], names, "carma"))
    parser = build_parser()
    options = parser.parse_args(words)
    if options.version:
        from importlib.metadata import version

        print(f"carma {version(DISTRIBUTION)}")
        return 0
    print((_every_verb(parser) if options.all else _first_screen()).format_help(), end="")
    return 0 if options.help or options.all else Usage.exit_code


def _run_without_command(group: Group, words: list[str]) -> int:
    """`carma daemon`, perhaps with a command that does not exist."""
    below = {verb.name.partition(" ")[2]: verb.summary for verb in group.verbs}
    if words and not words[0].startswith("-"):
        hint = _nearest(words[0], list(below), f"carma {group.name}")
        raise Usage(f"no such command 'carma {group.name} {words[0]}'", hint)
    parser = Parser(
        f"carma {group.name}",
        usage=f"carma {group.name} COMMAND [WORD…]",
        description=group.summary,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    options = parser.parse_args(words)
    list_verbs(parser, "commands", below)
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

# Verbs that went after version 0.1, and what does that now.
FORMER = {
    "client-wheel": "it is in share/carma of CARMA's environment: docs/guides/python.md",
    "gpumemnet": "use `python -m lab.gpumemnet`, of CARMA's repository",
}


def _nearest(word: str, names: list[str], command: str) -> str:
    """A hint. An alias stands for its verb, which is what there is help for."""
    from difflib import get_close_matches

    if word in FORMER and command == "carma":
        return FORMER[word]
    own = [verb for verb, others in ELSEWHERE.items() if word.lower() in others.split()]
    if own and command == "carma":
        return f"use {'; or '.join(map(_explain, own))}"
    near = get_close_matches(word, names, n=1)
    if not near:
        return f"see `{command} --help`"
    verb = OWN.get(near[0]) if command == "carma" else None
    return f"did you mean `{command} {verb.name if verb else near[0]}`?"


def _explain(verb: str) -> str:
    said = _summary(verb).partition(".")[0]
    return f"`carma {verb}`: {said[0].lower()}{said[1:]}"


def _summary(name: str) -> str:
    first, _, below = name.partition(" ")
    found: Verb | Group | None = OWN[first]
    if isinstance(found, Group):
        found = found.find(below)
    assert found is not None, name
    return found.summary


def _list_all() -> str:
    return f"list all {sum(map(len, sections().values()))} verbs"


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
    own.add_argument("--all", action="store_true", help=_list_all())
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
    list_verbs(parser, "start with", {verb: OWN[verb].summary for verb in FIRST})
    more = {
        "help VERB": "All that VERB can do. `carma VERB --help` is the same.",
        "help --all": f"{_list_all().capitalize()}, with those for administrators.",
    }
    if any(each.name == "demo" for verbs in sections().values() for each in verbs):
        more["demo"] = "See what CARMA does, on emulated GPUs."
    list_verbs(parser, "more", more)
    return parser


def _every_verb(parser: Parser) -> Parser:
    for section, verbs in sections().items():
        list_verbs(parser, section, {each.name: each.summary for each in verbs})
    return parser


def list_verbs(parser: Parser, section: str, verbs: dict[str, str]) -> None:
    """Verbs become arguments so that its help lists them."""
    group = parser.add_argument_group(section)
    for verb, said in verbs.items():
        group.add_argument(verb, nargs="?", help=said.replace("%", "%%"))
