"""`carma` without a verb: its help and version."""

from __future__ import annotations

from carmad import DISTRIBUTION
from cli import output
from cli.parser import Parser
from cli.problems import Usage
from cli.summaries import SUMMARIES
from cli.verbs import BY_NAME


def run_without_verb(words: list[str]) -> int:
    """Raises Usage for a verb that does not exist."""
    if words and not words[0].startswith("-"):
        from difflib import get_close_matches

        near = [f"'{name}'" for name in get_close_matches(words[0], BY_NAME)]
        hint = f"did you mean {', '.join(near)}?" if near else "see `carma --help`"
        raise Usage(f"no such command '{words[0]}'", hint)
    parser = build_parser()
    options = parser.parse_args(words)
    if options.version:
        from importlib.metadata import version

        print(f"carma {version(DISTRIBUTION)}")
        return 0
    list_verbs(parser)
    parser.print_help()
    return 0 if options.help else Usage.exit_code


def build_parser() -> Parser:
    """It reads only options."""
    parser = Parser(
        "carma",
        usage="carma [--color WHEN] VERB [WORD…]\n       carma help [VERB]",
        description="CARMA runs jobs on the GPUs of a server, several on one GPU where they fit and"
        " do not slow each other down too much.",
        allow_abbrev=False,
        add_help=False,
    )
    own = parser.add_argument_group("options")
    own.add_argument("-h", "--help", action="store_true", help="show this help; also after a verb")
    own.add_argument("--version", action="store_true", help="print the version and exit")
    own.add_argument(
        "--color",
        choices=output.COLORS,
        metavar="WHEN",
        help=f"when to colour: {', '.join(output.COLORS)}",
    )
    return parser


def list_verbs(parser: Parser) -> None:
    """Verbs become arguments so that its help lists them."""
    for section, verbs in SUMMARIES.items():
        group = parser.add_argument_group(section)
        for verb, summary in verbs.items():
            group.add_argument(verb, nargs="?", help=summary.replace("%", "%%"))
